"""`inspect` and `convert`."""

from __future__ import annotations

import argparse
import json
from typing import Any

from loop_rl.commands.arguments import positive, quiet, recurrences, verb


def register(verbs: Any) -> None:
    """Adds the commands to the command line."""
    inspect = verb(
        verbs,
        "inspect",
        run_inspect,
        "What a model is made of and what it needs; nothing is loaded.",
        "inspect ByteDance/Ouro-1.4B --batch 64 --length 1024",
    )
    inspect.add_argument("path", metavar="PATH", help="a run, a model's folder or hub id, embedded, or a config.json")
    inspect.add_argument("--batch", type=positive, default=1, help="rows that memory is counted for (default: 1)")
    inspect.add_argument("--length", type=positive, default=1024, help="tokens of a row (default: 1024)")
    inspect.add_argument("--depth", type=recurrences, help="recurrences; by default the model's own")
    inspect.add_argument("--dtype", choices=("float32", "bfloat16"), help="type in memory (default: that of the files)")
    inspect.add_argument("--format", choices=("text", "json"), default="text", help="output (default: text)")

    convert = verb(
        verbs,
        "convert",
        run_convert,
        "Write a model in our own layout, or in that of the family it came from.",
        "convert runs/mine my-huginn --layout family",
    )
    convert.add_argument("path", metavar="PATH", help="a run, a model's folder or hub id, or embedded")
    convert.add_argument("out", metavar="OUT", help="folder to make; it must not exist")
    convert.add_argument("--dtype", choices=("float32", "bfloat16"), help="type to write (default: that of the files)")
    convert.add_argument("--layout", choices=("own", "family"), default="own", help="whose layout (default: own)")


def run_inspect(arguments: argparse.Namespace) -> None:
    from loop_rl.sizes.inspect import as_text, inspect

    found = inspect(arguments.path, arguments.batch, arguments.length, arguments.depth, arguments.dtype)
    print(json.dumps(found, indent=2) + "\n" if arguments.format == "json" else as_text(found), end="")


def run_convert(arguments: argparse.Namespace) -> None:
    from loop_rl.models.convert import convert

    quiet()
    print(convert(arguments.path, arguments.out, arguments.layout, arguments.dtype), end="")
