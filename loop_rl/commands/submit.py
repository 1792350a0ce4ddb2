"""`submit`."""

from __future__ import annotations

import argparse
from typing import Any

from loop_rl.commands.arguments import recipe_argument, verb


def register(verbs: Any) -> None:
    """Adds the commands to the command line."""
    submit = verb(
        verbs, "submit", run_submit, "Run on a Ray cluster.", "submit my.yaml --address http://head-node:8265"
    )
    recipe_argument(submit)
    submit.add_argument("--address", metavar="URL", help="the cluster's dashboard (default: this machine's)")
    submit.add_argument("--resume", action="store_true", help="go on from the run's newest complete checkpoint")


def run_submit(arguments: argparse.Namespace) -> int:
    from loop_rl.training.submission import submit

    return submit(arguments.recipe, arguments.address, arguments.set, arguments.resume)
