"""FLOPs of training against a count by hand."""

import torch

from loop_rl.models import LoopedConfig, LoopedForCausalLM
from loop_rl.sizes.flops import row_flops


def test_count_by_hand():
    torch.manual_seed(0)
    width, ffn, heads, kv_heads, dim, vocabulary, length = 32, 48, 4, 2, 8, 64, 16
    config = LoopedConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=ffn,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=dim,
        core_layers=2,
        injection="huginn_linear",
    )
    flops = row_flops(LoopedForCausalLM(config), length)
    projections = width * (heads + 2 * kv_heads) * dim + heads * dim * width + 3 * width * ffn
    block = 2 * length * projections + 2 * 2 * length * length * heads * dim
    half_of_injection = 2 * length * width * width  # the half that reads e is applied once, the other to every state
    assert flops.recurrence == 2 * block + half_of_injection
    assert flops.once == 2 * block + half_of_injection + 2 * length * width * vocabulary
    assert flops.training(5, 2) == 3 * flops.once + (5 + 2 * 2) * flops.recurrence
    assert flops.training(2, 4) == 3 * (flops.once + 2 * flops.recurrence)
