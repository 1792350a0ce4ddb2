"""When a token leaves the loop: the distribution over recurrences that an exit gate gives, and a threshold on it."""

import torch
from torch import Tensor


def exit_distribution(gate_logits: Tensor) -> Tensor:
    """Probability of leaving after each recurrence: sigmoid(logit_r) of what remains; the last takes the rest.

    gate_logits [R, ...] -> [..., R], which sums to 1.
    """
    leave = torch.sigmoid(gate_logits)
    remaining = torch.cumprod(1.0 - leave, dim=0)
    before = torch.cat((torch.ones_like(remaining[:1]), remaining[:-1]))
    return torch.cat((leave[:-1] * before[:-1], before[-1:])).movedim(0, -1)


def exit_recurrence(distribution: Tensor, threshold: float) -> Tensor:
    """Index (from 0) of the first recurrence whose cumulative probability reaches the threshold; the last one at 1.

    A gate may saturate, so that the sum reaches 1 early by rounding; a threshold of 1 means the whole depth.

    [..., R] -> int64 [...].
    """
    last = distribution.shape[-1] - 1
    if threshold >= 1.0:
        return torch.full(distribution.shape[:-1], last, device=distribution.device)
    reached = distribution.cumsum(-1) >= threshold
    reached[..., last] = True
    return reached.to(torch.int8).argmax(-1)
