"""`convert`: a model in another layout."""

from __future__ import annotations

import argparse

from loop_rl.commands.arguments import quiet
from loop_rl.commands.command import Command


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="PATH", help="a run, a model's folder or hub id, or embedded")
    parser.add_argument("out", metavar="OUT", help="folder to make; it must not exist")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), help="type to write (default: that of the files)")
    parser.add_argument("--layout", choices=("own", "family"), default="own", help="whose layout (default: own)")


def run(arguments: argparse.Namespace) -> None:
    from loop_rl.models.convert import convert

    quiet()
    print(convert(arguments.path, arguments.out, arguments.layout, arguments.dtype), end="")


COMMAND = Command(
    "convert",
    "Write a model in our own layout, or in that of the family it came from.",
    "convert runs/mine my-huginn --layout family",
    arguments,
    run,
)
