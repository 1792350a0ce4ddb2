"""`pretrain`: training on text at random or fixed depths."""

from __future__ import annotations

import argparse

from loop_rl.commands.arguments import quiet, recipe_argument
from loop_rl.commands.command import Command


def run(arguments: argparse.Namespace) -> None:
    from loop_rl.recipe.kinds import load_for

    recipe = load_for("pretrain", arguments.recipe, arguments.set)
    from loop_rl.training.pretrain import pretrain

    quiet()
    run = pretrain(recipe, resume=arguments.resume)
    print(f"run folder: {run}")
    if (run / "model").is_dir():
        print(f"model: {run / 'model'}\nnext: loop-rl report {run}; loop-rl eval {run} --data arithmetic")


COMMAND = Command(
    "pretrain",
    "Train a looped model on text.",
    "pretrain pretrain_embedded --set run.name=mine",
    recipe_argument,
    run,
    resumes="--resume",
)
