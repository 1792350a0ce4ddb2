"""`train`: RL on questions with rewards."""

from __future__ import annotations

import argparse

from loop_rl.commands.arguments import quiet, recipe_argument
from loop_rl.commands.command import Command


def arguments(parser: argparse.ArgumentParser) -> None:
    recipe_argument(parser)
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="print the whole recipe, how many questions it has, and the memory it needs; then stop",
    )


def run(arguments: argparse.Namespace) -> None:
    from loop_rl.learner.ranks import joined
    from loop_rl.recipe.kinds import load_for

    with joined() as ranks:
        recipe = load_for("train", arguments.recipe, arguments.set)
        if arguments.dry_run:
            from loop_rl.evaluation.task import sizes
            from loop_rl.sizes.memory import check_fits, estimate_memory
            from loop_rl.training.rl import check_folder, check_machine

            if ranks.main:
                check_folder(recipe, arguments.resume)
            check_machine(recipe)
            memory, tasks = estimate_memory(recipe)
            if ranks.main:
                print(recipe.dump_yaml() + sizes(tasks) + memory.text())
            check_fits(memory)
            return
        from loop_rl.training.rl import train

        quiet()
        run = train(recipe, resume=arguments.resume, ranks=ranks)
        if ranks.main:
            print(f"run folder: {run}")


COMMAND = Command(
    "train",
    "Train a looped model by RL.",
    "train my.yaml --set optim.learning_rate=1e-5",
    arguments,
    run,
    resumes="--resume",
    ranks=True,
)
