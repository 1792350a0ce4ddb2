"""Fixed points of a map z -> F(z; e): iteration, convergence measures, gradient estimators.

Knows nothing of language models or reinforcement learning.
"""

from loop_rl.fixed_point.endpoint import endpoint_gradient
from loop_rl.fixed_point.estimators import (
    KINDS,
    Estimator,
    FullBPTT,
    Recompute,
    Reuse,
    TruncatedBPTT,
    parse_estimator,
    rank,
)
from loop_rl.fixed_point.iteration import convergence_depth, iterate, iterate_to_tolerance, residual
from loop_rl.fixed_point.series import Implicit, Neumann, row_norms

__all__ = [
    "KINDS",
    "Estimator",
    "FullBPTT",
    "Implicit",
    "Neumann",
    "Recompute",
    "Reuse",
    "TruncatedBPTT",
    "convergence_depth",
    "endpoint_gradient",
    "iterate",
    "iterate_to_tolerance",
    "parse_estimator",
    "rank",
    "residual",
    "row_norms",
]
