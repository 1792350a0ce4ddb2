"""What a command is: its words for the help, its arguments, its run, and how it goes on when it was interrupted."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from loop_rl.commands.arguments import Help, resume_argument


def _none(parser: argparse.ArgumentParser) -> None:
    """No arguments."""


@dataclass(frozen=True)
class Command:
    """A command of the command line, or an action of one (`recipes show`).

    example: a command line without loop-rl. arguments: adds them to the command's parser. run: called with what was
    parsed; without one an action must be named. resumes: how a command that was interrupted goes on, by `--resume`,
    which it then takes, or by the same words again. ranks: whether a launcher such as torchrun may start several.
    """

    name: str
    summary: str
    example: str
    arguments: Callable[[argparse.ArgumentParser], None] = _none
    run: Callable[[argparse.Namespace], int | None] | None = None
    actions: tuple[Command, ...] = ()
    resumes: Literal["no", "--resume", "again"] = "no"
    ranks: bool = False

    def add_to(self, parsers: Any) -> None:
        """Make its parser, and those of its actions, in what `add_subparsers` gave."""
        text = f"example:\n  loop-rl {self.example}"
        parser = parsers.add_parser(
            self.name, help=self.summary, description=self.summary, epilog=text, formatter_class=Help
        )
        if self.run is not None:
            parser.set_defaults(run=self.run)
        self.arguments(parser)
        if self.resumes == "--resume":
            resume_argument(parser)
        if self.actions:
            actions = parser.add_subparsers(required=self.run is None, dest="action", metavar="ACTION")
            for action in self.actions:
                action.add_to(actions)
