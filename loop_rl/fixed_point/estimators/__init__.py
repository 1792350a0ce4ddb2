"""The gradient estimators by name (DESIGN: mathematics).

| name | endpoint | gradient |
|---|---|---|
| full_bptt | replayed from z0 | through all R recurrences |
| truncated_bptt{b} | replayed from z0 | through the last b |
| recompute_neumann{k}[_tail] | replayed without gradient | k Neumann terms at z^R |
| reuse_neumann{k}[_tail] | saved by the rollout | k Neumann terms at z^R |
| recompute_implicit, reuse_implicit | as above | the whole series, to tolerance |
"""

from loop_rl.fixed_point.estimators.at_endpoint import Recompute, Reuse
from loop_rl.fixed_point.estimators.bptt import FullBPTT, TruncatedBPTT
from loop_rl.fixed_point.estimators.estimator import Estimator

#: every kind, in the order of tables: controls first, from the most expensive, then reuse
KINDS: tuple[type[Estimator], ...] = (FullBPTT, TruncatedBPTT, Recompute, Reuse)

EXAMPLES = "full_bptt, truncated_bptt4, recompute_neumann4, reuse_neumann4, reuse_neumann3_tail, reuse_implicit"


def parse_estimator(name: str) -> Estimator:
    """The estimator of this name.

    Raises:
        ValueError: not a name, with examples; or a name that asks for what can't be.
    """
    for kind in KINDS:
        if match := kind.pattern.fullmatch(name):
            return kind.parsed(match)
    raise ValueError(f"unknown estimator {name!r}; expected e.g. {EXAMPLES}")


def rank(estimator: Estimator) -> int:
    """Its kind's place in tables."""
    return KINDS.index(type(estimator))


__all__ = [
    "KINDS",
    "Estimator",
    "FullBPTT",
    "Recompute",
    "Reuse",
    "TruncatedBPTT",
    "parse_estimator",
    "rank",
]
