"""The initial state z0: normal, cut or not, a pure function of (row seed, position, channel).

A counter-based hash instead of a stream: a row alone, in a batch, decoded token by token or replayed by the learner
draws the same numbers, and the global generator is never touched. It is computed where the positions are.

The same bits come out on every device and for every split of a batch: integers wrap modulo 2**64 and 2**32; the float32
table is made once, on the CPU; and the float32 operations (an integer's conversion, two products, a sum) are correctly
rounded by IEEE 754, each in a kernel of its own, so that no product is fused with a sum. A compiler that fuses them
(torch.compile) may change the last bit.
"""

from collections.abc import Callable
from functools import cache
from statistics import NormalDist

import numpy as np
import torch
from torch import Tensor

#: of the values that a seed gives; a run or an evaluation that was begun with another one draws other states
INITIAL_STATE_VERSION = 2

_GOLDEN = 0x9E3779B97F4A7C15
_MIX = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_GOLDEN32 = 0x9E3779B9
_MIX32 = (0x7FEB352D, 0x846CA68B)
_CUT = 3.0  # standard deviations

# A 31-bit integer as float32: its exponent and the first _INDEX_BITS of its mantissa choose the table's segment, so the
# tail's segments shrink with the probability, down to 2**-32 (6.2 standard deviations).
_INDEX_BITS = 8
_REST_BITS = 23 - _INDEX_BITS
_FLOAT32_ONE = 127 << _INDEX_BITS
# Numbers made at once: on a CPU its temporaries stay in the cache.
_CHUNK = {"cpu": 1 << 17}
_CHUNK_DEVICE = 1 << 23


def hash_uint64(row_seeds: np.ndarray, positions: np.ndarray, count: int, stream: int) -> np.ndarray:
    """`count` independent 64-bit words for every (row seed, position); int64 [...] and [...] -> uint64 [..., count]."""
    golden = np.uint64(_GOLDEN)
    with np.errstate(over="ignore"):
        seed = _mix(row_seeds.astype(np.uint64) * golden + np.uint64(stream))
        key = _mix(seed + (positions.astype(np.uint64) + np.uint64(1)) * golden)
        return _mix(key[..., None] + (np.arange(count, dtype=np.uint64) + np.uint64(1)) * golden)


def _mix(x: np.ndarray) -> np.ndarray:
    """splitmix64's finaliser on uint64, elementwise."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(_MIX[0])
    x = (x ^ (x >> np.uint64(27))) * np.uint64(_MIX[1])
    return x ^ (x >> np.uint64(31))


def _signed(value: int, bits: int = 64) -> int:
    return value - (1 << bits) if value >> (bits - 1) else value


def _mix_int64(x: Tensor) -> Tensor:
    """`_mix` on int64, whose right shift has to be made logical."""
    x = (x ^ ((x >> 30) & (2**34 - 1))) * _signed(_MIX[0])
    x = (x ^ ((x >> 27) & (2**37 - 1))) * _signed(_MIX[1])
    return x ^ ((x >> 31) & (2**33 - 1))


def _keys(row_seeds: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """A token's 64-bit key as two int32 [tokens, 1]: low and high half."""
    golden = _signed(_GOLDEN)
    seeds = row_seeds if row_seeds.ndim == 2 else row_seeds[:, None]
    key = _mix_int64(_mix_int64(seeds * golden + 1) + (positions + 1) * golden).reshape(-1, 1)
    return ((key << 32) >> 32).int(), (key >> 32).int()


def _words(low: Tensor, high: Tensor, channels: Tensor) -> Tensor:
    """A 32-bit word for every token and channel, int32: a counter mixed twice, the key's other half in between."""
    x = low + channels * _signed(_GOLDEN32, 32)
    x ^= (x >> 16) & 0xFFFF
    x *= _MIX32[0]
    x += high
    x ^= (x >> 15) & 0x1FFFF
    x *= _signed(_MIX32[1], 32)
    x ^= (x >> 16) & 0xFFFF
    return x


def _quantile(p: float) -> float:
    return NormalDist().inv_cdf(p)


def _truncated_quantile(p: float) -> float:
    below = NormalDist().cdf(-_CUT)
    return _quantile(below + p * (1.0 - 2.0 * below))


def table_points() -> list[float]:
    """The integers, from 1 to 2**31, between which a table interpolates."""
    segments = 1 << _INDEX_BITS
    return [2.0**e * (1 + i / segments) for e in range(31) for i in range(segments)] + [2.0**31]


@cache
def _table(quantile: Callable[[float], float], device: torch.device) -> tuple[Tensor, Tensor]:
    """The lower half of a symmetric distribution, from probability 2**-32 to 1/2: float32 values and slopes."""
    values = np.array([quantile(point * 2.0**-32) for point in table_points()], dtype=np.float32)
    slopes = np.append(np.diff(values.astype(np.float64)), 0.0) * 2.0**-_REST_BITS
    return torch.from_numpy(values).to(device), torch.from_numpy(slopes.astype(np.float32)).to(device)


def _standard(words: Tensor, values: Tensor, slopes: Tensor) -> Tensor:
    """From int32 words (31 bits of probability and a sign) to float32 numbers of the table's distribution."""
    bits = ((words & 0x7FFFFFFF) | 1).float().view(torch.int32)  # odd: the middle of a cell, and never 0
    segment = ((bits >> _REST_BITS) - _FLOAT32_ONE).view(-1)
    rest = (bits & ((1 << _REST_BITS) - 1)).float()
    rest *= slopes.index_select(0, segment).view(words.shape)
    rest += values.index_select(0, segment).view(words.shape)
    rest.view(torch.int32).bitwise_xor_(words & _signed(1 << 31, 32))
    return rest


def _draw(
    quantile: Callable[[float], float],
    row_seeds: Tensor,
    positions: Tensor,
    width: int,
    std: float,
    dtype: torch.dtype,
) -> Tensor:
    device = positions.device
    values, slopes = _table(quantile, device)
    low, high = _keys(row_seeds.to(device), positions)
    channels = torch.arange(width, dtype=torch.int32, device=device)
    state = torch.empty(len(low), width, dtype=dtype, device=device)
    tokens = max(1, _CHUNK.get(device.type, _CHUNK_DEVICE) // width)
    for start in range(0, len(low), tokens):
        some = slice(start, start + tokens)
        state[some] = _standard(_words(low[some], high[some], channels), values, slopes).mul_(std)
    return state.view(*positions.shape, width)


def initial_state(
    row_seeds: Tensor, positions: Tensor, width: int, std: float, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Draw a normal z0, by inversion, on the device of `positions`; at most 6.3 standard deviations from 0.

    Args:
        row_seeds: int64 [batch], one seed per row, or [batch, tokens], one per token.
        positions: int64 [batch, tokens], positions in the sequence (not columns of the padded batch).
        width: channels. std: standard deviation. dtype: to which the float32 numbers are rounded.

    Returns:
        [batch, tokens, width] of `dtype`.
    """
    return _draw(_quantile, row_seeds, positions, width, std, dtype)


def truncated_initial_state(
    row_seeds: Tensor, positions: Tensor, width: int, std: float, dtype: torch.dtype = torch.float32
) -> Tensor:
    """As `initial_state`, of a normal cut at 3 standard deviations; `std` is that of the uncut one."""
    return _draw(_truncated_quantile, row_seeds, positions, width, std, dtype)


def uniforms(row_seeds: Tensor, positions: Tensor) -> Tensor:
    """One uniform in [0, 1) a row for sampling, from a stream of its own; int64 [batch], [batch] -> float64 [batch]."""
    words = hash_uint64(row_seeds.cpu().numpy(), positions.cpu().numpy(), 1, stream=2)[..., 0]
    return torch.from_numpy((words >> np.uint64(11)).astype(np.float64) * 2.0**-53)
