"""Next-token cross-entropy of a looped model, differentiable through a gradient estimator."""

import torch
from torch import Tensor

from loop_rl.fixed_point import Estimator
from loop_rl.learner.head import token_cross_entropy
from loop_rl.models import LoopedForCausalLM
from loop_rl.models.attention.padded import PaddedContext

IGNORED = -100


def next_token_loss(
    model: LoopedForCausalLM,
    ids: Tensor,
    labels: Tensor,
    estimator: Estimator,
    depth: int,
    row_seeds: Tensor | None = None,
    states: Tensor | None = None,
) -> Tensor:
    """Summed cross-entropy (nats) of the next tokens of unpadded rows.

    Args:
        ids, labels: int64 [rows, tokens]; labels are not shifted, IGNORED where no loss is taken.
        row_seeds: [rows], of the initial states, where the estimator replays; None: the config's.
        states: z^R [rows, tokens, width], where it needs the rollout's.
    """
    parts = model.model
    context = PaddedContext(model.config, torch.ones_like(ids), dtype=model.dtype, depth=depth)
    prelude = parts.prelude_forward(ids, context)
    z0 = parts.draw_initial_state(context.position_ids, row_seeds, prelude) if estimator.needs_replay else None
    state = estimator.endpoint(lambda z: parts.recur(z, prelude, context, 0), z0=z0, depth=depth, states=states)
    return token_losses(model, parts.coda_forward(state, context, prelude), labels).sum()


def token_losses(model: LoopedForCausalLM, hidden: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of every next token, in float32 at least: hidden [rows, tokens, width] -> [rows, tokens - 1]."""
    read, wanted = hidden[:, :-1], labels[:, 1:]
    losses = token_cross_entropy(model.lm_head, read.flatten(0, 1), wanted.flatten(), IGNORED)
    return losses.view(wanted.shape)
