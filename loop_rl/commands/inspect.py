"""`inspect`: what a model is made of."""

from __future__ import annotations

import argparse
import json

from loop_rl.commands.arguments import positive, recurrences
from loop_rl.commands.command import Command


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="PATH", help="a run, a model's folder or hub id, embedded, or a config.json")
    parser.add_argument("--batch", type=positive, default=1, help="rows that memory is counted for (default: 1)")
    parser.add_argument("--length", type=positive, default=1024, help="tokens of a row (default: 1024)")
    parser.add_argument("--depth", type=recurrences, help="recurrences; by default the model's own")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), help="type in memory (default: that of the files)")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="output (default: text)")


def run(arguments: argparse.Namespace) -> None:
    from loop_rl.sizes.inspect import as_text, inspect

    found = inspect(arguments.path, arguments.batch, arguments.length, arguments.depth, arguments.dtype)
    print(json.dumps(found, indent=2) + "\n" if arguments.format == "json" else as_text(found), end="")


COMMAND = Command(
    "inspect",
    "What a model is made of and what it needs; nothing is loaded.",
    "inspect ByteDance/Ouro-1.4B --batch 64 --length 1024",
    arguments,
    run,
)
