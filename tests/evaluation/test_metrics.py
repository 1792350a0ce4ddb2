"""Metrics of samples against the enumeration of every draw, and the breakdown against the whole."""

import itertools
import random
import statistics

import pytest

from loop_rl.evaluation.metrics import breakdown, metrics_of, powers_of_two


def row(reward, reason="wrong", finish="stop", depth=6.0, **columns):
    return {
        "reward": reward,
        "correct": None if reward is None else reward >= 1,
        "reason": reason,
        "finish_reason": finish,
        "mean_depth": depth,
        **columns,
    }


def make_rows(seed=0, questions=6, samples=8):
    chance = random.Random(seed)
    return [
        row(chance.choice([0.0, 0.0, 0.5, 1.0]), level=str(1 + question % 2), subject="Algebra")
        for question in range(questions)
        for _ in range(samples)
    ]


def test_pass_at_k_is_the_mean_of_every_draw_of_k_samples():
    rows = make_rows()
    found = metrics_of(rows, 8)
    assert list(found.passes) == [1, 2, 4, 8]
    for k, (mean, error) in found.passes.items():
        shares = []
        for question in range(6):
            draws = list(itertools.combinations(rows[8 * question : 8 * question + 8], k))
            shares.append(sum(any(one["correct"] for one in draw) for draw in draws) / len(draws))
        assert mean == pytest.approx(statistics.fmean(shares), abs=1e-12)
        assert error == pytest.approx(statistics.stdev(shares) / 6**0.5, abs=1e-12)


def test_what_is_not_scored_is_in_no_mean():
    rows = [row(1.0), row(None, "not scored: too long"), row(0.0), row(0.0), *[row(None, None)] * 4]
    found = metrics_of(rows, 4)
    assert found.passes[1][0] == pytest.approx(1 / 3)
    assert found.passes[2][0] == pytest.approx(2 / 3)  # two of the three draws of 2 hold the correct one
    assert found.passes[4] == (None, None)  # no question has 4 scored samples
    assert (found.reward, found.not_scored, found.questions) == (pytest.approx(1 / 3), 5, 2)
    assert metrics_of([row(None)] * 2, 2).passes == {1: (None, None), 2: (None, None)}


def test_shares_of_what_went_wrong():
    rows = [row(0.0, "no answer"), row(0.0, "no answer: no box", "length"), row(1.0, "correct"), row(0.0)]
    found = metrics_of(rows, 2)
    assert (found.no_answer, found.truncated) == (0.5, 0.25)
    assert metrics_of([row(0.0, None)] * 2, 2).no_answer is None
    assert metrics_of([row(0.0, depth=3.0), row(1.0, depth=4.5)], 2).mean_depth == 3.75


def test_the_breakdown_is_the_metrics_of_each_part():
    rows = make_rows()
    parts = breakdown(rows, 8)
    assert list(parts) == ["level", "subject"]
    assert parts["subject"] == {"Algebra": metrics_of(rows, 8)}
    assert list(parts["level"]) == ["1", "2"]
    weighted = statistics.fmean(parts["level"][level].passes[1][0] for level in "12")
    assert weighted == pytest.approx(metrics_of(rows, 8).passes[1][0])  # three questions each
    assert breakdown([row(1.0)], 1) == breakdown([], 1) == {}


def test_questions_without_a_column_are_in_no_part():
    rows = [row(1.0), row(0.0, level="10"), row(1.0, level="9"), row(1.0, level="hard")]
    parts = breakdown(rows, 1)["level"]
    assert list(parts) == ["9", "10", "hard"]
    assert [part.questions for part in parts.values()] == [1, 1, 1]


def test_rewards_near_the_largest_float_have_a_mean():
    assert metrics_of([row(1e308), row(1e308), row(-1e308), row(1e308)], 1).reward == pytest.approx(5e307)


def test_powers_of_two():
    assert [powers_of_two(limit) for limit in (1, 2, 7, 8, 16)] == [
        [1],
        [1, 2],
        [1, 2, 4],
        [1, 2, 4, 8],
        [1, 2, 4, 8, 16],
    ]
