"""`eval`: pass@1 and pass@k."""

from __future__ import annotations

import argparse
import json

from loop_rl.commands.arguments import not_negative, positive, quiet, set_argument, temperature
from loop_rl.commands.command import Command
from loop_rl.errors import UserError


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "target", metavar="TARGET", help="a run folder, a model's folder or hub id, embedded, or a recipe"
    )
    parser.add_argument(
        "--data", nargs="+", metavar="NAME", help="data sets or .jsonl files; by default the recipe's own and eval.data"
    )
    parser.add_argument("--samples", type=positive, help="completions per question; by default the recipe's (8)")
    parser.add_argument("--temperature", type=temperature, help="0 is greedy; by default the recipe's (1)")
    parser.add_argument("--greedy", action="store_true", help="one sample, always the likeliest token")
    parser.add_argument("--size", type=positive, metavar="N", help="questions of each data set; all by default")
    parser.add_argument("--data-folder", metavar="FOLDER", help="local data sets (otherwise LOOP_RL_DATA)")
    parser.add_argument(
        "--workers", type=not_negative, metavar="N", help="processes that sample; 0 or 1, the default: this one"
    )
    parser.add_argument(
        "--out", metavar="FOLDER", help="where the results go; by default the run's folder, or evals/MODEL"
    )
    parser.add_argument("--format", choices=("table", "json"), default="table", help="output (default: table)")
    set_argument(parser)


def run(arguments: argparse.Namespace) -> None:
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


COMMAND = Command(
    "eval",
    "pass@1 and pass@k on held-out questions.",
    "eval runs/mine --data gsm8k --size 200",
    arguments,
    run,
    resumes="again",
)
