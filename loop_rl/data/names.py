"""The names that a recipe's `data.name` may have, and the reward that belongs to each."""

from loop_rl.data.examples import nearest
from loop_rl.data.named import SETS
from loop_rl.data.own import is_own_file

NAMES = ("arithmetic", *SETS)


def is_known(name: str) -> bool:
    """Whether a data set of that name could exist; no file or hub is looked at."""
    return name in NAMES or is_own_file(name)


def unknown_name(name: str) -> str:
    """What to say of a name that can't be one."""
    return (
        f"unknown data set {name!r}; the nearest is {nearest(name.lower(), NAMES)} "
        f"(known: {', '.join(NAMES)}, or the path of a .jsonl file)"
    )


def default_reward(name: str) -> str:
    """The reward of a data set, by name: what fits a named set's answers; for anything else that of numbers."""
    return SETS[name].reward if name in SETS else "gsm8k"
