"""`distill`: a student that reads prompts in the recurrences' place."""

from __future__ import annotations

import argparse

from loop_rl.commands.arguments import quiet, recipe_argument
from loop_rl.commands.command import Command


def run(arguments: argparse.Namespace) -> None:
    from loop_rl.recipe.kinds import load_for

    recipe = load_for("distill", arguments.recipe, arguments.set)
    from loop_rl.training.distill import distill

    quiet()
    run = distill(recipe, resume=arguments.resume)
    print(
        f"run folder: {run}\nmodel with its student: {run / 'model'} (rollout.prefill=student, rollout.cache=terminal)"
    )


COMMAND = Command(
    "distill",
    "Teach a student to read prompts in the recurrences' place.",
    "distill distill_embedded --set teacher.path=runs/mine",
    recipe_argument,
    run,
    resumes="--resume",
)
