"""Every generator of reasoning-gym: is it made the same twice, and does its own reference get the full reward?

    python scripts/check_reasoning_gym.py [--items 4]

Prints a line for each generator that is not as it should be, or slow, and the count of the others. About 5 minutes.
"""

import argparse
import time
from types import SimpleNamespace

from loop_rl.data import load_dataset
from loop_rl.data.reasoning_gym import GYM, close, generators, reasoning_gym_reward, start
from loop_rl.errors import UserError

SLOW = 0.1  # seconds a question
MISS = "no idea"


def check(generator: str, items: int) -> list[str]:
    """What is remarkable about a generator; empty for one that is as it should be."""
    section = SimpleNamespace(
        name=GYM + generator,
        folder=None,
        seed=1,
        train_size=items,
        eval_size=items,
        columns={},
        template=None,
        config=None,
    )
    began = time.perf_counter()
    splits = load_dataset(section)
    seconds = (time.perf_counter() - began) / (2 * items)
    examples = splits.train + splits.test
    said = []
    if load_dataset(section) != splits:
        said.append("not the same when made again")
    columns = {key: [example.columns[key] for example in examples] for key in ("generator", "entry")}
    if any(not example.answer for example in examples):
        said.append("no reference answer")
    else:
        for form in ("{}", "<answer>{}</answer>"):
            rewards = reasoning_gym_reward(None, [form.format(example.answer) for example in examples], **columns)
            if rewards != [1.0] * len(examples):
                said.append(f"references as {form} get {rewards}")
    reasons: list[str] = []
    misses = reasoning_gym_reward(None, [MISS] * len(examples), log_extra=lambda _, r: reasons.extend(r), **columns)
    if misses != [0.0] * len(examples):
        said.append(f"{MISS!r} gets {misses[0]} ({reasons[0]})")
    if seconds > 2.0 / items + SLOW:  # the process takes up to two seconds to start
        said.append(f"{seconds:.2f} s a question")
    return said


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--items", type=int, default=4, help="questions of each half (default: 4)")
    items = parser.parse_args().items
    print(start())
    good = 0
    for generator in generators():
        try:
            said = check(generator, items)
        except UserError as error:
            said = [str(error)]
        good += not said
        if said:
            print(f"{generator}: {'; '.join(said)}", flush=True)
    close()
    print(f"{good} others are as they should be")


if __name__ == "__main__":
    main()
