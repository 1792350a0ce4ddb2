"""`bench`: speed on this machine."""

from __future__ import annotations

import argparse
import json

from loop_rl.commands.arguments import positive, quiet, recurrences, sizes
from loop_rl.commands.command import Command


def _update_arguments(parser: argparse.ArgumentParser) -> None:
    sizes(
        parser,
        width=(512, "width of the states"),
        depth=(6, "recurrences"),
        batch=(4, "rows of the batch"),
        length=(256, "tokens of a row"),
        runs=(5, "timed repetitions of each"),
    )
    parser.add_argument("--format", choices=("table", "json"), default="table", help="output (default: table)")


def _run_update(arguments: argparse.Namespace) -> None:
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


def _decode_arguments(parser: argparse.ArgumentParser) -> None:
    sizes(
        parser, batch=(32, "rows decoded at once"), prompt=(512, "tokens of a prompt"), tokens=(32, "tokens to decode")
    )
    _model_and_format(parser, "a run folder, a model's folder or hub id, or embedded")


def _run_decode(arguments: argparse.Namespace) -> None:
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


def _prefill_arguments(parser: argparse.ArgumentParser) -> None:
    sizes(parser, batch=(8, "prompts read at once"), length=(1024, "tokens of a prompt"))
    parser.add_argument(
        "--data", default="arithmetic", metavar="NAME", help="text that the loss is taken on (default: arithmetic)"
    )
    parser.add_argument("--data-folder", metavar="FOLDER", help="local data sets (otherwise LOOP_RL_DATA)")
    _model_and_format(parser, "a run of loop-rl distill, or a folder with a model and its student")


def _run_prefill(arguments: argparse.Namespace) -> None:
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


def _model_and_format(parser: argparse.ArgumentParser, model: str) -> None:
    parser.add_argument("model", metavar="MODEL", help=model)
    parser.add_argument("--depth", type=recurrences, help="recurrences; by default the model's own")
    sizes(parser, runs=(5, "timed repetitions of each"))
    parser.add_argument("--threads", type=positive, help="CPU threads; by default torch's choice")
    parser.add_argument("--format", choices=("table", "json"), default="table", help="output (default: table)")


COMMAND = Command(
    "bench",
    "Measure speed on this machine.",
    "bench update --depth 32 --runs 3",
    actions=(
        Command(
            "update",
            "Time the estimators in turn on one batch, in seconds per update.",
            "bench update --depth 32 --runs 3",
            _update_arguments,
            _run_update,
        ),
        Command(
            "decode",
            "Time decoding with the full and the terminal cache, in tokens per second.",
            "bench decode embedded --depth 5",
            _decode_arguments,
            _run_decode,
        ),
        Command(
            "prefill",
            "Time prefilling by the model, by fewer recurrences, by its student.",
            "bench prefill runs/distill_embedded --depth 5",
            _prefill_arguments,
            _run_prefill,
        ),
    ),
)
