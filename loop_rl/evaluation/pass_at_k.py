"""pass@k without bias, from n samples of a question of which c are correct (Chen et al., 2021, equation 1)."""

import math


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
