"""Depth priors against Monte Carlo and their definition."""

import math

import numpy as np
import pytest
import torch

from loop_rl.errors import UserError
from loop_rl.training.depth_prior import FixedDepth, PoissonLogNormal, make_prior


@pytest.mark.parametrize(("mean", "sigma", "cap"), [(5.0, 0.5, 64), (6.0, 0.5, 64), (1.1, 0.5, 64), (5.0, 2.0, 16)])
def test_mean_of_the_capped_depth_is_calibrated(mean, sigma, cap):
    prior = PoissonLogNormal(mean, sigma, cap)
    depths = torch.arange(1, cap + 1, dtype=torch.float64)
    assert float(prior.probabilities.sum()) == pytest.approx(1.0, abs=1e-12)
    assert float(prior.probabilities @ depths) == pytest.approx(mean, abs=1e-6)
    assert bool((prior.probabilities > 0).all())


@pytest.mark.parametrize(("mean", "cap"), [(5.0, 64), (5.0, 7)])
def test_pmf_agrees_with_monte_carlo(mean, cap):
    prior = PoissonLogNormal(mean, 0.5, cap)
    rng = np.random.default_rng(0)
    count = 1_000_000
    sampled = np.minimum(rng.poisson(np.exp(rng.normal(prior.mu, 0.5, count))) + 1, cap)
    frequencies = np.bincount(sampled, minlength=cap + 1)[1:] / count
    probabilities = prior.probabilities.numpy()
    deviation = np.sqrt(probabilities * (1 - probabilities) / count)
    assert np.all(np.abs(frequencies - probabilities) < 5 * deviation + 5 / count)


def test_without_spread_it_is_a_shifted_poisson():
    prior = PoissonLogNormal(5.0, 0.0, 64)
    assert prior.mu == pytest.approx(math.log(4.0), abs=1e-9)
    expected = [math.exp(-4.0) * 4.0**k / math.factorial(k) for k in range(10)]
    assert prior.probabilities[:10].tolist() == pytest.approx(expected, rel=1e-9)


def test_draws_follow_the_probabilities_and_the_generator():
    prior = PoissonLogNormal(5.0, 0.5, 12)
    generator = torch.Generator().manual_seed(0)
    drawn = [prior.draw(generator) for _ in range(20_000)]
    assert min(drawn) >= 1 and max(drawn) <= 12
    frequencies = torch.bincount(torch.tensor(drawn), minlength=13)[1:] / len(drawn)
    assert torch.allclose(frequencies.double(), prior.probabilities, atol=0.02)
    generator.manual_seed(0)
    assert [prior.draw(generator) for _ in range(100)] == drawn[:100]


def test_fixed_depth():
    prior = make_prior("fixed", 6.0, 0.5, 64)
    assert isinstance(prior, FixedDepth)
    assert prior.draw(torch.Generator()) == 6
    assert prior.probabilities.tolist() == [0.0] * 5 + [1.0]


@pytest.mark.parametrize("arguments", [(1.0, 0.5, 64), (64.0, 0.5, 64), (5.0, -0.1, 64), (5.0, 9.0, 64)])
def test_impossible_priors_are_refused(arguments):
    with pytest.raises(UserError, match="prior"):
        PoissonLogNormal(*arguments)


def test_refusals_name_the_key():
    with pytest.raises(UserError, match="whole number"):
        make_prior("fixed", 5.5, 0.5, 64)
    with pytest.raises(UserError, match="checkpoint"):
        PoissonLogNormal(5.0).load_state_dict(PoissonLogNormal(6.0).state_dict())
