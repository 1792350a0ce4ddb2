"""`data`: data sets known, shown and fetched."""

from __future__ import annotations

import argparse

from loop_rl.commands.arguments import positive, set_argument
from loop_rl.commands.command import Command


def _list_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--generators", action="store_true", help="name reasoning-gym's generators instead")
    parser.add_argument("--folder", metavar="FOLDER", help="local data sets (otherwise LOOP_RL_DATA)")


def _show_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name", metavar="NAME", help="a known data set, a .jsonl file, reasoning_gym:NAME or owner/name"
    )
    parser.add_argument("--n", type=positive, default=3, help="questions to show (default: 3)")
    parser.add_argument("--split", choices=("train", "test"), default="test", help="which half (default: test)")
    set_argument(parser)
    parser.add_argument("--folder", metavar="FOLDER", help="local data sets (otherwise LOOP_RL_DATA)")


def _fetch_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="+", metavar="NAME", help="known data sets, or owner/name on the hub")
    parser.add_argument("--to", required=True, metavar="FOLDER", help="folder to put the files in")
    parser.add_argument("--from", dest="source", metavar="FOLDER", help="folder that has them, instead of the network")
    parser.add_argument("--config", metavar="NAME", help="configuration of one hub data set (default: its own)")


def _list(arguments: argparse.Namespace) -> None:
    if arguments.generators:
        from loop_rl.data.reasoning_gym import generators

        print("\n".join(generators()))
        return
    from loop_rl.data.listing import list_sets

    print(list_sets(arguments.folder), end="")


def _show(arguments: argparse.Namespace) -> None:
    from loop_rl.data.listing import show

    print(show(arguments.name, arguments.n, arguments.split, arguments.folder, arguments.set), end="")


def _fetch(arguments: argparse.Namespace) -> None:
    from loop_rl.data.listing import run_fetch

    for said in run_fetch(arguments.names, arguments.to, arguments.source, arguments.config):
        print(said, end="", flush=True)


COMMAND = Command(
    "data",
    "Data sets: list, show, fetch.",
    "data show gsm8k --n 1",
    arguments=lambda parser: parser.set_defaults(generators=False, folder=None),
    run=_list,
    actions=(
        Command("list", "The known data sets (default).", "data list --folder ~/data", _list_arguments, _list),
        Command("show", "Prompts and answers as a run meets them.", "data show math500 --n 1", _show_arguments, _show),
        Command(
            "fetch",
            "Bring data sets into a folder.",
            "data fetch gsm8k math500 --to ~/data",
            _fetch_arguments,
            _fetch,
        ),
    ),
)
