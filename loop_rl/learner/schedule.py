"""The learning rate over training: warm-up, stable, decay."""

import math


def wsd_factor(
    step: int, total: int, warmup_fraction: float = 0.05, decay_fraction: float = 0.1, floor: float = 0.1
) -> float:
    """Multiplier of the peak learning rate for update `step` (0-based) of `total`.

    Linear over the first warmup_fraction of updates, one in the middle, a cosine over the last decay_fraction that
    reaches `floor` on the last update (the paper's schedule). The first update already moves the weights. Updates
    past `total` stay at the floor. Raises ValueError when the phases overlap or the step is negative.
    """
    if step < 0 or total < 1:
        raise ValueError(f"step {step} of {total}")
    if warmup_fraction < 0 or decay_fraction < 0 or warmup_fraction + decay_fraction > 1:
        raise ValueError(f"warmup_fraction {warmup_fraction} and decay_fraction {decay_fraction} must not overlap")
    warmup, decay = round(warmup_fraction * total), round(decay_fraction * total)
    if step < warmup:
        return (step + 1) / warmup
    if decay == 0 or step < total - decay:
        return 1.0
    progress = min((step + 1 - (total - decay)) / decay, 1.0)
    return floor + (1.0 - floor) * 0.5 * (1.0 + math.cos(math.pi * progress))


def decay_factor(step: int, total: int, warmup: int, kind: str) -> float:
    """Factor of the learning rate at 0-based update `step`: linear warm-up, then constant, linear or cosine to 0."""
    if step < warmup:
        return (step + 1) / warmup
    progress = (step - warmup) / max(total - warmup, 1)
    if kind == "linear":
        return 1.0 - progress
    if kind == "cosine":
        return 0.5 * (1.0 + math.cos(math.pi * progress))
    return 1.0
