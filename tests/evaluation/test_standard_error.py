"""The standard error against closed forms and the variance components' definition; its interval's coverage by draws."""

import math
import statistics

import numpy as np
import pytest

from loop_rl.evaluation.standard_error import BOTH, QUESTIONS, Estimate, difference, estimate, from_stored, student_t

# Published tables of Student's t, 0.975.
POINTS = {1: 12.7062, 2: 4.3027, 3: 3.1824, 4: 2.7764, 9: 2.2622, 10: 2.2281, 30: 2.0423, 120: 1.9799}


@pytest.mark.parametrize(("freedom", "point"), POINTS.items())
def test_student_t_is_the_tables(freedom, point):
    assert student_t(freedom) == pytest.approx(point, abs=5.1e-5)


def test_student_t_of_many_is_the_normals():
    assert student_t(math.inf) == pytest.approx(statistics.NormalDist().inv_cdf(0.975), abs=1e-6)
    assert student_t(10_000) == pytest.approx(student_t(math.inf), abs=3e-4)


def test_one_run_has_the_error_over_its_questions():
    values = [0.0, 0.25, 1.0, 0.5]
    found = estimate(np.array([values]))
    error = statistics.stdev(values) / 2
    assert (found.mean, found.error) == pytest.approx((statistics.mean(values), error))
    assert found.over == QUESTIONS
    assert found.high - found.mean == pytest.approx(error * POINTS[3], rel=1e-4)
    assert found.mean - found.low == pytest.approx(error * POINTS[3], rel=1e-4)
    assert estimate(np.array([[0.5]])) == Estimate(0.5)
    assert estimate(np.zeros((1, 0))) == estimate(np.zeros((0, 3))) == Estimate()


def test_several_runs_are_the_two_way_analysis_of_variance():
    """Term by term from the definition, in exact loops; 2 runs of 3 questions."""
    x = [[0.0, 0.5, 1.0], [0.25, 0.25, 0.75]]
    runs, questions = [statistics.mean(row) for row in x], [statistics.mean(column) for column in zip(*x, strict=True)]
    mean = statistics.mean(runs)
    rest = sum((x[s][q] - runs[s] - questions[q] + mean) ** 2 for s in range(2) for q in range(3)) / 2
    variance = statistics.variance(runs) / 2 + statistics.variance(questions) / 3 - rest / 6
    found = estimate(np.array(x))
    assert (found.mean, found.error, found.over) == (
        pytest.approx(mean),
        pytest.approx(math.sqrt(variance)),
        BOTH,
    )


def test_the_same_measurement_twice_is_no_more_certain():
    values = np.array([[0.0, 0.25, 1.0, 0.5]])
    assert estimate(values.repeat(3, 0)).error == pytest.approx(estimate(values).error)


def test_a_difference_is_paired_by_question():
    hard = np.linspace(0, 1, 21)
    ours, theirs = 0.1 + 0.8 * hard[None], 0.8 * hard[None]
    found = difference(ours, theirs)
    assert found.mean == pytest.approx(0.1) and found.error == pytest.approx(0, abs=1e-15)
    assert estimate(ours).error > 0.05
    values = np.random.default_rng(0).random((2, 9))
    single = estimate(values[:1] - values[1:])
    assert difference(values[:1], values[1:]) == single  # of one run each, the differences of the questions
    with pytest.raises(ValueError, match="paired"):
        difference(ours, theirs[:, :-1])


def test_without_the_questions_own_results():
    assert from_stored([0.5], [0.02]).error == pytest.approx(0.02)
    found = from_stored([0.5, 0.7], [0.02, 0.04])
    assert found.mean == pytest.approx(0.6)
    assert found.error**2 == pytest.approx((0.02**2 + 0.04**2) / 2 + statistics.variance([0.5, 0.7]) / 2)
    assert from_stored([0.5, 0.7], [0.02]) == Estimate(0.6)
    assert from_stored([], []) == Estimate()


QUESTIONS_DRAWN = 100


def draw(rng, seeds, spread):
    """Results [seeds, questions], their true mean 0.6, and what each training seed adds to it.

    Up to a spread of 0.03, shares of right samples of 8: p(1 − p) keeps every chance within 0 and 1, and its mean is
    known. Beyond, normal values, where seeds decide the error.
    """
    effects = rng.normal(0, spread, seeds)
    if spread > 0.03:
        rest = rng.normal(0, 0.3, QUESTIONS_DRAWN) + rng.normal(0, 0.2, (seeds, QUESTIONS_DRAWN))
        return 0.6 + effects[:, None] + rest, 0.6, effects
    chances = rng.beta(0.9, 0.6, QUESTIONS_DRAWN)
    moved = chances + effects[:, None] * chances * (1 - chances) / (0.9 * 0.6 / (1.5 * 2.5))
    return rng.binomial(8, moved) / 8, 0.6, effects


@pytest.mark.parametrize("seeds", [1, 2, 3, 10])
@pytest.mark.parametrize("spread", [0.0, 0.02, 0.2])
def test_the_interval_covers_the_true_value(seeds, spread):
    """At least 95 % but for four standard deviations of the count, also where seeds or questions decide the error."""
    rng, trials = np.random.default_rng(1000 * seeds + int(100 * spread)), 1200
    covered, squares, errors = 0, 0.0, 0.0
    for _ in range(trials):
        values, true, effects = draw(rng, seeds, spread)
        if seeds == 1:
            true += effects[0]  # of the one model that was trained
        found = estimate(values)
        covered += found.low <= true <= found.high
        squares += (found.mean - true) ** 2
        errors += found.error**2
    assert covered / trials >= 0.95 - 4 * math.sqrt(0.95 * 0.05 / trials)
    if seeds in (1, 10):  # enough degrees of freedom to be nominal, not only safe
        assert covered / trials <= 0.95 + 4 * math.sqrt(0.95 * 0.05 / trials) + 0.01
    # The squared standard error is unbiased: means of n squares are off by √(2/n), and √(2/(S−1)n).
    assert errors / squares == pytest.approx(1, abs=4 * math.sqrt((2 + 2 / max(seeds - 1, 1)) / trials))


@pytest.mark.parametrize(("ours", "theirs"), [(1, 1), (3, 3), (2, 5)])
def test_the_interval_of_a_difference_covers_it(ours, theirs):
    rng, trials, spread = np.random.default_rng(ours), 1200, 0.02
    covered = 0
    for _ in range(trials):
        both, _, effects = draw(rng, ours + theirs, spread)
        true = effects[0] - effects[1] if ours == theirs == 1 else 0.0
        found = difference(both[:ours], both[ours:])
        covered += found.low <= true <= found.high
    assert covered / trials >= 0.95 - 4 * math.sqrt(0.95 * 0.05 / trials)
