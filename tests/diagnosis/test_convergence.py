"""Convergence depths against closed forms and a loop over tokens."""

import math

import numpy as np
import pytest
import torch

from loop_rl.diagnosis.convergence import spearman, summarize, tokenwise_changes
from loop_rl.fixed_point.iteration import EPSILON


def test_changes_of_a_contraction_are_geometric():
    """z -> star + a (z - star), a per token: the distance shrinks by a, and the relative change with it."""
    rate = torch.tensor([0.5, 0.9, 0.2], dtype=torch.float64).view(1, 3, 1)
    star = torch.ones(1, 3, 4, dtype=torch.float64)
    changes, last = tokenwise_changes(lambda z: star + rate * (z - star), star * 1.01, 12)
    for depth in range(1, 13):
        distance = 0.01 * rate.flatten() ** (depth - 1)
        # norms of four numbers: twice each; a difference of numbers near 1 is off by their last bits
        expected = 2 * distance * (1 - rate.flatten()) / (2 * (1 + distance) + EPSILON)
        torch.testing.assert_close(changes[depth - 1, 0], expected, rtol=0, atol=1e-14)
    torch.testing.assert_close(last, star + 0.01 * rate**12, rtol=0, atol=1e-14)


def test_every_depth_is_visited_with_its_state():
    seen = []
    tokenwise_changes(lambda z: z + 1, torch.zeros(1, 1, 1), 3, lambda depth, z: seen.append((depth, float(z))))
    assert seen == [(1, 1.0), (2, 2.0), (3, 3.0)]


def test_summary_against_a_loop():
    changes = torch.rand(9, 4, 17, generator=torch.Generator().manual_seed(0)) * 0.04
    found = summarize(changes, 0.02, intervals=3)
    depths = np.zeros((4, 17))
    for row in range(4):
        for token in range(17):
            depth = 10
            while depth > 1 and float(changes[depth - 2, row, token]) < 0.02:
                depth -= 1
            depths[row, token] = depth
    assert found.median == np.median(depths)
    assert found.quantiles == pytest.approx(list(np.quantile(depths, [0.1, 0.25, 0.5, 0.75, 0.9, 0.99])))
    assert found.unsettled == pytest.approx((depths == 10).mean())
    early = [depths[r, t] < depths[r, :t].max() for r in range(4) for t in range(1, 17)]
    assert found.out_of_order == pytest.approx(np.mean(early))
    assert [end for end, _ in found.by_position] == [4, 10, 16]
    assert found.by_position[1][1] == np.median(depths[:, 5:11])


def test_not_a_number_is_unsettled():
    changes = torch.full((3, 1, 2), 1e-6)
    changes[2, 0, 1] = math.nan
    assert summarize(changes, 0.02).unsettled == 0.5


def test_spearman_against_scipys_definition():
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 5, 200), rng.integers(0, 7, 200)
    mean_rank = [np.array([(v < u).sum() + ((v == u).sum() + 1) / 2 for u in v]) for v in (x, y)]
    assert spearman(x, y) == pytest.approx(np.corrcoef(*mean_rank)[0, 1], abs=1e-12)
    assert spearman(np.arange(5), np.array([2, 4, 6, 8, 9])) == pytest.approx(1.0)
    assert spearman(np.arange(5), np.ones(5)) is None
