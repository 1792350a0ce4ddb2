"""Short arithmetic word problems with worked steps: the data set that needs no download.

Each problem is two or three operations on small numbers, told as a story; its answer holds one equation a line and
ends with GSM8K's `#### N`, so that the GSM8K reward scores it. Every result, the intermediate ones too, is an integer
from 0 to 199. Which half of the data a problem belongs to is decided by a hash of its question, so the train and the
test problems are disjoint whatever the seeds and the counts.
"""

import hashlib
import random
from collections.abc import Callable
from typing import Literal

Split = Literal["train", "test"]

LARGEST_NUMBER = 10
LARGEST_RESULT = 199
TEST_SHARE = 10  # one question in ten is a test question

NAMES = ("Ann", "Ben", "Cal", "Dan", "Eve", "Ian", "Joe", "Kim", "Leo", "Mia", "Ned", "Pam", "Sam", "Tom", "Una", "Zoe")
OBJECTS = ("apples", "books", "cards", "coins", "cups", "eggs", "hats", "nuts", "pens", "pears", "shells", "stamps")

Step = tuple[str, int]  # an operator of + - * and the number that it takes
Story = tuple[str, int, tuple[Step, ...]]  # question, first number, steps


def _number(rng: random.Random) -> int:
    return rng.randint(2, LARGEST_NUMBER)


def _buys_and_gives(rng: random.Random, name: str, other: str, thing: str) -> Story:
    a, b, c = _number(rng), _number(rng), _number(rng)
    question = f"{name} has {a} {thing}. {name} buys {b} more and gives away {c}. How many {thing} has {name}?"
    return question, a, (("+", b), ("-", c))


def _loses_and_finds(rng: random.Random, name: str, other: str, thing: str) -> Story:
    a, b, c = _number(rng), _number(rng), _number(rng)
    question = f"{name} had {a} {thing}, lost {b} and then found {c}. How many {thing} are there now?"
    return question, a, (("-", b), ("+", c))


def _two_gifts(rng: random.Random, name: str, other: str, thing: str) -> Story:
    a, b, c = _number(rng), _number(rng), _number(rng)
    question = f"{name} has {a} {thing}. {other} gives {name} {b}, then {c} more. How many {thing} has {name}?"
    return question, a, (("+", b), ("+", c))


def _two_sales(rng: random.Random, name: str, other: str, thing: str) -> Story:
    a, b, c = _number(rng), _number(rng), _number(rng)
    question = f"A shop has {a} {thing}. {name} takes {b} and {other} takes {c}. How many {thing} are left?"
    return question, a, (("-", b), ("-", c))


def _boxes_and_more(rng: random.Random, name: str, other: str, thing: str) -> Story:
    boxes, each, extra = rng.randint(2, 5), _number(rng), _number(rng)
    question = f"{name} has {boxes} boxes of {each} {thing} and {extra} more. How many {thing} in all?"
    return question, boxes, (("*", each), ("+", extra))


def _boxes_and_loss(rng: random.Random, name: str, other: str, thing: str) -> Story:
    boxes, each, sold = rng.randint(2, 5), _number(rng), _number(rng)
    question = f"{name} fills {boxes} bags with {each} {thing} each and sells {sold}. How many {thing} are left?"
    return question, boxes, (("*", each), ("-", sold))


def _three_changes(rng: random.Random, name: str, other: str, thing: str) -> Story:
    a, b, c, d = (_number(rng) for _ in range(4))
    question = f"{name} has {a} {thing}, gets {b}, sells {c} and gets {d}. How many {thing} has {name}?"
    return question, a, (("+", b), ("-", c), ("+", d))


def _basket(rng: random.Random, name: str, other: str, thing: str) -> Story:
    a, b, c, d = (_number(rng) for _ in range(4))
    question = f"A box holds {a} {thing}. {name} takes {b}, {other} adds {c} and takes {d}. How many stay?"
    return question, a, (("-", b), ("+", c), ("-", d))


def _bags_given_twice(rng: random.Random, name: str, other: str, thing: str) -> Story:
    bags, each, b, c = rng.randint(2, 5), _number(rng), _number(rng), _number(rng)
    question = f"{name} has {bags} bags of {each} {thing}, gives {other} {b} and buys {c}. How many {thing} now?"
    return question, bags, (("*", each), ("-", b), ("+", c))


TEMPLATES: tuple[Callable[[random.Random, str, str, str], Story], ...] = (
    _buys_and_gives,
    _loses_and_finds,
    _two_gifts,
    _two_sales,
    _boxes_and_more,
    _boxes_and_loss,
    _three_changes,
    _basket,
    _bags_given_twice,
)


def split_of(question: str) -> Split:
    """The half that a question belongs to: a pure function of its text."""
    digest = hashlib.sha256(question.encode()).digest()
    return "test" if int.from_bytes(digest[:8]) % TEST_SHARE == 0 else "train"


def worked_answer(first: int, steps: tuple[Step, ...]) -> str | None:
    """One equation a line, then `#### N`; None when some result leaves 0..199."""
    value, lines = first, []
    for operator, number in steps:
        result = {"+": value + number, "-": value - number, "*": value * number}[operator]
        if not 0 <= result <= LARGEST_RESULT:
            return None
        lines.append(f"{value} {operator} {number} = {result}")
        value = result
    return "\n".join([*lines, f"#### {value}"])


def problems(count: int, seed: int, split: Split = "train") -> list[dict[str, str]]:
    """`count` distinct problems of one split, each {"question", "answer"}; the same arguments give the same list.

    A longer list from the same seed and split begins with the shorter one.

    Raises:
        ValueError: a negative count or an unknown split.
    """
    if count < 0:
        raise ValueError(f"count must not be negative, got {count}")
    if split not in ("train", "test"):
        raise ValueError(f"split must be train or test, got {split!r}")
    rng = random.Random(seed)
    found: dict[str, str] = {}
    while len(found) < count:
        template = rng.choice(TEMPLATES)
        name, other = rng.sample(NAMES, 2)
        question, first, steps = template(rng, name, other, rng.choice(OBJECTS))
        answer = worked_answer(first, steps)
        if answer is not None and question not in found and split_of(question) == split:
            found[question] = answer
    return [{"question": question, "answer": answer} for question, answer in found.items()]
