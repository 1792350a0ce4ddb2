"""`recipes`."""

from __future__ import annotations

import argparse
import shutil
import sys
import textwrap
from typing import Any

from loop_rl.commands.arguments import recipe_argument, set_argument, verb


def register(verbs: Any) -> None:
    """Adds the commands to the command line."""
    recipes = verb(
        verbs,
        "recipes",
        run_recipes_list,
        "List, show, copy, validate.",
        "recipes copy quickstart_reuse_neumann4 my.yaml",
    )
    action = recipes.add_subparsers(dest="action", metavar="ACTION")
    verb(action, "list", run_recipes_list, "The recipes that come with loop-rl (default).", "recipes list")
    show = verb(
        action, "show", run_recipes_show, "A recipe with every key written out.", "recipes show gsm8k_reuse_neumann4"
    )
    recipe_argument(show)
    copy = verb(action, "copy", run_recipes_copy, "A copy to edit.", "recipes copy quickstart_reuse_neumann4 my.yaml")
    copy.add_argument("recipe", metavar="RECIPE", help="name of a recipe")
    copy.add_argument("file", nargs="?", metavar="FILE", help="the new file (default: the recipe's own name, here)")
    validate = verb(
        action, "validate", run_recipes_validate, "Check recipes without running them.", "recipes validate my.yaml"
    )
    validate.add_argument("recipes", nargs="+", metavar="RECIPE", help="recipe files or names")
    set_argument(validate)


def run_recipes_list(arguments: argparse.Namespace) -> None:
    from loop_rl.recipe.kinds import description, shipped

    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for file in shipped():
        line = f"{file.stem:32} {description(file)}"
        print(line if width is None else textwrap.fill(line, width, subsequent_indent=" " * 33, break_on_hyphens=False))


def run_recipes_show(arguments: argparse.Namespace) -> None:
    from loop_rl.recipe.kinds import load_any

    print(load_any(arguments.recipe, arguments.set).dump_yaml(), end="")


def run_recipes_copy(arguments: argparse.Namespace) -> None:
    from loop_rl.recipe.kinds import copy

    print(copy(arguments.recipe, arguments.file))


def run_recipes_validate(arguments: argparse.Namespace) -> None:
    from loop_rl.recipe.kinds import load_any

    for recipe in arguments.recipes:
        load_any(recipe, arguments.set)
        print(f"{recipe}: valid")
