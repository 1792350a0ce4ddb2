"""z0 as a pure function of (row seed, position, channel), and standard normal."""

import math

import torch

from loop_rl.models.initial_state import initial_state, truncated_initial_state, uniforms


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
