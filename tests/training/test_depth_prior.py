"""Depth priors against Monte Carlo and their definition."""

import math

import numpy as np
import pytest
import torch

from loop_rl.errors import UserError
from loop_rl.training.depth_prior import FrozenPrior, _calibrate, fixed, poisson_lognormal


@pytest.mark.parametrize(("mean", "sigma", "cap"), [(5.0, 0.5, 64), (6.0, 0.5, 64), (1.1, 0.5, 64), (5.0, 2.0, 16)])
def test_mean_of_the_capped_depth_is_calibrated(mean, sigma, cap):
    probabilities = poisson_lognormal(mean, sigma, cap)
    depths = torch.arange(1, cap + 1, dtype=torch.float64)
    assert float(probabilities.sum()) == pytest.approx(1.0, abs=1e-12)
    assert float(probabilities @ depths) == pytest.approx(mean, abs=1e-6)
    assert bool((probabilities > 0).all())


@pytest.mark.parametrize(("mean", "cap"), [(5.0, 64), (5.0, 7)])
def test_pmf_agrees_with_monte_carlo(mean, cap):
    rng = np.random.default_rng(0)
    count = 1_000_000
    mu = _calibrate(mean, 0.5, cap)
    sampled = np.minimum(rng.poisson(np.exp(rng.normal(mu, 0.5, count))) + 1, cap)
    frequencies = np.bincount(sampled, minlength=cap + 1)[1:] / count
    probabilities = poisson_lognormal(mean, 0.5, cap).numpy()
    deviation = np.sqrt(probabilities * (1 - probabilities) / count)
    assert np.all(np.abs(frequencies - probabilities) < 5 * deviation + 5 / count)


def test_without_spread_it_is_a_shifted_poisson():
    assert _calibrate(5.0, 0.0, 64) == pytest.approx(math.log(4.0), abs=1e-9)
    expected = [math.exp(-4.0) * 4.0**k / math.factorial(k) for k in range(10)]
    assert poisson_lognormal(5.0, 0.0, 64)[:10].tolist() == pytest.approx(expected, rel=1e-9)


def test_draws_follow_the_probabilities_and_the_generator():
    prior = FrozenPrior(poisson_lognormal(5.0, 0.5, 12))
    generator = torch.Generator().manual_seed(0)
    drawn = [prior.draw(generator) for _ in range(20_000)]
    assert min(drawn) >= 1 and max(drawn) <= 12
    frequencies = torch.bincount(torch.tensor(drawn), minlength=13)[1:] / len(drawn)
    assert torch.allclose(frequencies.double(), prior.probabilities, atol=0.02)
    generator.manual_seed(0)
    assert [prior.draw(generator) for _ in range(100)] == drawn[:100]


def test_fixed_depth():
    prior = FrozenPrior(fixed(6.0))
    generator = torch.Generator().manual_seed(0)
    before = generator.get_state()
    assert prior.draw(generator) == 6
    assert torch.equal(generator.get_state(), before)
    assert prior.probabilities.tolist() == [0.0] * 5 + [1.0]


@pytest.mark.parametrize("arguments", [(1.0, 0.5, 64), (64.0, 0.5, 64), (5.0, -0.1, 64), (5.0, 9.0, 64)])
def test_impossible_priors_are_refused(arguments):
    with pytest.raises(UserError, match="prior"):
        poisson_lognormal(*arguments)


def test_a_state_of_another_distribution_is_refused():
    with pytest.raises(UserError, match="checkpoint"):
        FrozenPrior(poisson_lognormal(5.0)).load_state_dict(FrozenPrior(poisson_lognormal(6.0)).state_dict())
