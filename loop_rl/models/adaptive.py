"""Adaptive depth: a token stops recurring when its state has settled.

Its state stays, and so do the keys and values of its last recurrence, which every deeper recurrence of its neighbours
reads. Whether a token stops depends on itself and what stands before it, never on the rest of the batch.
"""

import torch
from torch import Tensor

from loop_rl.fixed_point import residual
from loop_rl.models.attention.context import Context
from loop_rl.models.looped import LoopedModel, PreludeOutput


def adaptive_endpoint(
    core: LoopedModel,
    prelude: PreludeOutput,
    z0: Tensor,
    context: Context,
    tolerance: float,
    floor: int,
    recurs: Tensor,
) -> tuple[Tensor, Tensor]:
    """Iterates each token until its residual is below `tolerance`; `floor` recurrences at least, context.depth at most.

    Args:
        z0: [B, T, width]. recurs: bool [B, T], the tokens to iterate; the others (pads, ended rows) keep z0.

    Returns:
        The endpoint states and the recurrences that each token used, int64 [B, T].
    """
    z, active = z0, recurs
    depths = torch.zeros(recurs.shape, dtype=torch.long, device=z0.device)
    done = 0
    for recurrence in range(context.depth):
        context.active = active
        z_next = core.recur(z, prelude, context, recurrence)
        change = residual(z_next.float(), z.float())
        z = torch.where(active[..., None], z_next, z)
        depths += active
        done = recurrence + 1
        if done >= floor:
            active = active & (change >= tolerance)
            if not active.any():
                break
    context.active = None
    context.fill_banks(done)
    return z, depths


class Replay:
    """F as it was applied while sampling at adaptive depth; call it max(depths) times, and F itself from then on.

    depths: int64 [B, T], the recurrences that each token used, 0 for pads.
    """

    def __init__(self, core: LoopedModel, prelude: PreludeOutput, context: Context, depths: Tensor) -> None:
        self.core, self.prelude, self.context, self.depths = core, prelude, context, depths
        self.deepest = int(depths.max())
        self.recurrence = 0

    def __call__(self, z: Tensor) -> Tensor:
        if self.recurrence == self.deepest:
            self.context.active = None
            return self.core.recur(z, self.prelude, self.context)
        active = self.depths > self.recurrence
        self.context.active = active
        z_next = self.core.recur(z, self.prelude, self.context, self.recurrence)
        self.recurrence += 1
        if self.recurrence == self.deepest:
            self.context.active = None  # the coda's layers hold nothing
        return torch.where(active[..., None], z_next, z)
