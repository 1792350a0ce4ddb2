"""`diagnose`: fixed points, and what they allow."""

from __future__ import annotations

import argparse

from loop_rl.commands.arguments import positive, quiet, recurrences, sizes
from loop_rl.commands.command import Command


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="a run folder, a model's folder or hub id, or embedded")
    parser.add_argument(
        "--data", default="arithmetic", metavar="NAME", help="a data set or .jsonl file to read (default: arithmetic)"
    )
    parser.add_argument("--data-folder", metavar="FOLDER", help="local data sets (otherwise LOOP_RL_DATA)")
    parser.add_argument("--depth", type=recurrences, help="recurrences; by default the model's own")
    sizes(parser, rows=(8, "rows of text"), length=(128, "tokens of a row"))
    parser.add_argument(
        "--threshold", type=float, default=0.02, help="relative change below which a token has settled (default: 0.02)"
    )
    parser.add_argument("--threads", type=positive, help="CPU threads; by default torch's choice")
    parser.add_argument("--out", metavar="FOLDER", help="also write diagnosis.json and diagnosis.png there")
    parser.add_argument("--format", choices=("table", "json"), default="table", help="output (default: table)")


def run(arguments: argparse.Namespace) -> None:
    from loop_rl.diagnosis.running import run_diagnose

    quiet()
    table, as_json = run_diagnose(
        arguments.model,
        arguments.data,
        arguments.data_folder,
        arguments.depth,
        arguments.rows,
        arguments.length,
        arguments.threshold,
        arguments.threads,
        arguments.out,
    )
    print(as_json if arguments.format == "json" else table, end="")


COMMAND = Command(
    "diagnose",
    "Whether a model has fixed points, and which estimator, depth and cache they allow.",
    "diagnose runs/mine --data gsm8k --out diagnosis",
    arguments,
    run,
)
