"""Log-probabilities of completions, differentiable through a gradient estimator."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from loop_rl.fixed_point import Estimator, residual, row_norms
from loop_rl.learner.batch import MicroBatch
from loop_rl.learner.head import token_logps
from loop_rl.models import LoopedForCausalLM
from loop_rl.models.adaptive import Replay
from loop_rl.models.attention.context import positions_from_mask
from loop_rl.models.attention.padded import PaddedContext


@dataclass(frozen=True)
class Scores:
    """logps: [B, C], differentiable; entropy: [B, C], detached; both 0 where masked. endpoint: z^R [B, T, width],
    detached. after: gives F(z^R). last_terms: filled by the backward pass of a Neumann sum, the norms [B] of every
    row's last two terms, |v_{k-1}| and |v_{k-2}|."""

    logps: Tensor
    entropy: Tensor
    endpoint: Tensor
    after: Callable[[], Tensor]
    last_terms: list[Tensor]

    @torch.no_grad()
    def residuals(self) -> Tensor:
        """The residual at the endpoint, |F(z^R) - z^R| / |z^R|, float32 [B, T].

        Neumann sums have applied F there; for BPTT it costs one recurrence more, without gradient: take it outside of
        what is timed.
        """
        return residual(self.after(), self.endpoint)


def plain(model: torch.nn.Module) -> LoopedForCausalLM:
    """The looped model inside a PEFT wrapper, its adapters active; or the model itself."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model  # type: ignore[return-value]


def with_initial_states(model: torch.nn.Module, batch: MicroBatch, estimator: Estimator) -> MicroBatch:
    """The micro-batch with z0 drawn, if the estimator replays from it, so that scoring need not draw it.

    An initial state that is the tokens' embedding is computed, and differentiated, in scoring.
    """
    core = plain(model).model
    if not estimator.needs_replay or core.config.initial_state == "embedding":
        return batch
    return dataclasses.replace(
        batch, z0=core.draw_initial_state(positions_from_mask(batch.attention_mask), batch.seeds)
    )


def score(model: torch.nn.Module, batch: MicroBatch, estimator: Estimator, temperature: float) -> Scores:
    """Score every completion token at the sampling temperature; logits only at the positions that predict one.

    Log-probabilities are computed in float32 (float64 for a float64 model). A greedy rollout (temperature 0) is
    scored at temperature 1.
    """
    looped = plain(model)
    core, dtype = looped.model, looped.lm_head.weight.dtype
    context = PaddedContext(looped.config, batch.attention_mask, None, dtype, batch.depth)
    prelude = core.prelude_forward(batch.input_ids, context)
    replayed = batch.depths is not None and estimator.needs_replay
    recur = Replay(core, prelude, context, batch.depths) if replayed else lambda z: core.recur(z, prelude, context)
    applied: list[Tensor] = []  # F's last value
    last_terms: list[Tensor] = []

    def f(z: Tensor) -> Tensor:
        z_next = recur(z)
        applied[:] = [z_next.detach()]
        return z_next

    def on_vjp(v: Tensor, product: Tensor) -> None:
        """A row whose sum has ended is sent zeros: its last terms stay."""
        now = [row_norms(x).flatten() for x in (product, v)]
        ended = now[1] == 0
        last_terms[:] = [torch.where(ended, *pair) for pair in zip(last_terms or now, now, strict=True)]

    if estimator.needs_states:
        assert batch.states is not None
        z = estimator.endpoint(f, states=batch.states.to(dtype), on_vjp=on_vjp)
    else:
        z0 = batch.z0
        if z0 is None:
            z0 = core.draw_initial_state(context.position_ids, batch.seeds, prelude)
        depth = int(batch.depths.max()) if replayed else batch.depth
        z = estimator.endpoint(f, z0=z0, depth=depth, on_vjp=on_vjp)
    hidden = core.coda_forward(z, context, prelude)
    rows = batch.mask.nonzero()[:, 0]
    logps, entropy = token_logps(
        looped.lm_head, hidden[rows, batch.positions[batch.mask]], batch.targets[batch.mask], temperature or 1.0
    )

    def placed(values: Tensor) -> Tensor:
        return values.new_zeros(batch.mask.shape).masked_scatter(batch.mask, values)

    endpoint = z.detach()
    after = (lambda: applied[0]) if estimator.approximate else (lambda: f(endpoint))
    return Scores(placed(logps), placed(entropy), endpoint, after, last_terms)
