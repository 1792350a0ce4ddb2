"""What the model tests share: a tiny float64 model whose every parameter is random."""

import torch

from loop_rl.models import LoopedConfig, LoopedForCausalLM

INJECTIONS = ("deq_qkv", "huginn_linear", "parcae", "parcae_no_norm", "ortho")


def tiny_config(**overrides) -> LoopedConfig:
    values = dict(
        vocab_size=31,
        hidden_size=16,
        intermediate_size=24,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=6,
        depth=3,
        max_position_embeddings=64,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    return LoopedConfig(**{**values, **overrides})


def tiny_model(seed: int = 0, dtype: torch.dtype = torch.float64, **overrides) -> LoopedForCausalLM:
    model = LoopedForCausalLM(tiny_config(**overrides)).to(dtype).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            if parameter.dim() == 1:
                parameter.copy_(parameter.double() + 0.3 * noise)
            else:
                parameter.copy_(noise * parameter.shape[-1] ** -0.5)
    return model


def tokens(rows: int, length: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(3, 31, (rows, length), generator=torch.Generator().manual_seed(seed))
