"""`recipes`: those that come with loop-rl, and one's own."""

from __future__ import annotations

import argparse
import shutil
import sys
import textwrap

from loop_rl.commands.arguments import recipe_argument, set_argument
from loop_rl.commands.command import Command


def _copy_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", metavar="RECIPE", help="name of a recipe")
    parser.add_argument("file", nargs="?", metavar="FILE", help="the new file (default: the recipe's own name, here)")


def _validate_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipes", nargs="+", metavar="RECIPE", help="recipe files or names")
    set_argument(parser)


def _list(arguments: argparse.Namespace) -> None:
    from loop_rl.recipe.kinds import description, shipped

    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for file in shipped():
        line = f"{file.stem:32} {description(file)}"
        print(line if width is None else textwrap.fill(line, width, subsequent_indent=" " * 33, break_on_hyphens=False))


def _show(arguments: argparse.Namespace) -> None:
    from loop_rl.recipe.kinds import load_any

    print(load_any(arguments.recipe, arguments.set).dump_yaml(), end="")


def _copy(arguments: argparse.Namespace) -> None:
    from loop_rl.recipe.kinds import copy

    print(copy(arguments.recipe, arguments.file))


def _validate(arguments: argparse.Namespace) -> None:
    from loop_rl.recipe.kinds import load_any

    for recipe in arguments.recipes:
        load_any(recipe, arguments.set)
        print(f"{recipe}: valid")


COMMAND = Command(
    "recipes",
    "List, show, copy, validate.",
    "recipes copy quickstart_reuse_neumann4 my.yaml",
    run=_list,
    actions=(
        Command("list", "The recipes that come with loop-rl (default).", "recipes list", run=_list),
        Command(
            "show",
            "A recipe with every key written out.",
            "recipes show gsm8k_reuse_neumann4",
            recipe_argument,
            _show,
        ),
        Command("copy", "A copy to edit.", "recipes copy quickstart_reuse_neumann4 my.yaml", _copy_arguments, _copy),
        Command(
            "validate",
            "Check recipes without running them.",
            "recipes validate my.yaml",
            _validate_arguments,
            _validate,
        ),
    ),
)
