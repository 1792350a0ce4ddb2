"""Iterating a map z -> F(z) and measuring how far it has converged."""

from collections.abc import Callable

import torch
from torch import Tensor

Map = Callable[[Tensor], Tensor]

EPSILON = 1e-8


def iterate(f: Map, z0: Tensor, depth: int) -> Tensor:
    """Apply f `depth` times."""
    z = z0
    for _ in range(depth):
        z = f(z)
    return z


def residual(z_next: Tensor, z: Tensor) -> Tensor:
    """Relative change per token, |F(z) - z| / (|z| + 1e-8) over the last axis; [..., width] -> [...].

    In float32, or float64 for states of float64: a difference of two near states has no bits left below that.
    """
    z = z if z.dtype == torch.float64 else z.float()
    return (z_next.to(z.dtype) - z).norm(dim=-1) / (z.norm(dim=-1) + EPSILON)


def iterate_to_tolerance(f: Map, z0: Tensor, tolerance: float, max_depth: int) -> tuple[Tensor, Tensor]:
    """Iterate until every row's largest token residual is below `tolerance`, each row stopping by itself.

    Args:
        z0: [rows, ..., width].

    Returns:
        The states [rows, ..., width] and the recurrences each row used, int64 [rows] (`max_depth` if it never settled).
    """
    z = z0
    rows = z0.shape[0]
    active = torch.ones(rows, dtype=torch.bool, device=z0.device)
    depth = torch.zeros(rows, dtype=torch.long, device=z0.device)
    for _ in range(max_depth):
        z_next = f(z)
        depth += active
        change = residual(z_next, z).reshape(rows, -1).amax(-1)
        # where, not a product: a stopped row keeps its state even if f overflows there
        z = torch.where(active.view(-1, *[1] * (z.dim() - 1)), z_next, z)
        active = active & (change >= tolerance)
        if not active.any():
            break
    return z, depth


def convergence_depth(changes: Tensor, tolerance: float) -> Tensor:
    """Smallest depth from which the relative change stays below tolerance (paper, section 2).

    Args:
        changes: [depths, ...], changes[r - 1] = |z^r - z^(r-1)| / |z^(r-1)|.

    Returns:
        int64 [...], in 1..depths; depths + 1 where the token has not converged within the horizon.
    """
    above = changes >= tolerance
    depths = torch.arange(1, changes.shape[0] + 1, device=changes.device)
    last_above = (above * depths.view(-1, *[1] * (changes.dim() - 1))).amax(0)
    return last_above + 1
