"""Iteration, residuals and convergence depths against loops over rows, tokens and numbers."""

import math

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from loop_rl.fixed_point import convergence_depth, iterate, iterate_to_tolerance, residual


def test_residual_is_the_relative_change_of_each_token():
    z, z_next = torch.randn(2, 3, 4, dtype=torch.float64), torch.randn(2, 3, 4, dtype=torch.float64)
    found = residual(z_next, z)
    assert found.shape == (2, 3)
    for row in range(2):
        for token in range(3):
            before, after = z[row, token].tolist(), z_next[row, token].tolist()
            expected = math.dist(after, before) / (math.hypot(*before) + 1e-8)
            assert math.isclose(found[row, token].item(), expected, rel_tol=1e-12)
    assert residual(torch.zeros(1, 2), torch.zeros(1, 2)).item() == 0.0


def test_residuals_of_bfloat16_states_are_float32():
    """A change of one bfloat16 step, 2^-7, of one of 64 ones: the square of it is lost beside 1 in bfloat16."""
    z = torch.ones(1, 64).bfloat16()
    z_next = z.clone()
    z_next[0, 0] = 1 + 2**-7
    found = residual(z_next, z)
    assert found.dtype == torch.float32 and found.item() == pytest.approx(2**-7 / 8, rel=1e-6)
    assert residual(z.double(), z.double()).dtype == torch.float64


def test_iterate_counts():
    assert iterate(lambda z: 2 * z, torch.ones(1), 5).item() == 32.0
    assert iterate(lambda z: 2 * z, torch.ones(1), 0).item() == 1.0


RATES = torch.tensor([0.1, 0.5, 0.8, 0.99], dtype=torch.float64)


def affine(rates):
    return lambda z: rates[:, None, None] * z + 1.0


def test_each_row_stops_by_itself_as_if_it_were_alone():
    z0 = torch.randn(4, 3, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    states, depths = iterate_to_tolerance(affine(RATES), z0, tolerance=1e-3, max_depth=40)
    assert len(set(depths.tolist())) == 4 and depths[3] == 40, "the slowest row never settles"
    for row in range(4):
        f, z, used = affine(RATES[row : row + 1]), z0[row : row + 1], 0
        while used < 40:
            z_next, used = f(z), used + 1
            change = max(residual(z_next, z).flatten().tolist())
            z = z_next
            if change < 1e-3:
                break
        assert used == depths[row] and torch.equal(states[row], z[0])
        alone, depth_alone = iterate_to_tolerance(f, z0[row : row + 1], tolerance=1e-3, max_depth=40)
        assert torch.equal(alone[0], states[row]) and depth_alone[0] == depths[row]


def test_a_stopped_row_is_not_spoiled_by_an_overflow():
    calls = []

    def f(z):
        calls.append(1)
        after = z.clone()
        after[0] = z[0] if len(calls) == 1 else float("nan")
        after[1] = z[1] * 2
        return after

    states, depths = iterate_to_tolerance(f, torch.ones(2, 1), tolerance=1e-3, max_depth=4)
    assert states.tolist() == [[1.0], [16.0]] and depths.tolist() == [1, 4]


def naive_convergence_depth(changes: list[float], tolerance: float) -> int:
    for depth in range(1, len(changes) + 1):
        if all(change < tolerance for change in changes[depth - 1 :]):
            return depth
    return len(changes) + 1


@settings(max_examples=100, deadline=None)
@given(
    st.integers(1, 8).flatmap(
        lambda depths: st.lists(
            st.lists(st.sampled_from([0.0, 0.009, 0.01, 0.011, 1.0, float("inf")]), min_size=depths, max_size=depths),
            min_size=1,
            max_size=5,
        )
    )
)
def test_convergence_depth_equals_the_naive_loop(tokens):
    changes = torch.tensor(tokens, dtype=torch.float64).T
    expected = [naive_convergence_depth(token, 0.01) for token in tokens]
    assert convergence_depth(changes, 0.01).tolist() == expected
    assert convergence_depth(changes[:, None], 0.01).tolist() == [expected]
