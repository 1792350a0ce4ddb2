"""`train`, `pretrain` and `distill`."""

from __future__ import annotations

import argparse
from typing import Any

from loop_rl.commands.arguments import quiet, recipe_argument, verb


def register(verbs: Any) -> None:
    """Adds the commands to the command line."""
    train = verb(
        verbs, "train", run_train, "Train a looped model by RL.", "train my.yaml --set optim.learning_rate=1e-5"
    )
    recipe_argument(train)
    train.add_argument("--resume", action="store_true", help="go on from the run's newest complete checkpoint")
    train.add_argument(
        "--dry-run",
        action="store_true",
        help="print the whole recipe, how many questions it has, and the memory it needs; then stop",
    )

    pretrain = verb(
        verbs,
        "pretrain",
        run_pretrain,
        "Train a looped model on text.",
        "pretrain pretrain_embedded --set run.name=mine",
    )
    recipe_argument(pretrain)
    pretrain.add_argument("--resume", action="store_true", help="go on from the run's newest complete checkpoint")

    distill = verb(
        verbs,
        "distill",
        run_distill,
        "Teach a student to read prompts in the recurrences' place.",
        "distill distill_embedded --set teacher.path=runs/mine",
    )
    recipe_argument(distill)
    distill.add_argument("--resume", action="store_true", help="go on from the run's newest complete checkpoint")


def run_train(arguments: argparse.Namespace) -> None:
    from loop_rl.learner.ranks import joined
    from loop_rl.recipe.kinds import load_for

    with joined() as ranks:
        recipe = load_for("train", arguments.recipe, arguments.set)
        if arguments.dry_run:
            from loop_rl.evaluation.task import sizes
            from loop_rl.sizes.memory import check_fits, estimate
            from loop_rl.training.rl import check_folder, check_machine

            if ranks.main:
                check_folder(recipe, arguments.resume)
            check_machine(recipe)
            memory, tasks = estimate(recipe)
            if ranks.main:
                print(recipe.dump_yaml() + sizes(tasks) + memory.text())
            check_fits(memory)
            return
        from loop_rl.training.rl import train

        quiet()
        run = train(recipe, resume=arguments.resume, ranks=ranks)
        if ranks.main:
            print(f"run folder: {run}")


def run_pretrain(arguments: argparse.Namespace) -> None:
    from loop_rl.recipe.kinds import load_for

    recipe = load_for("pretrain", arguments.recipe, arguments.set)
    from loop_rl.training.pretrain import pretrain

    quiet()
    run = pretrain(recipe, resume=arguments.resume)
    print(f"run folder: {run}")
    if (run / "model").is_dir():
        print(f"model: {run / 'model'}\nnext: loop-rl report {run}; loop-rl eval {run} --data arithmetic")


def run_distill(arguments: argparse.Namespace) -> None:
    from loop_rl.recipe.kinds import load_for

    recipe = load_for("distill", arguments.recipe, arguments.set)
    from loop_rl.training.distill import distill

    quiet()
    run = distill(recipe, resume=arguments.resume)
    print(
        f"run folder: {run}\nmodel with its student: {run / 'model'} (rollout.prefill=student, rollout.cache=terminal)"
    )
