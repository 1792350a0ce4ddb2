"""Rotary position embedding: frequencies, Llama 3's scaling of them, and the two layouts of a head's channels."""

import math

import torch
from torch import Tensor

from loop_rl.models.config import LoopedConfig


def frequencies(config: LoopedConfig, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Radians per position of every pair of channels; [head_dim / 2] in `dtype`."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.int64, device=device)
    plain = config.rope_theta ** (-exponents.to(dtype) / config.head_dim)
    return plain if config.llama3_rope is None else llama3_scaled(plain, **config.llama3_rope)


def llama3_scaled(
    plain: Tensor,
    factor: float,
    low_freq_factor: float,
    high_freq_factor: float,
    original_max_position_embeddings: float,
) -> Tensor:
    """Divide the frequencies that turn less than `low_freq_factor` times in the original context by `factor`, keep
    those above `high_freq_factor`, and interpolate between."""
    turns = original_max_position_embeddings * plain / (2 * math.pi)
    kept = ((turns - low_freq_factor) / (high_freq_factor - low_freq_factor)).clamp(0.0, 1.0)
    return plain * kept + plain / factor * (1.0 - kept)


def rotate(x: Tensor, cos: Tensor, sin: Tensor, layout: str) -> Tensor:
    """Turn every pair of channels by its angle, in the tables' dtype.

    x [B, H, T, d] of any float dtype, cos and sin [B, 1, T, d / 2] -> [B, H, T, d] in x's dtype.
    """
    if layout == "interleaved":
        first, second = x[..., 0::2], x[..., 1::2]
        turned = (first * cos - second * sin, second * cos + first * sin)
        return torch.stack(turned, dim=-1).flatten(-2).to(x.dtype)
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)
