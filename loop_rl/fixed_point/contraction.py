"""How a map behaves near a fixed point: the eigenvalue of its Jacobian that decides whether iteration settles."""

from typing import Literal

import torch
from torch import Tensor

from loop_rl.fixed_point.series import VJP, row_norms

Behaviour = Literal["contracts", "oscillates", "diverges"]

#: below this share of A v outside v's direction, v counts as an eigenvector
COLLINEAR = 1e-3


def dominant_eigenvalue(apply: VJP, start: Tensor, iterations: int = 60) -> Tensor:
    """The eigenvalue of largest modulus, for each row, by power iteration; complex128 [rows].

    Two successive products are fitted by a second-order recurrence v2 = a v1 + b v0, whose roots are the dominant pair:
    so a complex pair, which makes iterates spiral, is found as well as a real eigenvalue of either sign.

    Args:
        apply: v -> A v (or A^T v: the eigenvalues are the same), rows independent of one another; [rows, ...].
        start: the vector to begin with, random, [rows, ...].
    """
    v = _unit(start)
    for _ in range(iterations):
        v = _unit(apply(v))
    v0 = v.flatten(1).double()
    v1 = apply(v).flatten(1).double()
    v2 = apply(_like(v1, v)).flatten(1).double()
    real = (v0 * v1).sum(1)  # v0 is of length 1
    off_axis = (v1 - real[:, None] * v0).norm(dim=1) / v1.norm(dim=1).clamp_min(torch.finfo(v1.dtype).tiny)
    b, a = _fit(v0, v1, v2)
    root = torch.sqrt((a * a + 4 * b).to(torch.complex128))
    pair = torch.stack([(a + root) / 2, (a - root) / 2])
    larger = torch.where(pair[0].abs() >= pair[1].abs(), pair[0], pair[1])
    return torch.where(off_axis < COLLINEAR, real.to(torch.complex128), larger)


def behaviour(eigenvalue: complex) -> Behaviour:
    """What iterating does along the dominant direction (Fixed-Point Reasoners, section 3.3).

    `oscillates`: the modulus is 1 or more but the real part is below 1, so the state circles or alternates around the
    fixed point and a damped iteration would settle. `diverges`: it moves away, and no damping helps.
    """
    if abs(eigenvalue) < 1:
        return "contracts"
    return "oscillates" if eigenvalue.real < 1 else "diverges"


def _unit(v: Tensor) -> Tensor:
    norms = row_norms(v)
    return (v / norms.clamp_min(torch.finfo(norms.dtype).tiny)).to(v.dtype)


def _like(flat: Tensor, v: Tensor) -> Tensor:
    return flat.to(v.dtype).view_as(v)


def _fit(v0: Tensor, v1: Tensor, v2: Tensor) -> tuple[Tensor, Tensor]:
    """Least squares of v2 = b v0 + a v1 for each row, by Cramer's rule; 0 where v0 and v1 are one direction."""
    g00, g01, g11 = (v0 * v0).sum(1), (v0 * v1).sum(1), (v1 * v1).sum(1)
    r0, r1 = (v0 * v2).sum(1), (v1 * v2).sum(1)
    determinant = g00 * g11 - g01 * g01
    safe = torch.where(determinant > 0, determinant, torch.ones_like(determinant))
    return (r0 * g11 - r1 * g01) / safe * (determinant > 0), (g00 * r1 - g01 * r0) / safe * (determinant > 0)
