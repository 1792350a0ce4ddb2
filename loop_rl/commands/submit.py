"""`submit`: a run as a job of a Ray cluster."""

from __future__ import annotations

import argparse

from loop_rl.commands.arguments import recipe_argument, resume_argument
from loop_rl.commands.command import Command


def arguments(parser: argparse.ArgumentParser) -> None:
    recipe_argument(parser)
    parser.add_argument("--address", metavar="URL", help="the cluster's dashboard (default: this machine's)")
    resume_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    from loop_rl.training.submission import submit

    return submit(arguments.recipe, arguments.address, arguments.set, arguments.resume)


COMMAND = Command("submit", "Run on a Ray cluster.", "submit my.yaml --address http://head-node:8265", arguments, run)
