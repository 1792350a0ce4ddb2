"""From logits to a token: temperature, top-k, top-p, and one uniform number per row."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

# Logits that are turned into a distribution function at once, which takes some 30 bytes for each.
_DRAWN_AT_ONCE = 1 << 23


@dataclass(frozen=True)
class Sampling:
    """How completions are drawn. temperature 0 is greedy; top_k 0 and top_p 1 are off; depth None is the config's.

    cache: every recurrence's KV banks, or the last one's only (terminal sharing). tolerance: residual below which a
    token stops recurring, after min_depth recurrences at least and `depth` at most; None: every token uses `depth`.
    stop: strings that end a completion as an end token does. max_batch_tokens: see rollout.batches.
    """

    num_generations: int
    max_completion_length: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    depth: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    save_states: bool = True
    cache: Literal["full", "terminal"] = "full"
    tolerance: float | None = None
    min_depth: int = 1
    stop: tuple[str, ...] = ()
    max_batch_tokens: int | None = None


def truncate(probabilities: Tensor, top_k: int, top_p: float) -> Tensor:
    """Set to zero what top-k and then top-p leave out (not renormalised); [rows, vocab] -> [rows, vocab].

    Top-p keeps the smallest set of likeliest tokens whose mass reaches top_p; ties at the k-th place are all kept.
    """
    if 0 < top_k < probabilities.shape[-1]:
        kth = probabilities.topk(top_k, dim=-1).values[..., -1:]
        probabilities = torch.where(probabilities >= kth, probabilities, 0.0)
    if top_p < 1.0:
        ordered, order = probabilities.sort(dim=-1, descending=True)
        mass_before = ordered.cumsum(-1) - ordered
        ordered = torch.where(mass_before < top_p * ordered.sum(-1, keepdim=True), ordered, 0.0)
        probabilities = torch.zeros_like(probabilities).scatter(-1, order, ordered)
    return probabilities


def draw(logits: Tensor, sampling: Sampling, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """One token per row by inversion of the distribution function, of some rows at once.

    Args:
        logits: [rows, vocab]. uniform: float64 [rows] in [0, 1); a row's token depends on its own number alone.

    Returns:
        Tokens int64 [rows], and their log-probabilities float32 [rows] under the untruncated distribution at the
        sampling temperature (at temperature 1 for greedy), which is what the learner evaluates. A row that has NaN or
        infinity has no distribution: its log-probability is NaN.
    """
    rows = max(1, _DRAWN_AT_ONCE // logits.shape[-1])
    parts = [_draw(some, sampling, one) for some, one in zip(logits.split(rows), uniform.split(rows), strict=True)]
    return torch.cat([tokens for tokens, _ in parts]), torch.cat([logps for _, logps in parts])


def _draw(logits: Tensor, sampling: Sampling, uniform: Tensor) -> tuple[Tensor, Tensor]:
    logits = logits.float() if logits.dtype != torch.float64 else logits
    logps = torch.log_softmax(logits / (sampling.temperature or 1.0), dim=-1)
    if sampling.temperature == 0:
        tokens = logits.argmax(-1)
    else:
        mass = truncate(logps.exp(), sampling.top_k, sampling.top_p).double().cumsum(-1)
        whole = mass[:, -1:]
        # Below the whole mass even where the product is rounded up to it: no token without mass is drawn.
        threshold = torch.minimum(uniform.to(mass.device)[:, None] * whole, whole.nextafter(torch.zeros_like(whole)))
        tokens = torch.searchsorted(mass, threshold, right=True)[:, 0].clamp(max=logits.shape[-1] - 1)
    return tokens, logps.gather(-1, tokens[:, None])[:, 0].float()
