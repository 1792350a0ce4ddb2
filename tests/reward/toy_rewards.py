"""Reward functions that tests name as tests.reward.toy_rewards:FUNCTION, so that another process finds them."""

import os
import time
from pathlib import Path

STARTED: list[str] = []


def start() -> str:
    if os.environ.get("TOY_FAULT"):
        raise RuntimeError(f"no sandbox: {os.environ['TOY_FAULT']}")
    STARTED.append("started")
    return "toys are guarded"


def close() -> None:
    STARTED.append("closed")


def length(prompts, completions, completion_ids, **columns):
    return [float(len(text)) for text in completions]


def digits(completions, answer, log_extra=None, **columns):
    """1.0 for the answer; says why; None for a completion that is `?`."""
    rewards = [None if text == "?" else float(text == wanted) for text, wanted in zip(completions, answer, strict=True)]
    if log_extra is not None:
        words = {None: "not scored: a question mark", 1.0: "correct", 0.0: "wrong"}
        reasons = [words[reward] for reward in rewards]
        log_extra("reason", ["no answer" if text == "" else reasons[i] for i, text in enumerate(completions)])
    return rewards


def marks(prompts, completions, completion_ids, answer, folder):
    """Leaves a file named after each completion in its example's folder."""
    for text, place in zip(completions, folder, strict=True):
        (Path(place) / text).write_text(str(os.getpid()))
    return [1.0] * len(completions)


def meeting(completions, folder, **columns):
    """As `marks`, but stays until another process has left a file too."""
    place = Path(folder[0])
    (place / completions[0]).write_text(str(os.getpid()))
    while len({path.read_text() for path in place.iterdir()} - {""}) < 2:
        time.sleep(0.01)
    return [1.0] * len(completions)


def once_deadly(completions, folder, **columns):
    """Kills its process when it meets `bomb`, unless the folder says that this has happened."""
    mark = Path(folder[0]) / "went off"
    if "bomb" in completions and not mark.exists():
        mark.write_text("")
        os.kill(os.getpid(), 9)
    return [float(len(text)) for text in completions]


def deadly(completions, **columns):
    os.kill(os.getpid(), 9)


def failing(completions, **columns):
    print("about to fail")
    raise KeyError("solution")
