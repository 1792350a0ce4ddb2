"""What terminal KV sharing costs in loss: the second half of each row, its prefix read through either cache."""

from dataclasses import dataclass

import torch
from torch import Tensor

from loop_rl.learner.language import token_losses
from loop_rl.models import LoopedForCausalLM
from loop_rl.models.attention.continuation import ContinuationContext
from loop_rl.models.attention.padded import PaddedContext
from loop_rl.models.attention.terminal import TerminalContinuation
from loop_rl.models.prefill import Endpoint, prefill


@dataclass(frozen=True)
class Sharing:
    """Mean loss (nats per token) of the second halves with the full cache and with the terminal one."""

    full: float
    terminal: float

    @property
    def penalty(self) -> float:
        """Relative change of perplexity, PPL_terminal / PPL_full - 1."""
        return torch.tensor(self.terminal - self.full, dtype=torch.float64).expm1().item()


@torch.no_grad()
def sharing_loss(model: LoopedForCausalLM, ids: Tensor, depth: int) -> Sharing:
    """Prefills the first half of unpadded rows [rows, tokens] in a full pass and scores the second half in another.

    The first token of the second half is scored by the prefill, the same in both, and left out.
    """
    return Sharing(*(float(continuation_losses(model, ids, depth, terminal).double().mean()) for terminal in (0, 1)))


def continuation_losses(
    model: LoopedForCausalLM, ids: Tensor, depth: int, terminal: bool, endpoint: Endpoint | None = None
) -> Tensor:
    """Cross-entropy of the second half's tokens given what stands before, float [rows, second half - 1].

    `endpoint`: how the first half is prefilled for terminal banks; the teacher's `depth` recurrences if None.
    """
    half = ids.shape[1] // 2
    first, second = ids[:, :half], ids[:, half:]
    mask = torch.ones_like(first)
    if terminal:
        context = TerminalContinuation(prefill(model, first, mask, depth, endpoint)[0], second.shape[1])
    else:
        full = PaddedContext(model.config, mask, None, model.dtype, depth, record=True)
        _run(model, first, full)
        context = ContinuationContext(full, second.shape[1])
    return token_losses(model, _run(model, second, context), second)


def _run(model: LoopedForCausalLM, ids: Tensor, context: PaddedContext | ContinuationContext) -> Tensor:
    parts = model.model
    prelude = parts.prelude_forward(ids, context)
    z = parts.endpoint(prelude, parts.draw_initial_state(context.position_ids, None, prelude), context)
    return parts.coda_forward(z, context, prelude)
