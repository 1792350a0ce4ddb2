"""How the tokens of a text settle over depth (paper, section 2)."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from loop_rl.fixed_point import convergence_depth, residual
from loop_rl.fixed_point.iteration import Map

QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9, 0.99)


@dataclass(frozen=True)
class Convergence:
    """Convergence depths of all tokens; a token that never settled within the horizon counts as horizon + 1.

    quantiles: at QUANTILES. by_position: (last position of an interval, median depth in it). spearman: rank correlation
    of depth with position, None where one of them is constant. out_of_order: share of the tokens that settled before
    one to their left.
    """

    threshold: float
    horizon: int
    median: float
    quantiles: list[float]
    unsettled: float
    by_position: list[tuple[int, float]]
    spearman: float | None
    out_of_order: float


@torch.no_grad()
def tokenwise_changes(
    f: Map, z0: Tensor, horizon: int, visit: Callable[[int, Tensor], None] | None = None
) -> tuple[Tensor, Tensor]:
    """Iterates f from z0 [B, T, width]; returns the changes [horizon, B, T] (float32 at least, CPU) and z^horizon.

    changes[r - 1] = |z^r - z^(r-1)| / |z^(r-1)|. `visit(r, z^r)` is called at every depth.
    """
    z, changes = z0, []
    for depth in range(1, horizon + 1):
        z_next = f(z)
        wide = torch.promote_types(z.dtype, torch.float32)
        changes.append(residual(z_next.to(wide), z.to(wide)).cpu())
        z = z_next
        if visit is not None:
            visit(depth, z)
    return torch.stack(changes), z


def summarize(changes: Tensor, threshold: float, intervals: int = 8) -> Convergence:
    """Of tokenwise changes [horizon, B, T] of unpadded rows; `intervals`: how many to cut the positions into."""
    horizon, _, tokens = changes.shape
    # A change that is not a number has not settled.
    depths = convergence_depth(changes.nan_to_num(nan=float("inf")), threshold)
    flat = depths.flatten().double().numpy()
    edges = np.unique(np.linspace(0, tokens, min(intervals, tokens) + 1).astype(int))
    by_position = [
        (int(end) - 1, float(depths[:, start:end].double().quantile(0.5)))
        for start, end in zip(edges[:-1], edges[1:], strict=True)
    ]
    latest_before = depths.cummax(1).values[:, :-1]
    positions = np.broadcast_to(np.arange(tokens), depths.shape).flatten()
    return Convergence(
        threshold=threshold,
        horizon=horizon,
        median=float(np.median(flat)),
        quantiles=[float(q) for q in np.quantile(flat, QUANTILES)],
        unsettled=float((flat > horizon).mean()),
        by_position=by_position,
        spearman=spearman(positions, flat),
        out_of_order=float((depths[:, 1:] < latest_before).double().mean()) if tokens > 1 else 0.0,
    )


def spearman(x: np.ndarray, y: np.ndarray) -> float | None:
    """Rank correlation, ties sharing their mean rank; None where x or y is constant."""
    a, b = _ranks(x), _ranks(y)
    a, b = a - a.mean(), b - b.mean()
    scale = float(np.sqrt((a * a).sum() * (b * b).sum()))
    return float((a * b).sum() / scale) if scale > 0 else None


def _ranks(x: np.ndarray) -> np.ndarray:
    _, inverse, counts = np.unique(x, return_inverse=True, return_counts=True)
    last = counts.cumsum()
    return (last - (counts - 1) / 2.0)[inverse]
