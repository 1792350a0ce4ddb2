"""What a model's measurements advise: which estimator, how many terms, which depth, whether to share terminal KV."""

import math

from loop_rl.diagnosis.gradients import GradientRow
from loop_rl.diagnosis.measure import Diagnosis
from loop_rl.fixed_point import FullBPTT, parse_estimator

#: a gradient this close in direction to full backpropagation's is taken for as good
GOOD_COSINE = 0.98
#: below this, an estimator is advised against
POOR_COSINE = 0.9
#: nats per token; a shallower depth whose loss is within it of the best is preferred
LOSS_SLACK = 0.005
#: relative perplexity that terminal sharing may cost
SAFE_PENALTY, BEARABLE_PENALTY = 0.01, 0.05
#: an eigenvalue past this modulus is an expansion; between 1 and it, the endpoint is on the edge
EXPANDING = 1.02
#: residual of nine tokens in ten at the endpoint, past which it is not called a fixed point
SETTLED_RESIDUAL = 0.05


def core_share(name: str, depth: int) -> float | None:
    """An update's core cost as a share of full BPTT's; None for an estimator whose cost isn't known beforehand."""
    cost = parse_estimator(name).cost(depth)
    return None if cost is None else cost / FullBPTT().cost(depth)


def choose_estimator(rows: list[GradientRow], depth: int, allow_reuse: bool) -> GradientRow | None:
    """The cheapest estimator with a good cosine, else the one with the best; None if there is none to choose from.

    One whose cost isn't known beforehand is a reference, and not chosen.
    """
    able = []
    for row in rows:
        estimator = parse_estimator(row.estimator)
        cost = estimator.cost(depth)
        if cost is not None and (allow_reuse or not estimator.needs_states) and math.isfinite(row.cosine):
            able.append((cost, row))
    good = [(cost, row.error, row) for cost, row in able if row.cosine >= GOOD_COSINE]
    if good:
        return min(good, key=lambda one: one[:2])[2]
    return max((row for _, row in able), key=lambda row: row.cosine, default=None)


def choose_depth(loss: dict[int, float]) -> int | None:
    """The smallest depth whose loss is within LOSS_SLACK of the best; None if no loss is finite."""
    finite = {depth: value for depth, value in loss.items() if math.isfinite(value)}
    best = min(finite.values(), default=math.nan)
    return min((depth for depth, value in finite.items() if value <= best + LOSS_SLACK), default=None)


def advise(diagnosis: Diagnosis) -> str:
    """One paragraph, drawn from the metrics."""
    return " ".join([_about_gradient(diagnosis), _about_depth(diagnosis), _about_sharing(diagnosis)])


def _about_gradient(d: Diagnosis) -> str:
    shares, worst = d.contraction.shares, d.contraction.worst
    if worst >= EXPANDING:
        kind = "diverges" if shares["diverges"] else "oscillates"
        what = f"Don't reuse rollout states: the recurrence {kind} at its endpoint (largest eigenvalue {worst:.2f})"
        if kind == "oscillates":
            what += ", so the Neumann series does not converge, though a damped iteration would"
        else:
            what += ", so it has no fixed point to stand in for the trajectory and the Neumann series grows"
        best = choose_estimator(d.gradients, d.depth, allow_reuse=False)
        if best is not None and best.cosine >= GOOD_COSINE:
            return f"{what}; use {best.estimator} ({_closeness(best, d.depth)})."
        return f"{what}; use full_bptt."
    best = choose_estimator(d.gradients, d.depth, allow_reuse=True)
    assert best is not None
    settled = d.residual[1] <= SETTLED_RESIDUAL
    state = f"the endpoint at depth {d.depth} {'is' if settled else 'is not yet'} close to a fixed point"
    state += f" (residual {d.residual[1]:.1%} at the 90 % quantile, eigenvalue {worst:.2f})"
    if worst >= 1:
        state += "; it is on the edge of settling, so more terms or recurrences than measured here are no help"
    close = _closeness(best, d.depth)
    if best.cosine < POOR_COSINE:
        return f"No cheap estimator is close to full BPTT here: {state}, and the best, {best.estimator}, has {close}."
    if best.cosine < GOOD_COSINE:
        return f"Use {best.estimator} with care: {state}; it has {close}, the best of those measured."
    return f"Use {best.estimator}: {state}, and it has {close}."


def _closeness(row: GradientRow, depth: int) -> str:
    return f"cosine {row.cosine:.3f} to full BPTT at {core_share(row.estimator, depth):.0%} of its core cost"


def _about_depth(d: Diagnosis) -> str:
    depth = choose_depth(d.loss)
    if depth is None:
        return "No depth gave a finite loss."
    best = min(value for value in d.loss.values() if math.isfinite(value))
    deepest = max(d.loss)
    text = (
        f"Depth {depth} is enough: its loss {d.loss[depth]:.3f} is within {LOSS_SLACK:g} nats of the best ({best:.3f})."
    )
    if not math.isfinite(d.loss[deepest]) or d.loss[deepest] > best + 0.05:
        text += f" Don't go deeper than needed: at depth {deepest} the loss is {d.loss[deepest]:.3f}."
    return text


def _about_sharing(d: Diagnosis) -> str:
    penalty = d.sharing.penalty
    told = f"it changes perplexity by {penalty:+.2%} at depth {d.depth}"
    if penalty <= SAFE_PENALTY:
        return f"Terminal KV sharing is safe: {told}."
    if penalty <= BEARABLE_PENALTY:
        return f"Terminal KV sharing has a price: {told}."
    return f"Don't share terminal KV: {told}."
