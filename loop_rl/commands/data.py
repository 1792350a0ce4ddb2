"""`data`."""

from __future__ import annotations

import argparse
from typing import Any

from loop_rl.commands.arguments import positive, set_argument, verb


def register(verbs: Any) -> None:
    """Adds the commands to the command line."""
    data = verb(verbs, "data", run_data_list, "Data sets: list, show, fetch.", "data show gsm8k --n 1")
    data.set_defaults(generators=False, folder=None)
    action = data.add_subparsers(dest="action", metavar="ACTION")
    listing = verb(action, "list", run_data_list, "The known data sets (default).", "data list --folder ~/data")
    listing.add_argument("--generators", action="store_true", help="name reasoning-gym's generators instead")
    show = verb(action, "show", run_data_show, "Prompts and answers as a run meets them.", "data show math500 --n 1")
    show.add_argument("name", metavar="NAME", help="a known data set, a .jsonl file, reasoning_gym:NAME or owner/name")
    show.add_argument("--n", type=positive, default=3, help="questions to show (default: 3)")
    show.add_argument("--split", choices=("train", "test"), default="test", help="which half (default: test)")
    set_argument(show)
    fetch = verb(
        action, "fetch", run_data_fetch, "Bring data sets into a folder.", "data fetch gsm8k math500 --to ~/data"
    )
    fetch.add_argument("names", nargs="+", metavar="NAME", help="known data sets, or owner/name on the hub")
    fetch.add_argument("--to", required=True, metavar="FOLDER", help="folder to put the files in")
    fetch.add_argument("--from", dest="source", metavar="FOLDER", help="folder that has them, instead of the network")
    fetch.add_argument("--config", metavar="NAME", help="configuration of one hub data set (default: its own)")
    for parser_of_one in (listing, show):
        parser_of_one.add_argument("--folder", metavar="FOLDER", help="local data sets (otherwise LOOP_RL_DATA)")


def run_data_list(arguments: argparse.Namespace) -> None:
    if arguments.generators:
        from loop_rl.data.reasoning_gym import generators

        print("\n".join(generators()))
        return
    from loop_rl.data.listing import list_sets

    print(list_sets(arguments.folder), end="")


def run_data_show(arguments: argparse.Namespace) -> None:
    from loop_rl.data.listing import show

    print(show(arguments.name, arguments.n, arguments.split, arguments.folder, arguments.set), end="")


def run_data_fetch(arguments: argparse.Namespace) -> None:
    from loop_rl.data.listing import run_fetch

    for said in run_fetch(arguments.names, arguments.to, arguments.source, arguments.config):
        print(said, end="", flush=True)
