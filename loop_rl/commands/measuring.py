"""`diagnose` and `bench`."""

from __future__ import annotations

import argparse
import json
from typing import Any

from loop_rl.commands.arguments import Help, positive, quiet, recurrences, verb


def register(verbs: Any) -> None:
    """Adds the commands to the command line."""
    diagnose = verb(
        verbs,
        "diagnose",
        run_diagnose,
        "Whether a model has fixed points, and which estimator, depth and cache they allow.",
        "diagnose runs/mine --data gsm8k --out diagnosis",
    )
    diagnose.add_argument("model", metavar="MODEL", help="a run folder, a model's folder or hub id, or embedded")
    diagnose.add_argument(
        "--data", default="arithmetic", metavar="NAME", help="a data set or .jsonl file to read (default: arithmetic)"
    )
    diagnose.add_argument("--data-folder", metavar="FOLDER", help="local data sets (otherwise LOOP_RL_DATA)")
    diagnose.add_argument("--depth", type=recurrences, help="recurrences; by default the model's own")
    _sizes(diagnose, rows=(8, "rows of text"), length=(128, "tokens of a row"))
    diagnose.add_argument(
        "--threshold", type=float, default=0.02, help="relative change below which a token has settled (default: 0.02)"
    )
    diagnose.add_argument("--threads", type=positive, help="CPU threads; by default torch's choice")
    diagnose.add_argument("--out", metavar="FOLDER", help="also write diagnosis.json and diagnosis.png there")
    diagnose.add_argument("--format", choices=("table", "json"), default="table", help="output (default: table)")

    summary = "Measure speed on this machine."
    example = "example:\n  loop-rl bench update --depth 32 --runs 3"
    bench = verbs.add_parser("bench", help=summary, description=summary, epilog=example, formatter_class=Help)
    what = bench.add_subparsers(dest="what", required=True, metavar="WHAT")
    update = verb(
        what,
        "update",
        run_bench_update,
        "Time the estimators in turn on one batch, in seconds per update.",
        "bench update --depth 32 --runs 3",
    )
    _sizes(
        update,
        width=(512, "width of the states"),
        depth=(6, "recurrences"),
        batch=(4, "rows of the batch"),
        length=(256, "tokens of a row"),
        runs=(5, "timed repetitions of each"),
    )
    update.add_argument("--format", choices=("table", "json"), default="table", help="output (default: table)")

    decode = verb(
        what,
        "decode",
        run_bench_decode,
        "Time decoding with the full and the terminal cache, in tokens per second.",
        "bench decode embedded --depth 5",
    )
    _sizes(
        decode, batch=(32, "rows decoded at once"), prompt=(512, "tokens of a prompt"), tokens=(32, "tokens to decode")
    )
    prefill = verb(
        what,
        "prefill",
        run_bench_prefill,
        "Time prefilling by the model, by fewer recurrences, by its student.",
        "bench prefill runs/distill_embedded --depth 5",
    )
    _sizes(prefill, batch=(8, "prompts read at once"), length=(1024, "tokens of a prompt"))
    prefill.add_argument(
        "--data", default="arithmetic", metavar="NAME", help="text that the loss is taken on (default: arithmetic)"
    )
    prefill.add_argument("--data-folder", metavar="FOLDER", help="local data sets (otherwise LOOP_RL_DATA)")
    decode.add_argument("model", metavar="MODEL", help="a run folder, a model's folder or hub id, or embedded")
    prefill.add_argument(
        "model", metavar="MODEL", help="a run of loop-rl distill, or a folder with a model and its student"
    )
    for parser in (decode, prefill):
        parser.add_argument("--depth", type=recurrences, help="recurrences; by default the model's own")
        _sizes(parser, runs=(5, "timed repetitions of each"))
        parser.add_argument("--threads", type=positive, help="CPU threads; by default torch's choice")
        parser.add_argument("--format", choices=("table", "json"), default="table", help="output (default: table)")


def _sizes(parser: argparse.ArgumentParser, **sizes: tuple[int, str]) -> None:
    """Whole numbers with their defaults and meanings."""
    for name, (default, text) in sizes.items():
        kind = recurrences if name == "depth" else positive
        parser.add_argument(f"--{name}", type=kind, default=default, help=f"{text} (default: {default})")


def run_diagnose(arguments: argparse.Namespace) -> None:
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


def run_bench_decode(arguments: argparse.Namespace) -> None:
    from loop_rl.bench.running import decode

    quiet()
    rows, table = decode(
        arguments.model,
        arguments.depth,
        arguments.batch,
        arguments.prompt,
        arguments.tokens,
        arguments.runs,
        arguments.threads,
    )
    print(json.dumps(rows, indent=2) + "\n" if arguments.format == "json" else table, end="")


def run_bench_prefill(arguments: argparse.Namespace) -> None:
    from loop_rl.bench.running import prefill

    quiet()
    rows, table = prefill(
        arguments.model,
        arguments.depth,
        arguments.batch,
        arguments.length,
        arguments.runs,
        arguments.threads,
        arguments.data,
        arguments.data_folder,
    )
    print(json.dumps(rows, indent=2) + "\n" if arguments.format == "json" else table, end="")


def run_bench_update(arguments: argparse.Namespace) -> None:
    from loop_rl.bench.running import table
    from loop_rl.bench.update import bench_update

    result = bench_update(
        width=arguments.width,
        depth=arguments.depth,
        batch=arguments.batch,
        length=arguments.length,
        runs=arguments.runs,
    )
    shown = table(result["rows"], result["learned_tokens"])
    print(json.dumps(result, indent=2) + "\n" if arguments.format == "json" else shown, end="")
