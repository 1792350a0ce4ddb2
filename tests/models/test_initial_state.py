"""z0 as a pure function of (row seed, position, channel), and standard normal."""

import hashlib
import math
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from loop_rl.models import initial_state as module
from loop_rl.models.initial_state import hash_uint64, initial_state, truncated_initial_state, uniforms
from tests.tiny import tiny_model


def draw(seeds, positions, width=8, std=1.0):
    return initial_state(torch.tensor(seeds), torch.tensor(positions), width, std)


def test_a_row_draws_the_same_alone_in_a_batch_and_token_by_token():
    batch = draw([3, 2**40, 5], [[0, 1, 2, 3], [7, 8, 9, 10], [0, 0, 1, 2]])
    assert batch.dtype == torch.float32 and batch.shape == (3, 4, 8)
    assert torch.equal(draw([2**40], [[7, 8, 9, 10]])[0], batch[1])
    for column, position in enumerate((0, 1, 2, 3)):
        assert torch.equal(draw([3], [[position]])[0, 0], batch[0, column])
    assert torch.equal(batch[2, 0], batch[2, 1]), "position counts, not column"


def test_channels_do_not_depend_on_the_width_and_std_scales():
    wide = draw([1], [[4]], width=9)
    assert torch.equal(draw([1], [[4]], width=4), wide[..., :4])
    assert torch.equal(draw([1], [[4]], width=9, std=0.5), wide * 0.5)


def digests() -> list[str]:
    """Of both distributions' bits, at seeds and positions of every size."""
    seeds = torch.tensor([[0, 1, 2**31], [2**62 - 1, -1, 12345]])
    positions = torch.tensor([[0, 1, 2], [3, 2**31, 131071]])
    found = []
    for draw in (initial_state, truncated_initial_state):
        for dtype, bits in ((torch.float32, torch.int32), (torch.bfloat16, torch.int16)):
            z = draw(seeds, positions, 1037, 0.3, dtype)
            found.append(hashlib.sha256(z.view(bits).numpy().tobytes()).hexdigest()[:16])
    return found


PINNED = ["e6616268953b0061", "32207d880fbc2938", "56dda9e0232c6c3a", "8fe13fc4ab1db694"]


def test_the_bits_are_those_of_every_run_before():
    """Another result is another initial state for every run and evaluation: raise INITIAL_STATE_VERSION with it."""
    assert module.INITIAL_STATE_VERSION == 2
    assert digests() == PINNED


def test_the_bits_are_the_same_under_the_plainest_kernels():
    code = "from tests.models.test_initial_state import digests; print(*digests())"
    environment = {**os.environ, "ATEN_CPU_CAPABILITY": "default", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == PINNED


def test_the_bits_do_not_depend_on_how_much_is_made_at_once(monkeypatch):
    seeds, positions = torch.arange(7), torch.arange(5).expand(7, 5)
    whole = initial_state(seeds, positions, 33, 1.0)
    for chunk in (1, 70, 1000):
        monkeypatch.setitem(module._CHUNK, "cpu", chunk)
        assert torch.equal(initial_state(seeds, positions, 33, 1.0), whole)


def test_a_token_has_the_key_that_hash_uint64_starts_from():
    """The integers of torch against numpy's unsigned ones, and against a word written out in Python's own."""
    seeds, positions = torch.tensor([[3], [2**62 - 1], [-5]]), torch.tensor([[0], [131071], [7]])
    low, high = module._keys(seeds, positions)
    key = (high.long() << 32) | (low.long() & 0xFFFFFFFF)
    golden = np.uint64(0x9E3779B97F4A7C15)
    with np.errstate(over="ignore"):
        seed = module._mix(seeds.numpy().astype(np.uint64) * golden + np.uint64(1))
        expected = module._mix(seed + (positions.numpy().astype(np.uint64) + np.uint64(1)) * golden)
        channel = module._mix(expected[:, 0, None] + np.arange(1, 3, dtype=np.uint64) * golden)
    assert (key.numpy().view(np.uint64) == expected).all()
    assert (hash_uint64(seeds.numpy()[:, 0], positions.numpy()[:, 0], 2, stream=1) == channel).all()
    words = module._words(low, high, torch.arange(6, dtype=torch.int32))
    for row in range(3):
        for channel in range(6):
            x = (int(low[row]) + channel * 0x9E3779B9) % 2**32
            x = (x ^ (x >> 16)) * 0x7FEB352D % 2**32
            x = (x + int(high[row])) % 2**32
            x = (x ^ (x >> 15)) * 0x846CA68B % 2**32
            assert int(words[row, channel]) % 2**32 == x ^ (x >> 16)


@pytest.mark.parametrize("quantile", [module._quantile, module._truncated_quantile])
def test_no_libm_can_change_the_table(quantile):
    """Its float64 values lie further from a rounding boundary of float32 than a few of their own last bits."""
    exact = np.array([quantile(point * 2.0**-32) for point in module.table_points()[:-1]])
    rounded = exact.astype(np.float32)
    for side in (-np.inf, np.inf):
        boundary = (rounded.astype(np.float64) + np.nextafter(rounded, np.float32(side)).astype(np.float64)) / 2
        assert (np.abs(boundary - exact) > 16 * np.spacing(np.abs(exact))).all()


@pytest.mark.parametrize("quantile", [module._quantile, module._truncated_quantile])
def test_inversion_is_exact_to_the_last_millionths(quantile):
    """Between two points a segment's chord is off by f'' h**2 / 8, at most 2e-6 for 256 segments an octave."""
    odd = torch.cat((torch.arange(1, 4000, 2), torch.arange(4001, 2**31, 2**19 + 2), torch.tensor([2**31 - 1])))
    for sign in (0, 1):
        words = (odd - sign * 2**31).int()[None]
        z = module._standard(words, *module._table(quantile, torch.device("cpu")))[0]
        expected = torch.tensor([quantile(p * 2.0**-32) for p in odd.tolist()], dtype=torch.float64)
        assert ((1 - 2 * sign) * z.double() - expected).abs().max() < 3e-6
    smallest = module._standard(torch.tensor([[0]], dtype=torch.int32), *module._table(quantile, torch.device("cpu")))
    assert smallest.item() == np.float32(quantile(2.0**-32))


def test_a_model_draws_its_own_dtype():
    model = tiny_model(torch.bfloat16)
    z = model.model.draw_initial_state(torch.tensor([[0, 1]]), torch.tensor([4]))
    assert z.dtype == torch.bfloat16
    assert torch.equal(z, draw([4], [[0, 1]], width=32).bfloat16())


def test_global_generators_are_not_touched():
    before = torch.get_rng_state()
    first = draw([1], [[0, 1]])
    torch.manual_seed(123)
    assert torch.equal(draw([1], [[0, 1]]), first)
    torch.set_rng_state(before)
    draw([2], [[0]])
    uniforms(torch.tensor([1]), torch.tensor([0]))
    assert torch.equal(torch.get_rng_state(), before)


def kolmogorov(x: torch.Tensor, distribution) -> float:
    """sqrt(n) * largest distance between empirical and given distribution function; exceeds 1.63 one time in 100."""
    x = x.flatten().double().sort().values
    n = len(x)
    exact = distribution(x)
    steps = torch.arange(n + 1, dtype=torch.float64) / n
    return math.sqrt(n) * max((steps[1:] - exact).max().item(), (exact - steps[:-1]).max().item())


def normal_cdf(x):
    return 0.5 * (1 + torch.erf(x / math.sqrt(2)))


def test_moments_and_distribution():
    z = draw(list(range(50)), [list(range(20))] * 50, width=64).double()  # 64,000 numbers
    assert abs(z.mean()) < 4 / math.sqrt(z.numel())
    assert abs(z.var() - 1) < 4 * math.sqrt(2 / z.numel())
    assert abs((z**3).mean()) < 4 * math.sqrt(15 / z.numel())
    assert abs((z**4).mean() - 3) < 4 * math.sqrt(96 / z.numel())
    assert kolmogorov(z, normal_cdf) < 1.63
    assert z.abs().max() < 7 and z.isfinite().all()
    bounds = torch.tensor([0.5, 1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
    outside = 2 * normal_cdf(-bounds)
    found = (z.flatten().abs()[:, None] > bounds).double().mean(0)
    assert ((found - outside).abs() < 4 * (outside / z.numel()).sqrt()).all(), "tails"
    for part in (z[0], z[:, 0], z[:, :, 0], z[:, :, 1]):  # a row, a position, an even and an odd channel
        assert kolmogorov(part, normal_cdf) < 1.63


def test_truncated_moments_and_distribution():
    """Cut at 3 standard deviations of the uncut normal, as torch's trunc_normal_ does."""
    seeds, positions = torch.arange(50), torch.arange(20).expand(50, 20)
    z = truncated_initial_state(seeds, positions, 64, 1.0).double()
    outside = 2 * normal_cdf(torch.tensor(-3.0, dtype=torch.float64))
    assert 2.9 < z.abs().max() <= 3
    assert kolmogorov(z, lambda x: (normal_cdf(x) - outside / 2) / (1 - outside)) < 1.63
    density = math.exp(-4.5) / math.sqrt(2 * math.pi)
    variance = 1 - 6 * density / (1 - outside.item())
    assert abs(z.mean()) < 4 / math.sqrt(z.numel()) and abs(z.var() - variance) < 4 * math.sqrt(2 / z.numel())
    assert truncated_initial_state(seeds, positions, 64, 0.1).abs().max() <= 0.3
    alone = truncated_initial_state(seeds[7:8], positions[:1, 3:4], 5, 1.0)
    assert torch.equal(alone[0, 0].double(), z[7, 3, :5])


def test_seeds_positions_and_channels_are_uncorrelated():
    z = draw(list(range(40)), [list(range(40))] * 40, width=64).double()
    bound = 4.5 / math.sqrt(40 * 64)
    for axis_first in (z, z.transpose(0, 1)):  # by seed, by position
        correlation = torch.corrcoef(axis_first.reshape(40, -1)) - torch.eye(40)
        assert correlation.abs().max() < bound
    correlation = torch.corrcoef(z.reshape(-1, 64).T) - torch.eye(64)
    assert correlation.abs().max() < 4.5 / math.sqrt(1600)
    # Neighbours' squares, and their signs with their magnitudes: dependence that a correlation doesn't see.
    for a, b in ((z[1:], z[:-1]), (z[:, 1:], z[:, :-1]), (z[..., 1:], z[..., :-1])):
        for one in (a**2, a.abs(), a.sign()):
            for other in (b**2, b.abs(), b):
                pair = torch.stack((one.flatten(), other.flatten()))
                assert torch.corrcoef(pair)[0, 1].abs() < 4.5 / math.sqrt(a.numel())
    assert len(torch.unique(z)) > 0.99 * z.numel()


def test_uniforms_are_uniform_and_of_a_stream_of_their_own():
    seeds = torch.arange(200).repeat_interleave(50)
    positions = torch.arange(50).repeat(200)
    u = uniforms(seeds, positions)
    assert u.dtype == torch.float64 and u.min() >= 0 and u.max() < 1
    assert kolmogorov(u, lambda x: x) < 1.63
    z = initial_state(seeds, positions[:, None], 2, 1.0)[:, 0].double()
    assert torch.corrcoef(torch.stack((u, z[:, 0], z[:, 1])))[0, 1:].abs().max() < 4.5 / 100
    alone = uniforms(seeds[7:8], positions[7:8])
    assert alone[0] == u[7]
