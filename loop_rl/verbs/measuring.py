"""`bench`."""

from __future__ import annotations

import argparse
import json
from typing import Any

from loop_rl.verbs.arguments import Help, positive, verb


def register(verbs: Any) -> None:
    """Adds the verbs to the command line."""
    bench = verbs.add_parser("bench", help="Measure speed on this machine.", formatter_class=Help)
    what = bench.add_subparsers(dest="what", required=True, metavar="WHAT")
    update = verb(
        what,
        "update",
        run_bench_update,
        "Time the estimators in turn on one batch.",
        "bench update --depth 32 --runs 3",
    )
    for name, default, text in (
        ("width", 512, "width of the states"),
        ("depth", 6, "recurrences"),
        ("batch", 4, "rows of the batch"),
        ("length", 256, "tokens of a row"),
        ("runs", 5, "timed repetitions of each"),
    ):
        update.add_argument(f"--{name}", type=positive, default=default, help=f"{text} (default: {default})")
    update.add_argument("--format", choices=("table", "json"), default="table")


def run_bench_update(arguments: argparse.Namespace) -> None:
    from loop_rl.commands.bench import table
    from loop_rl.learner.bench import bench_update

    result = bench_update(
        width=arguments.width,
        depth=arguments.depth,
        batch=arguments.batch,
        length=arguments.length,
        runs=arguments.runs,
    )
    print(json.dumps(result, indent=2) + "\n" if arguments.format == "json" else table(result["rows"]), end="")
