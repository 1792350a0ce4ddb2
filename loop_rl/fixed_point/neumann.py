"""Endpoint gradients: sums of (J^T)^j g at one state, without replaying the iteration."""

import logging
from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

VJP = Callable[[Tensor], Tensor]

TAIL_LIMIT = 0.9

log = logging.getLogger(__name__)


def neumann_sum(vjp: VJP, g: Tensor, terms: int, tail: bool = False) -> Tensor:
    """sum_{j<k} (J^T)^j g with k = `terms`, so k - 1 vector-Jacobian products.

    With `tail` the rest of the series is estimated as geometric: lambda = <v_{k-1}, v_{k-2}> / <v_{k-2}, v_{k-2}>,
    clamped to (-0.9, 0.9), and v_{k-1} lambda / (1 - lambda) is added; one lambda a row (first axis of g).
    """
    total, v, previous = g, g, g
    for _ in range(terms - 1):
        previous, v = v, vjp(v)
        total = total + v
    if tail:
        # Per row: rows are independent, and a ratio over the batch would tie a row's gradient to its neighbours.
        axes = _axes(g)
        before, last = _precise(previous), _precise(v)
        square = (before * before).sum(axes, keepdim=True)
        ratio = (last * before).sum(axes, keepdim=True) / square.clamp_min(torch.finfo(square.dtype).tiny)
        ratio = ratio.clamp(-TAIL_LIMIT, TAIL_LIMIT)
        total = total + v * (ratio / (1.0 - ratio)).to(v.dtype)
    return total


def implicit_sum(vjp: VJP, g: Tensor, tolerance: float, max_terms: int) -> Tensor:
    """(I - J^T)^-1 g by the Neumann series, each row's run until its last term is below `tolerance` of its sum.

    Rows are the first axis of g, and stop each by itself: what a row gets does not depend on its neighbours. Warns and
    returns the sums so far when a series does not settle (the map does not contract there).
    """
    total, v = g, g
    for _ in range(max_terms):
        v = vjp(v)
        total = total + v
        settled = row_norms(v) <= tolerance * row_norms(total)
        if settled.all():
            return total
        v = torch.where(settled, 0.0, v)
    log.warning("implicit gradient: no convergence to %g in %d terms; the map may not contract", tolerance, max_terms)
    return total


def row_norms(v: Tensor) -> Tensor:
    """The norm of every row, first axis, in float32 at least; all axes are kept. A vector is one row."""
    return _precise(v).square().sum(_axes(v), keepdim=True).sqrt()


def _axes(v: Tensor) -> tuple[int, ...]:
    return tuple(range(1, v.dim())) or (0,)


def _precise(v: Tensor) -> Tensor:
    return v if v.dtype == torch.float64 else v.float()


class _EndpointGradient(torch.autograd.Function):
    """Value: the saved state. Gradient: `transform(g)` into F's output (straight-through)."""

    @staticmethod
    def forward(ctx, f_z: Tensor, saved: Tensor, transform: VJP) -> Tensor:
        ctx.transform = transform
        return saved.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx, g: Tensor):
        return ctx.transform(g), None, None


def endpoint_gradient(f: Callable[[Tensor], Tensor], z: Tensor, transform: Callable[[VJP, Tensor], Tensor]) -> Tensor:
    """A tensor whose value is z and whose gradient reaches F's parameters and input e through F at the detached z.

    F is applied once. `transform(vjp, g)` turns the loss gradient g into the vector that is sent into F(z); its
    products with J^T ask autograd for the state's gradient only, so no parameter gradient is computed in them.
    """
    with torch.enable_grad():
        z_in = z.detach().requires_grad_(True)
        f_z = f(z_in)

    def vjp(v: Tensor) -> Tensor:
        return torch.autograd.grad(f_z, z_in, v, retain_graph=True)[0]

    return _EndpointGradient.apply(f_z, z.detach(), lambda g: transform(vjp, g))
