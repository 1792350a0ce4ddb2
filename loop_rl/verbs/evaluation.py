"""`eval` and `report`."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from loop_rl.errors import UserError
from loop_rl.verbs.arguments import not_negative, positive, quiet, set_argument, temperature, verb


def register(verbs: Any) -> None:
    """Adds the verbs to the command line."""
    evaluation = verb(
        verbs, "eval", run_eval, "pass@1 and pass@k on held-out questions.", "eval runs/mine --data gsm8k --size 200"
    )
    evaluation.add_argument(
        "target", metavar="TARGET", help="a run folder, a model's folder or hub id, embedded, or a recipe"
    )
    evaluation.add_argument(
        "--data", nargs="+", metavar="NAME", help="data sets or .jsonl files; by default the recipe's own and eval.data"
    )
    evaluation.add_argument("--samples", type=positive, help="completions a question; by default the recipe's (8)")
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
    evaluation.add_argument("--format", choices=("table", "json"), default="table")
    set_argument(evaluation)

    report = verb(
        verbs,
        "report",
        run_report,
        "Compare runs: what they learned, what an update cost; of pretraining, their fixed points.",
        "report runs/my_* --plot all.png",
    )
    report.add_argument(
        "runs", nargs="+", metavar="RUN", help="run folders, or folders of them; all of RL, or all of pretraining"
    )
    report.add_argument(
        "--evals", action="store_true", help="every evaluation in the folders instead, also of models (evals/MODEL)"
    )
    report.add_argument("--baseline", metavar="NAME", help="estimator that speed-ups refer to (default: full_bptt)")
    report.add_argument("--format", choices=("table", "md", "csv", "json"), default="table")
    report.add_argument("--plot", metavar="FILE", help="also draw the comparison: .png, .svg or .pdf")


def run_eval(arguments: argparse.Namespace) -> None:
    from loop_rl.commands.evaluation import run_eval
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
        by_kind,
        comparison,
        evaluations,
        plot,
        render,
        render_evaluations,
        render_shaping,
        shaping,
    )

    kinds = None if arguments.evals else by_kind(arguments.runs)
    if kinds is None or not kinds["train"]:
        for option in ("baseline", "plot"):
            if getattr(arguments, option) is not None:
                raise UserError(f"--{option} belongs to the comparison of runs of RL; leave it out")
    if kinds is None:
        print(render_evaluations(evaluations(arguments.runs), arguments.format), end="")
        return
    runs = kinds["train"] or kinds["pretrain"]
    if not runs:
        raise UserError("no run of loop-rl train or pretrain in these folders; --evals shows evaluations of models")
    left_out = sorted(str(run) for some in kinds.values() if some is not runs for run in some)
    if left_out:
        print(f"loop-rl: not runs of the same kind, left out: {', '.join(left_out)}", file=sys.stderr)
    if not kinds["train"]:
        print(render_shaping(shaping(runs), arguments.format), end="")
        return
    print(render(comparison(runs, arguments.baseline), arguments.format), end="")
    if arguments.plot is not None:
        print(f"plot: {plot(runs, arguments.plot, arguments.baseline)}", file=sys.stderr)
