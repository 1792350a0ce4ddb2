"""Log-probabilities of completions, differentiable through a gradient estimator."""

from dataclasses import dataclass

import torch
from torch import Tensor

from loop_rl.fixed_point import Estimator, WithResidual
from loop_rl.learner.batch import MicroBatch
from loop_rl.models import LoopedForCausalLM
from loop_rl.models.adaptive import Replay
from loop_rl.models.contexts import PaddedContext


@dataclass(frozen=True)
class Scores:
    """logps: [B, C], differentiable. entropy: [B, C], detached. residuals: [B, T] of F's last application, detached;
    None under full BPTT of depth 1 or without gradient. term_ratios: filled by the backward pass, |J^T v| / |v| of
    each product of a Neumann sum, a scalar tensor each."""

    logps: Tensor
    entropy: Tensor
    residuals: Tensor | None
    term_ratios: list[Tensor]


def plain(model: torch.nn.Module) -> LoopedForCausalLM:
    """The looped model inside a PEFT wrapper, its adapters active; or the model itself."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model  # type: ignore[return-value]


def score(model: torch.nn.Module, batch: MicroBatch, estimator: Estimator, temperature: float) -> Scores:
    """Score every completion token at the sampling temperature; logits only at the positions that predict one.

    Log-probabilities are computed in float32 (float64 for a float64 model). A greedy rollout (temperature 0) is
    scored at temperature 1.
    """
    looped = plain(model)
    core, dtype = looped.model, looped.lm_head.weight.dtype
    context = PaddedContext(looped.config, batch.attention_mask, None, dtype, batch.depth)
    prelude = core.prelude_forward(batch.input_ids, context)
    replayed = batch.depths is not None and not estimator.reuses
    f = WithResidual(
        Replay(core, prelude, context, batch.depths) if replayed else lambda z: core.recur(z, prelude, context)
    )
    ratios: list[Tensor] = []

    def on_vjp(v: Tensor, product: Tensor) -> None:
        ratios.append(product.norm() / v.norm())

    if estimator.reuses:
        assert batch.states is not None
        z = estimator.endpoint(f, saved=batch.states.to(dtype), on_vjp=on_vjp)
    else:
        z0 = core.draw_initial_state(context.position_ids, batch.seeds, prelude)
        depth = int(batch.depths.max()) if replayed else batch.depth
        z = estimator.endpoint(f, z0=z0, depth=depth, on_vjp=on_vjp)
    hidden = core.coda_forward(z, context, prelude)
    hidden = hidden.gather(1, batch.positions[..., None].expand(-1, -1, hidden.shape[-1]))
    logits = looped.lm_head(hidden)
    logits = logits if dtype == torch.float64 else logits.float()
    all_logps = torch.log_softmax(logits / (temperature or 1.0), dim=-1)
    with torch.no_grad():
        entropy = -(all_logps.exp() * all_logps).sum(-1)
    return Scores(all_logps.gather(-1, batch.targets[..., None])[..., 0], entropy, f.last, ratios)
