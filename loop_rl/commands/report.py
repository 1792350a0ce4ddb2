"""`report`: runs compared."""

from __future__ import annotations

import argparse
import sys

from loop_rl.commands.command import Command
from loop_rl.errors import UserError


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "runs", nargs="+", metavar="RUN", help="run folders, or folders of them; runs on text only where none is of RL"
    )
    parser.add_argument(
        "--evals", action="store_true", help="every evaluation in the folders instead, also of models (evals/MODEL)"
    )
    parser.add_argument("--baseline", metavar="NAME", help="estimator that speed-ups refer to (default: full_bptt)")
    parser.add_argument(
        "--format", choices=("table", "md", "csv", "json"), default="table", help="output (default: table)"
    )
    parser.add_argument("--plot", metavar="FILE", help="also draw the comparison: .png, .svg or .pdf")


def run(arguments: argparse.Namespace) -> None:
    from loop_rl.report import (
        TEXT_KINDS,
        comparison,
        evaluations,
        plot,
        read_runs,
        render,
        render_evaluations,
        render_text_runs,
        text_runs,
    )

    if arguments.evals:
        _refuse_options(arguments)
        rows, problems = evaluations(arguments.runs)
        _tell(problems)
        print(render_evaluations(rows, arguments.format), end="")
        return
    runs, problems = read_runs(arguments.runs)
    of_rl = [run for run in runs if run.kind == "train"]
    of_text = [run for run in runs if run.kind in TEXT_KINDS]
    if of_rl:
        _tell(
            problems + [f"left out: {run.folder}, a run of {run.kind}: report it without runs of RL" for run in of_text]
        )
        print(render(comparison(of_rl, arguments.baseline), arguments.format), end="")
        if arguments.plot is not None:
            print(f"plot: {plot(of_rl, arguments.plot, arguments.baseline)}", file=sys.stderr)
        return
    _refuse_options(arguments)
    _tell(problems)
    print(render_text_runs(text_runs(of_text), arguments.format), end="")


def _refuse_options(arguments: argparse.Namespace) -> None:
    for option in ("baseline", "plot"):
        if getattr(arguments, option) is not None:
            raise UserError(f"--{option} belongs to the comparison of runs of RL; leave it out")


def _tell(problems: list[str]) -> None:
    for problem in problems:
        print(f"loop-rl: {problem}", file=sys.stderr)


COMMAND = Command(
    "report",
    "Compare runs: what they learned, and what an update cost; of runs on text, their losses.",
    "report runs/my_* --plot all.png",
    arguments,
    run,
)
