"""Which questions of a data set are used and which are held out: seeded, disjoint, a smaller choice within a larger.

Nothing here looks at the answers. What is held out of a set without a split of its own is decided by hashes of the
questions, so that no seed moves a question from one half to the other; but a pool (MBPP+) is divided by the seed.
"""

import hashlib
import random
from collections.abc import Sequence

from loop_rl.data.examples import Example, Placed
from loop_rl.errors import UserError


def hold_out(examples: Sequence[Placed], count: int) -> tuple[list[Placed], list[Placed]]:
    """The rest, and the questions of the `count` smallest hashes; rows that repeat a question stay together."""
    questions = {one.question for one in examples}
    ordered = sorted(questions, key=lambda question: hashlib.sha256(question.encode()).digest())
    held_out = set(ordered[:count])
    return (
        [one for one in examples if one.question not in held_out],
        [one for one in examples if one.question in held_out],
    )


def subset(examples: Sequence[Example], size: int | None, seed: int, place: str) -> list[Example]:
    """The first `size` (None: all) of a seeded order; UserError naming `place` where there are fewer."""
    if size is not None and size > len(examples):
        raise UserError(f"{place} has {len(examples)} questions, {size} were asked for; use a smaller size or null")
    return _shuffled(examples, seed)[:size]


def divide_pool(
    pool: Sequence[Example], train_size: int | None, eval_size: int | None, held_out: int, seed: int, name: str
) -> tuple[list[Example], list[Example]]:
    """Both halves from one pool: from the front of its seeded order, and from the back.

    A size of None means the default, which for the held-out half is `held_out` and for the other the rest of that,
    whatever the other size: so a larger evaluation later can't reach into what a run has trained on.

    Raises:
        UserError: sizes that together are more than the pool.
    """
    train = len(pool) - held_out if train_size is None else train_size
    test = held_out if eval_size is None else eval_size
    if train + test > len(pool):
        raise UserError(
            f"data.train_size + data.eval_size: {name} is one pool of {len(pool)} tasks, {train} + {test} were asked "
            "for; use smaller sizes"
        )
    ordered = _shuffled(pool, seed)
    return ordered[:train], ordered[::-1][:test]


def _shuffled(examples: Sequence[Example], seed: int) -> list[Example]:
    shuffled = list(examples)
    random.Random(seed).shuffle(shuffled)
    return shuffled
