"""All measurements of one model on one text."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from loop_rl.diagnosis.convergence import Convergence, summarize, tokenwise_changes
from loop_rl.diagnosis.gradients import GradientRow, compare_gradients
from loop_rl.diagnosis.sharing import Sharing, sharing_loss
from loop_rl.fixed_point.contraction import Behaviour, behaviour, dominant_eigenvalue
from loop_rl.learner.language import token_losses
from loop_rl.models import LoopedForCausalLM
from loop_rl.models.attention.padded import PaddedContext

DEPTHS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 64)
#: where terminal sharing is measured, beside the depth that is asked for
SHARING_DEPTHS = (16, 64)
BEHAVIOURS: tuple[Behaviour, ...] = ("contracts", "oscillates", "diverges")


@dataclass(frozen=True)
class Contraction:
    """The dominant eigenvalues of J at the endpoint, one for each row of the text.

    factor: median modulus. worst: largest. shares: share of the rows by behaviour. real, imaginary: of the worst.
    """

    factor: float
    worst: float
    real: float
    imaginary: float
    shares: dict[Behaviour, float]


@dataclass(frozen=True)
class Diagnosis:
    """What was measured; losses in nats per token.

    loss: by depth, in a full pass. residual: quantiles 0.5 and 0.9 at `depth`.
    changes: median over tokens of the relative change at each depth 1..horizon, for the figure.
    """

    depth: int
    rows: int
    tokens: int
    convergence: Convergence
    loss: dict[int, float]
    residual: tuple[float, float]
    changes: list[float]
    sharing_by_depth: dict[int, Sharing]
    contraction: Contraction
    gradients: list[GradientRow]

    @property
    def sharing(self) -> Sharing:
        """At the depth that was asked for."""
        return self.sharing_by_depth[self.depth]


def diagnose(
    model: LoopedForCausalLM,
    ids: Tensor,
    depth: int,
    threshold: float = 0.02,
    horizon: int = 64,
    gradient_rows: int = 2,
    progress: Callable[[str], None] = lambda what: None,
) -> Diagnosis:
    """Measures the model at `depth` on unpadded rows of text, ids int64 [rows, tokens].

    `gradient_rows`: rows that the gradients and the eigenvalue are taken on; both cost several backward passes.
    """
    horizon = max(horizon, depth + 1)
    wanted = {at for at in (*DEPTHS, depth) if at <= horizon}
    losses: dict[int, float] = {}
    changes = []
    for start in range(0, len(ids), gradient_rows):
        progress(f"depths 1 to {horizon}, row {start + 1} of {len(ids)}")
        part = ids[start : start + gradient_rows]
        changes.append(_walk(model, part, horizon, wanted, losses, len(part) / len(ids)))
    every = torch.cat(changes, dim=1)
    few = ids[:gradient_rows]
    with torch.no_grad():
        endpoint = endpoint_of(model, few, depth)
    progress("terminal KV sharing")
    sharing = {at: sharing_loss(model, ids, at) for at in sorted({depth, *SHARING_DEPTHS}) if at <= horizon}
    progress("eigenvalue of the recurrence")
    contraction = contraction_at(model, few, endpoint)
    at_depth = every[depth]  # the change of the recurrence after the last one: the endpoint's residual
    return Diagnosis(
        depth=depth,
        rows=len(ids),
        tokens=ids.shape[1],
        convergence=summarize(every, threshold),
        loss=dict(sorted(losses.items())),
        residual=(float(at_depth.quantile(0.5)), float(at_depth.quantile(0.9))),
        changes=[float(change.median()) for change in every],
        sharing_by_depth=sharing,
        contraction=contraction,
        gradients=compare_gradients(model, few, depth, endpoint, contraction.worst < 1, progress),
    )


def _walk(
    model: LoopedForCausalLM, ids: Tensor, horizon: int, wanted: set[int], losses: dict[int, float], weight: float
) -> Tensor:
    """Iterates to the horizon, adding weight x mean loss at the wanted depths; returns changes [horizon, B, T]."""
    parts = model.model
    context = PaddedContext(model.config, torch.ones_like(ids), dtype=model.dtype, depth=horizon)
    with torch.no_grad():
        prelude = parts.prelude_forward(ids, context)

    def visit(at: int, z: Tensor) -> None:
        if at in wanted:
            loss = token_losses(model, parts.coda_forward(z, context, prelude), ids).double().mean()
            losses[at] = losses.get(at, 0.0) + weight * float(loss)

    z0 = parts.draw_initial_state(context.position_ids, None, prelude)
    changes, _ = tokenwise_changes(lambda z: parts.recur(z, prelude, context), z0, horizon, visit)
    return changes


def endpoint_of(model: LoopedForCausalLM, ids: Tensor, depth: int) -> Tensor:
    """z^depth of unpadded rows, [rows, tokens, width]."""
    parts = model.model
    context = PaddedContext(model.config, torch.ones_like(ids), dtype=model.dtype, depth=depth)
    prelude = parts.prelude_forward(ids, context)
    return parts.endpoint(prelude, parts.draw_initial_state(context.position_ids, None, prelude), context)


def contraction_at(model: LoopedForCausalLM, ids: Tensor, endpoint: Tensor) -> Contraction:
    """The eigenvalues that decide whether the recurrence settles, at these rows' endpoint states."""
    parts = model.model
    context = PaddedContext(model.config, torch.ones_like(ids), dtype=model.dtype)
    with torch.no_grad():
        prelude = parts.prelude_forward(ids, context)
    z = endpoint.detach().requires_grad_(True)
    with torch.enable_grad():
        f_z = parts.recur(z, prelude, context)
    start = torch.randn(z.shape, generator=torch.Generator().manual_seed(0)).to(z)
    eigenvalues = dominant_eigenvalue(lambda v: torch.autograd.grad(f_z, z, v, retain_graph=True)[0], start)
    return summarize_eigenvalues(eigenvalues.tolist())


def summarize_eigenvalues(eigenvalues: Sequence[complex]) -> Contraction:
    worst = max(eigenvalues, key=abs)
    kinds = [behaviour(one) for one in eigenvalues]
    return Contraction(
        factor=float(torch.tensor([abs(one) for one in eigenvalues]).quantile(0.5)),
        worst=abs(worst),
        real=worst.real,
        imaginary=abs(worst.imag),
        shares={kind: kinds.count(kind) / len(kinds) for kind in BEHAVIOURS},
    )
