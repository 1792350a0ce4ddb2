"""The command line: parses, calls, and says in one line what went wrong."""

from __future__ import annotations

import argparse
import errno
import importlib
import io
import os
import shlex
import sys
from collections.abc import Sequence
from typing import NoReturn

from loop_rl.commands.arguments import Help
from loop_rl.commands.command import Command
from loop_rl.errors import UserError, out_of_memory
from loop_rl.interrupts import Interrupted, interrupting
from loop_rl.runs.disk import full_disk

EXIT_USER_ERROR = 2
EXIT_INTERRUPTED = 130
_WRITE_FAULTS = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.ENOTDIR}

# The module that holds each as COMMAND.
COMMANDS = {
    "train": "loop_rl.commands.train",
    "pretrain": "loop_rl.commands.pretrain",
    "distill": "loop_rl.commands.distill",
    "retrofit": "loop_rl.commands.retrofit",
    "sft": "loop_rl.commands.sft",
    "eval": "loop_rl.commands.eval",
    "report": "loop_rl.commands.report",
    "diagnose": "loop_rl.commands.diagnose",
    "bench": "loop_rl.commands.bench",
    "inspect": "loop_rl.commands.inspect",
    "convert": "loop_rl.commands.convert",
    "recipes": "loop_rl.commands.recipes",
    "data": "loop_rl.commands.data",
    "submit": "loop_rl.commands.submit",
}

_DESCRIPTION = """Reinforcement-learning post-training of looped language models.

  loop-rl recipes                                     what can be run as it is
  loop-rl train quickstart_reuse_neumann4             train the embedded model by RL, on a laptop
  loop-rl report runs/quickstart_reuse_neumann4       what it learned, and what an update cost
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code: 0, 2 for what the user can fix, 130 when interrupted.

    Ctrl-C, SIGTERM and a terminal that closes all interrupt.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    try:
        with interrupting():
            return _run(argv)
    except KeyboardInterrupt as error:
        print(f"loop-rl: {_interruption(error, argv)}", file=sys.stderr)
        return EXIT_INTERRUPTED


def _interruption(error: KeyboardInterrupt, argv: Sequence[str]) -> str:
    """The line of a command that was interrupted: what it left, and how to go on."""
    said = str(error) or "interrupted"
    if isinstance(error, Interrupted):
        if error.resumable:
            resumed = argv if "--resume" in argv else [*argv, "--resume"]
            return f"{said}; go on with: loop-rl {shlex.join(resumed)}"
        return f"{said} before its first step; start again with: loop-rl {shlex.join(argv)}"
    again = bool(argv) and argv[0] in COMMANDS and load_command(argv[0]).resumes == "again"
    return f"{said}; go on with: loop-rl {shlex.join(argv)}" if again else said


def _run(argv: list[str]) -> int:
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that has no lines and arrows shows ? for them
    arguments = build_parser().parse_args(_repeat_set(argv))
    ours = load_command(arguments.command)
    if os.environ.get("WORLD_SIZE", "1") != "1" and not ours.ranks:
        if os.environ.get("RANK", "0") == "0":
            _fail(f"{ours.name} runs in one process: start it without torchrun (train alone has ranks)")
        return EXIT_USER_ERROR
    try:
        return arguments.run(arguments) or 0
    except UserError as error:
        return _fail(str(error))
    except BrokenPipeError:  # the reader of a pipe, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if ours.resumes != "--resume":
            return 0
        return _fail("the reader of the output has gone, so the run was stopped; add --resume to go on")
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _WRITE_FAULTS and error.filename:
            return _fail(f"cannot write {error.filename}: {error.strerror}")
        if (memory := out_of_memory(error)) is not None:
            return _fail(memory)
        cause = full_disk(error)  # libraries raise what they like, and leave the name out
        if cause is None:
            raise
        return _fail(f"cannot write what the command makes: {cause}")


def _fail(message: str) -> int:
    print(f"loop-rl: {' '.join(message.split())}", file=sys.stderr)
    return EXIT_USER_ERROR


def _repeat_set(argv: Sequence[str]) -> list[str]:
    """`--set a=1 b=2` as `--set a=1 --set b=2`, so that both are understood and a recipe may still follow."""
    spread: list[str] = []
    setting = False
    for word in argv:
        if setting and spread[-1] != "--set" and "=" in word and not word.startswith("-"):
            spread.append("--set")
        elif setting and spread[-1] != "--set":
            setting = False
        spread.append(word)
        setting = setting or word == "--set"
    return spread


class _Parser(argparse.ArgumentParser):
    """Refuses in one line, like every other error; the parsers of the commands are of this class too."""

    def error(self, message: str) -> NoReturn:
        self.exit(_fail(f"{message} (see {self.prog} --help)"))


def load_command(name: str) -> Command:
    """One of the table."""
    return importlib.import_module(COMMANDS[name]).COMMAND


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands; `run` of what it returns is the function to call."""
    parser = _Parser("loop-rl", description=_DESCRIPTION, formatter_class=Help)
    parsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in COMMANDS:
        load_command(name).add_to(parsers)
    return parser


if __name__ == "__main__":
    sys.exit(main())
