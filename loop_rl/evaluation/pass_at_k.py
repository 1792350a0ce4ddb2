"""pass@k without bias, from n samples of a question of which c are correct (Chen et al., 2021, equation 1)."""

import math
from collections.abc import Sequence


def pass_at_k(samples: int, correct: int, k: int) -> float:
    """Chance that k of the samples, drawn without replacement, hold a correct one: 1 − C(n−c, k)/C(n, k).

    Its mean over draws of n samples is 1 − (1 − p)^k; the obvious 1 − (1 − c/n)^k is biased. Exact in integers.
    Raises ValueError unless 0 <= correct <= samples and 1 <= k <= samples.
    """
    if not 0 <= correct <= samples:
        raise ValueError(f"{correct} correct of {samples} samples")
    if not 1 <= k <= samples:
        raise ValueError(f"pass@{k} can't be estimated from {samples} samples")
    draws = math.comb(samples, k)
    return (draws - math.comb(samples - correct, k)) / draws


def mean_and_error(values: Sequence[float]) -> tuple[float | None, float | None]:
    """The mean over questions and its standard error, s/√n with n − 1 in s; None where there are too few values.

    Questions are the independent draws: samples of one question are alike, so they are averaged first.
    """
    if not values:
        return None, None
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return mean, None
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return mean, math.sqrt(variance / len(values))
