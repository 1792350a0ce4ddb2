"""Every generator of reasoning-gym: is it made the same twice, and does its own reference get the full reward?

    python scripts/check_reasoning_gym.py [--items 4]

Prints a line for each generator that is not as it should be, or slow, and the count of the others.
"""

import argparse
import os
import sys
import time

from loop_rl.data.gym_child import make
from loop_rl.data.reasoning_gym import close, generators, reasoning_gym_reward, start

SLOW = 0.1  # seconds per question
MISS = "no idea"


def check(generator: str, items: int) -> list[str]:
    """What is remarkable about a generator; empty for one that is as it should be."""
    sizes = {"train": items, "test": items}
    began = time.perf_counter()
    made = make(generator, 1, sizes)
    found = [item for half in made.values() for _, item in half]
    seconds = (time.perf_counter() - began) / max(1, len(found))
    said = []
    if make(generator, 1, sizes) != made:
        said.append("not the same when made again")
    columns = {"generator": [generator] * len(found), "entry": found}
    if any(item["answer"] is None for item in found):
        said.append("no reference answer")
    else:
        for form in ("{}", "<answer>{}</answer>"):
            rewards = reasoning_gym_reward(None, [form.format(item["answer"]) for item in found], **columns)
            if rewards != [1.0] * len(found):
                said.append(f"references as {form} get {rewards}")
    reasons: list[str] = []
    misses = reasoning_gym_reward(None, [MISS] * len(found), log_extra=lambda _, r: reasons.extend(r), **columns)
    if misses != [0.0] * len(found):
        said.append(f"{MISS!r} gets {misses[0]} ({reasons[0]})")
    if seconds > SLOW:
        said.append(f"{seconds:.2f} s per question")
    return said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=4, help="questions of each half (default: 4)")
    items = parser.parse_args().items
    if os.environ.get("PYTHONHASHSEED") != "0":  # as in the process that makes them for a run
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "PYTHONHASHSEED": "0"})
    print(start(), flush=True)
    good = 0
    for generator in generators():
        try:
            said = check(generator, items)
        except Exception as error:
            said = [f"{type(error).__name__}: {error}"]
        good += not said
        if said:
            print(f"{generator}: {'; '.join(said)}", flush=True)
    close()
    print(f"{good} others are as they should be")


if __name__ == "__main__":
    main()
