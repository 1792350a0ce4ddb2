"""The names that a recipe's `data.name` may have, and the reward that belongs to each."""

import re

from loop_rl.data.examples import nearest
from loop_rl.data.named import SETS

NAMES = ("arithmetic", *SETS)
GYM = "reasoning_gym:"

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def is_own_file(name: str) -> bool:
    """Whether a data set's name is the path of a file rather than a name."""
    return name.endswith((".jsonl", ".jsonl.gz"))


def is_generator(name: str) -> bool:
    """Whether it names a generator of reasoning-gym."""
    return name.startswith(GYM)


def is_hub_id(name: str) -> bool:
    """Whether it has the form of a data set on the hub, owner/name."""
    return not is_own_file(name) and _HUB_ID.fullmatch(name) is not None


def is_known(name: str) -> bool:
    """Whether a data set of that name could exist; no file or hub is looked at."""
    return name in NAMES or is_own_file(name) or is_generator(name) or is_hub_id(name)


def unknown_name(name: str) -> str:
    """What to say of a name that can't be one."""
    return (
        f"unknown data set {name!r}; the nearest is {nearest(name.lower(), NAMES)} "
        f"(known: {', '.join(NAMES)}, {GYM}GENERATOR, the path of a .jsonl file, or owner/name on the hub)"
    )


def default_reward(name: str) -> str:
    """The reward of a data set, by name: what fits a named set's answers; for anything else that of numbers."""
    if is_generator(name):
        return "loop_rl.data.reasoning_gym:reasoning_gym_reward"
    return SETS[name].reward if name in SETS else "gsm8k"
