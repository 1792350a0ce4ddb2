"""`retrofit`: a looped model out of an ordinary one's layers."""

from __future__ import annotations

import argparse
import re

from loop_rl.commands.arguments import positive, quiet, recurrences
from loop_rl.commands.command import Command


def arguments(parser: argparse.ArgumentParser) -> None:
    none = range(0)
    parser.add_argument("source", metavar="SOURCE", help="a Llama or Mistral model: a folder or a hub id")
    parser.add_argument("out", metavar="OUT", help="the new model's folder")
    parser.add_argument(
        "--prelude",
        type=layers,
        default=none,
        metavar="A-B",
        help="layers before the loop, counted from 0 (default: none)",
    )
    parser.add_argument("--core", type=layers, required=True, metavar="C-D", help="layers that every recurrence runs")
    parser.add_argument(
        "--coda", type=layers, default=none, metavar="E-F", help="layers after the loop (default: none)"
    )
    parser.add_argument("--depth", type=recurrences, default=4, help="recurrences of a forward pass (default: 4)")
    parser.add_argument(
        "--injection",
        default="parcae_no_norm",
        help="how the prelude's output enters a recurrence: parcae_no_norm, linear, ortho, deq_qkv or none "
        "(default: parcae_no_norm)",
    )
    parser.add_argument(
        "--data",
        default="arithmetic",
        metavar="NAME",
        help="a data set or .jsonl file to measure on (default: arithmetic)",
    )
    parser.add_argument("--data-folder", metavar="FOLDER", help="local data sets (otherwise LOOP_RL_DATA)")
    parser.add_argument("--rows", type=positive, default=8, help="rows of text to measure on (default: 8)")
    parser.add_argument("--length", type=positive, default=128, help="tokens of a row (default: 128)")
    parser.add_argument("--threads", type=positive, help="CPU threads; by default torch's choice")


def layers(text: str) -> range:
    """`3-5` as the layers 3, 4 and 5; `3` as that one."""
    match = re.fullmatch(r"(\d+)(?:-(\d+))?", text)
    if match is None or int(match[2] or match[1]) < int(match[1]):
        raise argparse.ArgumentTypeError(f"must be layers such as 0-5 or 6, got {text}")
    return range(int(match[1]), int(match[2] or match[1]) + 1)


def run(arguments: argparse.Namespace) -> None:
    from loop_rl.diagnosis.retrofitting import run_retrofit
    from loop_rl.models.retrofit import Cut

    quiet()
    report = run_retrofit(
        arguments.source,
        arguments.out,
        Cut(arguments.prelude, arguments.core, arguments.coda),
        arguments.depth,
        arguments.injection,
        arguments.data,
        arguments.data_folder,
        arguments.rows,
        arguments.length,
        arguments.threads,
    )
    print(report.lines())


COMMAND = Command(
    "retrofit",
    "Make a looped model of an ordinary one, out of its layers.",
    "retrofit HuggingFaceTB/SmolLM2-135M looped --prelude 0-12 --core 13-16 --coda 17-29",
    arguments,
    run,
)
