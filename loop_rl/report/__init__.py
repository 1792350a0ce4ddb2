"""Tables and plots from run folders."""

from loop_rl.report.evals import evaluations, lines, render_evaluations
from loop_rl.report.plot import plot
from loop_rl.report.shaping import by_kind, render_shaping, shaping
from loop_rl.report.table import BEFORE, Row, comparison, render

__all__ = [
    "BEFORE",
    "Row",
    "by_kind",
    "comparison",
    "evaluations",
    "lines",
    "plot",
    "render",
    "render_evaluations",
    "render_shaping",
    "shaping",
]
