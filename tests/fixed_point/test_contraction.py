"""The dominant eigenvalue against numpy's, on matrices of every kind; and what it says of the iteration."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from loop_rl.fixed_point.contraction import COLLINEAR, behaviour, dominant_eigenvalue


def found(matrices, iterations=200):
    a = torch.tensor(np.stack(matrices))
    start = torch.randn(a.shape[:2], generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return dominant_eigenvalue(lambda v: torch.einsum("rij,rj->ri", a, v), start, iterations)


def rotation(angle, scale):
    return scale * np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])


def block(*parts):
    size = sum(len(part) for part in parts)
    whole, at = np.zeros((size, size)), 0
    for part in parts:
        whole[at : at + len(part), at : at + len(part)] = part
        at += len(part)
    return whole


def test_rows_of_known_spectrum():
    small = np.diag([0.3, -0.2, 0.1])
    eigenvalues = found(
        [
            block(np.array([[0.9]]), np.array([[0.5]]), small),
            block(np.array([[-0.9]]), np.array([[0.5]]), small),
            block(rotation(1.0, 0.8), small),
            block(rotation(2.0, 1.1), small),
            block(np.array([[1.2, 5.0], [0.0, 0.7]]), small),  # far from normal
        ]
    )
    expected = [0.9, -0.9, 0.8 * np.exp(1j), 1.1 * np.exp(2j), 1.2]
    for got, wanted in zip(eigenvalues.tolist(), expected, strict=True):
        # the others have died down to (0.7 / 1.2)**200; what is left is float64's rounding
        assert got.real == pytest.approx(np.real(wanted), abs=1e-12)
        assert abs(got.imag) == pytest.approx(abs(np.imag(wanted)), abs=1e-12)


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 10_000))
def test_a_random_matrix(seed):
    matrix = np.random.default_rng(seed).normal(size=(8, 8)) / 3
    spectrum = sorted(np.linalg.eigvals(matrix), key=abs)
    lead = 2 if abs(spectrum[-1].imag) > 1e-9 else 1
    gap = abs(spectrum[-lead - 1]) / abs(spectrum[-1])
    (got,) = found([matrix], iterations=300).tolist()
    if gap < 0.9:  # power iteration separates them within the iterations
        assert abs(got) == pytest.approx(abs(spectrum[-1]), rel=COLLINEAR)  # of a pair so close to the real axis


def test_zero_map():
    assert found([np.zeros((3, 3))]).tolist() == [0]


@pytest.mark.parametrize(
    ("eigenvalue", "expected"),
    [
        (0.99, "contracts"),
        (0.7j, "contracts"),
        (-1.2, "oscillates"),
        (1.1j, "oscillates"),
        (0.9 + 0.9j, "oscillates"),
        (1.0, "diverges"),
        (1.2 + 0.3j, "diverges"),
    ],
)
def test_behaviour(eigenvalue, expected):
    assert behaviour(complex(eigenvalue)) == expected


@pytest.mark.parametrize(("kind", "settles"), [(-1.1, True), (1.05j, True), (1.05, False)])
def test_damping_mends_oscillation_only(kind, settles):
    """Theorem 3 of Fixed-Point Reasoners on z -> A z: with a small enough step the damped iteration settles or not."""
    matrix = rotation(np.angle(kind), abs(kind)) if np.imag(kind) else np.array([[kind]])
    z = np.ones(len(matrix))
    for _ in range(3000):
        z = 0.1 * matrix @ z + 0.9 * z
    assert (np.linalg.norm(z) < 1e-3) == settles
    assert (behaviour(complex(kind)) == "oscillates") == settles
