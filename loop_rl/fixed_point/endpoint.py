"""Endpoint gradients: what a state's loss gradient sends into one application of F, without replaying the iteration."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from loop_rl.fixed_point.series import VJP


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
