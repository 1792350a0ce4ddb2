"""The initial state z0: normal, cut or not, a pure function of (row seed, position, channel).

A counter-based generator (splitmix64) instead of a stream: a row alone, in a batch, decoded token by
token or replayed by the learner draws the same numbers, and the global generator is never touched.
"""

import math

import numpy as np
import torch
from torch import Tensor

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _mix(x: np.ndarray) -> np.ndarray:
    """splitmix64's finaliser on uint64, elementwise."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def hash_uint64(row_seeds: np.ndarray, positions: np.ndarray, count: int, stream: int) -> np.ndarray:
    """`count` independent 64-bit words for every (row seed, position); int64 [...] and [...] -> uint64 [..., count]."""
    seed = _mix(row_seeds.astype(np.uint64) * _GOLDEN + np.uint64(stream))
    key = _mix(seed + (positions.astype(np.uint64) + np.uint64(1)) * _GOLDEN)
    return _mix(key[..., None] + (np.arange(count, dtype=np.uint64) + np.uint64(1)) * _GOLDEN)


def _words(row_seeds: Tensor, positions: Tensor, count: int) -> np.ndarray:
    """`count` words of z0's stream a token; row_seeds int64 [batch] or [batch, tokens], positions [batch, tokens]."""
    positions_np = positions.detach().cpu().numpy()
    seeds = row_seeds.detach().cpu().numpy()
    seeds = np.broadcast_to(seeds if seeds.ndim == 2 else seeds[:, None], positions_np.shape)
    with np.errstate(over="ignore"):
        return hash_uint64(seeds, positions_np, count, stream=1)


def initial_state(row_seeds: Tensor, positions: Tensor, width: int, std: float) -> Tensor:
    """Draw a normal z0 on the CPU in float32 (Box-Muller).

    Args:
        row_seeds: int64 [batch], one seed a row, or [batch, tokens], one a token.
        positions: int64 [batch, tokens], positions in the sequence (not columns of the padded batch).
        width: channels. std: standard deviation.

    Returns:
        float32 [batch, tokens, width].
    """
    words = _words(row_seeds, positions, (width + 1) // 2)
    high = (words >> np.uint64(32)).astype(np.float32)
    low = (words & np.uint64(0xFFFFFFFF)).astype(np.float32)
    radius = np.sqrt(-2.0 * np.log((high + 1.0) * np.float32(2.0**-32)), dtype=np.float32)
    angle = low * np.float32(2.0 * np.pi * 2.0**-32)
    normal = np.stack((radius * np.cos(angle), radius * np.sin(angle)), axis=-1)
    normal = normal.reshape(*words.shape[:-1], -1)[..., :width]
    return torch.from_numpy(np.ascontiguousarray(normal, dtype=np.float32)) * std


def truncated_initial_state(row_seeds: Tensor, positions: Tensor, width: int, std: float) -> Tensor:
    """As `initial_state`, of a normal cut at 3 standard deviations (by inversion); `std` is that of the uncut one."""
    words = _words(row_seeds, positions, width) >> np.uint64(11)
    uniform = torch.from_numpy((words.astype(np.float64) + 0.5) * 2.0**-53)
    below = 0.5 * math.erfc(3.0 / math.sqrt(2.0))
    return torch.special.ndtri(below + uniform * (1.0 - 2.0 * below)).float() * std


def uniforms(row_seeds: Tensor, positions: Tensor) -> Tensor:
    """One uniform in [0, 1) a row for sampling, from a stream of its own; int64 [batch], [batch] -> float64 [batch]."""
    with np.errstate(over="ignore"):
        words = hash_uint64(row_seeds.cpu().numpy(), positions.cpu().numpy(), 1, stream=2)[..., 0]
    return torch.from_numpy((words >> np.uint64(11)).astype(np.float64) * 2.0**-53)
