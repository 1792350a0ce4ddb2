"""How close each gradient estimator comes to full backpropagation, and to the implicit gradient, on a text."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from loop_rl.fixed_point import Estimator, FullBPTT, Implicit, Neumann, Reuse, TruncatedBPTT
from loop_rl.learner.language import next_token_loss
from loop_rl.models import LoopedForCausalLM

TERMS = 8


@dataclass(frozen=True)
class GradientRow:
    """One estimator: cosine and relative error |g - g'| / |g'| of the whole gradient against each reference.

    None where the reference doesn't exist: the implicit gradient of a map that doesn't contract.
    """

    estimator: str
    cosine: float
    error: float
    implicit_cosine: float | None
    implicit_error: float | None


def compare_gradients(
    model: LoopedForCausalLM,
    ids: Tensor,
    depth: int,
    endpoint: Tensor,
    contracts: bool,
    progress: Callable[[str], None] = lambda name: None,
) -> list[GradientRow]:
    """Neumann sums of 1..8 terms, with the tail from 2 on, at the endpoint; truncated BPTT of the same windows.

    Args:
        ids: int64 [rows, tokens], unpadded. endpoint: z^R of these rows at `depth`, as a rollout would have saved it.
        contracts: whether the implicit gradient is to be solved for.
    """
    full = _gradient(model, ids, FullBPTT(), depth, endpoint)
    whole = Reuse(Implicit())
    implicit = _gradient(model, ids, whole, depth, endpoint) if contracts else None
    estimators: list[Estimator] = [TruncatedBPTT(back) for back in range(1, min(depth, TERMS + 1))]
    estimators += [Reuse(Neumann(terms)) for terms in range(1, TERMS + 1)]
    estimators += [Reuse(Neumann(terms, tail=True)) for terms in range(2, TERMS + 1)]
    rows = []
    for estimator in estimators:
        progress(estimator.name)
        gradient = _gradient(model, ids, estimator, depth, endpoint)
        against = compare(gradient, implicit) if implicit is not None else (None, None)
        rows.append(GradientRow(estimator.name, *compare(gradient, full), *against))
    if implicit is not None:
        rows.append(GradientRow(whole.name, *compare(implicit, full), 1.0, 0.0))
    return rows


def compare(gradient: Tensor, reference: Tensor) -> tuple[float, float]:
    """Cosine and relative error of one vector against another; (0, 1) for a reference or a gradient of zeros."""
    scale = float(reference.norm())
    if scale == 0 or float(gradient.norm()) == 0:
        return 0.0, 1.0
    cosine = torch.nn.functional.cosine_similarity(gradient, reference, dim=0)
    return float(cosine), float((gradient - reference).norm()) / scale


def _gradient(model: LoopedForCausalLM, ids: Tensor, estimator: Estimator, depth: int, endpoint: Tensor) -> Tensor:
    """The gradient of the mean loss as one vector, float64 [parameters]; the parameters' own .grad stays untouched."""
    loss = next_token_loss(model, ids, ids, estimator, depth, states=endpoint if estimator.needs_states else None)
    parameters = [p for p in model.parameters() if p.requires_grad]
    grads = torch.autograd.grad(loss / ids[:, 1:].numel(), parameters, allow_unused=True)
    return torch.cat(
        [(torch.zeros_like(p) if g is None else g).flatten().double() for p, g in zip(parameters, grads, strict=True)]
    )
