"""What the commands' parsers share: help, the recipe and its settings, checked numbers."""

from __future__ import annotations

import argparse


class Help(argparse.RawDescriptionHelpFormatter):
    """Examples keep their lines."""


def recipe_argument(parser: argparse.ArgumentParser) -> None:
    """RECIPE and --set."""
    parser.add_argument(
        "recipe", metavar="RECIPE", help="a recipe file, or the name of a shipped one (loop-rl recipes)"
    )
    set_argument(parser)


def set_argument(parser: argparse.ArgumentParser) -> None:
    """--set KEY=VALUE ..."""
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="replace keys of the recipe, one or more: --set run.seed=1 optim.learning_rate=1e-5",
    )


def resume_argument(parser: argparse.ArgumentParser) -> None:
    """--resume."""
    parser.add_argument("--resume", action="store_true", help="go on from the run's newest complete checkpoint")


def sizes(parser: argparse.ArgumentParser, **sizes: tuple[int, str]) -> None:
    """Whole numbers with their defaults and meanings."""
    for name, (default, text) in sizes.items():
        kind = recurrences if name == "depth" else positive
        parser.add_argument(f"--{name}", type=kind, default=default, help=f"{text} (default: {default})")


def positive(text: str) -> int:
    """An integer of at least 1."""
    return _integer(text, 1)


def recurrences(text: str) -> int:
    """A depth that a forward pass may have."""
    from loop_rl.recipe.sections import MAX_DEPTH

    value = _integer(text, 1)
    if value > MAX_DEPTH:
        raise argparse.ArgumentTypeError(f"must be at most {MAX_DEPTH} recurrences, got {text}")
    return value


def not_negative(text: str) -> int:
    """An integer of at least 0."""
    return _integer(text, 0)


def _integer(text: str, least: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least:
        raise argparse.ArgumentTypeError(f"must be an integer of at least {least}, got {text}")
    return value


def temperature(text: str) -> float:
    """A finite number of at least 0."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be 0 (greedy) or a larger number, got {text}")
    return value


def quiet() -> None:
    """Silences transformers' bars for reading and writing weights, which tear the run's own; downloads keep theirs."""
    from transformers.utils import logging

    logging.disable_progress_bar()
