"""Tables and plots from run folders."""

from loop_rl.report.evals import evaluations, lines, render_evaluations
from loop_rl.report.plot import plot
from loop_rl.report.runs import TEXT_KINDS, RunLog, read_runs
from loop_rl.report.table import BEFORE, ComparisonRow, comparison, render
from loop_rl.report.text_runs import render_text_runs, text_runs

__all__ = [
    "BEFORE",
    "TEXT_KINDS",
    "ComparisonRow",
    "RunLog",
    "comparison",
    "evaluations",
    "lines",
    "plot",
    "read_runs",
    "render",
    "render_evaluations",
    "render_text_runs",
    "text_runs",
]
