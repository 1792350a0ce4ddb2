"""Tiny models and rollouts that the tests share."""

import torch

from loop_rl.models import LoopedConfig, LoopedForCausalLM
from loop_rl.rollout.record import Rollout
from loop_rl.rollout.sampler import sample_groups
from loop_rl.rollout.sampling import Sampling


def tiny_model(dtype: torch.dtype = torch.float32, seed: int = 0, **overrides) -> LoopedForCausalLM:
    """Width 32, 4 heads, 2 key-value heads, vocabulary 40, random weights large enough to matter."""
    values = dict(
        vocab_size=40,
        hidden_size=32,
        intermediate_size=48,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        depth=4,
        initializer_range=0.1,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    torch.manual_seed(seed)
    return LoopedForCausalLM(LoopedConfig(**{**values, **overrides})).to(dtype).eval()


PROMPTS = [[5, 6, 7], [8, 9, 10, 11, 12, 13], [14]]


def tiny_rollouts(model: LoopedForCausalLM, group: int = 4, length: int = 7, **sampling) -> list[Rollout]:
    """A group for each of PROMPTS; end-of-sequence ids 2, 3 and 4 make lengths differ."""
    settings = Sampling(group, length, eos_token_ids=(2, 3, 4), **sampling)
    return sample_groups(model, PROMPTS, settings, seeds=[11, 12, 13])
