"""pass@k against enumeration of every draw, and against what it estimates."""

import itertools
import math

import pytest

from loop_rl.evaluation.pass_at_k import pass_at_k


@pytest.mark.parametrize(("samples", "correct"), [(n, c) for n in range(1, 8) for c in range(n + 1)])
def test_equals_the_share_of_all_draws_that_hold_a_correct_sample(samples, correct):
    flags = [index < correct for index in range(samples)]
    for k in range(1, samples + 1):
        draws = list(itertools.combinations(flags, k))
        assert pass_at_k(samples, correct, k) == pytest.approx(sum(map(any, draws)) / len(draws), abs=1e-15)


@pytest.mark.parametrize("k", [1, 3, 8])
def test_is_unbiased(k):
    samples, p = 10, 0.15
    expected = sum(
        math.comb(samples, c) * p**c * (1 - p) ** (samples - c) * pass_at_k(samples, c, k) for c in range(samples + 1)
    )
    assert expected == pytest.approx(1 - (1 - p) ** k, abs=1e-12)


def test_is_exact_for_many_samples():
    assert pass_at_k(10_000, 1, 100) == pytest.approx(0.01, rel=1e-12)


@pytest.mark.parametrize(("samples", "correct", "k"), [(4, 5, 1), (4, -1, 1), (4, 2, 5), (4, 2, 0), (0, 0, 1)])
def test_refuses_what_has_no_answer(samples, correct, k):
    with pytest.raises(ValueError, match=r"pass@|correct of"):
        pass_at_k(samples, correct, k)
