"""Model FLOPs of training, each logical update counted once (paper, appendix B.3)."""

from dataclasses import dataclass

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from loop_rl.models import LoopedForCausalLM
from loop_rl.models.attention.padded import PaddedContext


@dataclass(frozen=True)
class RowFlops:
    """FLOPs of the matrix products in one row's forward pass: what is done once, and what each recurrence adds."""

    once: int
    recurrence: int

    def training(self, depth: int, backprop_depth: int) -> int:
        """Forward and backward, a backward product costing two forward ones; recomputation is left out."""
        return 3 * self.once + (depth + 2 * min(depth, backprop_depth)) * self.recurrence


def row_flops(model: LoopedForCausalLM, length: int) -> RowFlops:
    """Counts the products of a row of `length` tokens with torch's counter; attention over all pairs, as torch does."""
    one, two = (_forward_flops(model, length, depth) for depth in (1, 2))
    return RowFlops(once=2 * one - two, recurrence=two - one)


@torch.no_grad()
def _forward_flops(model: LoopedForCausalLM, length: int, depth: int) -> int:
    parts = model.model
    ids = torch.zeros(1, length, dtype=torch.long, device=model.device)
    context = PaddedContext(model.config, torch.ones_like(ids), dtype=model.dtype, depth=depth)
    # The counter knows the products inside attention only where torch writes them out.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        prelude = parts.prelude_forward(ids, context)
        state = parts.endpoint(prelude, parts.draw_initial_state(context.position_ids, None, prelude), context)
        model.lm_head(parts.coda_forward(state, context, prelude))
    return counter.get_total_flops()
