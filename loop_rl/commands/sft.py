"""`sft`: supervised fine-tuning."""

from __future__ import annotations

import argparse

from loop_rl.commands.arguments import quiet, recipe_argument
from loop_rl.commands.command import Command
from loop_rl.extras import extra


def run(arguments: argparse.Namespace) -> None:
    from loop_rl.recipe.kinds import load_for

    recipe = load_for("sft", arguments.recipe, arguments.set)
    extra("trl", "sft", "sft")
    from loop_rl.training.sft import sft

    quiet()
    print(f"run folder: {sft(recipe, resume=arguments.resume)}")


COMMAND = Command(
    "sft",
    "Fine-tune a looped model on text, or on questions and answers.",
    "sft sft_arithmetic --set model.path=looped",
    recipe_argument,
    run,
    resumes="--resume",
)
