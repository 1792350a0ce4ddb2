"""`eval` and `report`."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from loop_rl.commands.arguments import not_negative, positive, quiet, set_argument, temperature, verb
from loop_rl.errors import UserError


def register(verbs: Any) -> None:
    """Adds the commands to the command line."""
    evaluation = verb(
        verbs, "eval", run_eval, "pass@1 and pass@k on held-out questions.", "eval runs/mine --data gsm8k --size 200"
    )
    evaluation.add_argument(
        "target", metavar="TARGET", help="a run folder, a model's folder or hub id, embedded, or a recipe"
    )
    evaluation.add_argument(
        "--data", nargs="+", metavar="NAME", help="data sets or .jsonl files; by default the recipe's own and eval.data"
    )
    evaluation.add_argument("--samples", type=positive, help="completions per question; by default the recipe's (8)")
    evaluation.add_argument("--temperature", type=temperature, help="0 is greedy; by default the recipe's (1)")
    evaluation.add_argument("--greedy", action="store_true", help="one sample, always the likeliest token")
    evaluation.add_argument("--size", type=positive, metavar="N", help="questions of each data set; all by default")
    evaluation.add_argument("--data-folder", metavar="FOLDER", help="local data sets (otherwise LOOP_RL_DATA)")
    evaluation.add_argument(
        "--workers", type=not_negative, metavar="N", help="processes that sample; 0 or 1, the default: this one"
    )
    evaluation.add_argument(
        "--out", metavar="FOLDER", help="where the results go; by default the run's folder, or evals/MODEL"
    )
    evaluation.add_argument("--format", choices=("table", "json"), default="table", help="output (default: table)")
    set_argument(evaluation)

    report = verb(
        verbs,
        "report",
        run_report,
        "Compare runs: what they learned, and what an update cost; of runs on text, their losses.",
        "report runs/my_* --plot all.png",
    )
    report.add_argument(
        "runs", nargs="+", metavar="RUN", help="run folders, or folders of them; runs on text only where none is of RL"
    )
    report.add_argument(
        "--evals", action="store_true", help="every evaluation in the folders instead, also of models (evals/MODEL)"
    )
    report.add_argument("--baseline", metavar="NAME", help="estimator that speed-ups refer to (default: full_bptt)")
    report.add_argument(
        "--format", choices=("table", "md", "csv", "json"), default="table", help="output (default: table)"
    )
    report.add_argument("--plot", metavar="FILE", help="also draw the comparison: .png, .svg or .pdf")


def run_eval(arguments: argparse.Namespace) -> None:
    from loop_rl.evaluation.running import run_eval
    from loop_rl.report import lines, render_evaluations

    samples, temperature = arguments.samples, arguments.temperature
    if arguments.greedy:
        if samples is not None or temperature is not None:
            raise UserError("--greedy is --samples 1 --temperature 0; leave those two out")
        samples, temperature = 1, 0
    quiet()
    given = {
        "eval.samples": samples,
        "eval.temperature": temperature,
        "data.eval_size": arguments.size,
        "data.folder": arguments.data_folder,
        "rollout.workers": arguments.workers,
    }
    overrides = arguments.set + [f"{key}={json.dumps(value)}" for key, value in given.items() if value is not None]
    rows = run_eval(arguments.target, arguments.data or [], overrides, arguments.out)
    text = json.dumps(rows, indent=2) + "\n" if arguments.format == "json" else render_evaluations(lines(rows))
    print(text, end="")


def run_report(arguments: argparse.Namespace) -> None:
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
