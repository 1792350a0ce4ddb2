"""Fixed points of a map z -> F(z; e): iteration, convergence measures, gradient estimators.

Knows nothing of language models or reinforcement learning.
"""

from loop_rl.fixed_point.estimators import Estimator, parse_estimator
from loop_rl.fixed_point.iteration import convergence_depth, iterate, iterate_to_tolerance, residual
from loop_rl.fixed_point.neumann import endpoint_gradient, implicit_sum, neumann_sum, row_norms

__all__ = [
    "Estimator",
    "convergence_depth",
    "endpoint_gradient",
    "implicit_sum",
    "iterate",
    "iterate_to_tolerance",
    "neumann_sum",
    "parse_estimator",
    "residual",
    "row_norms",
]
