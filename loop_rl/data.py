"""Data sets by name: arithmetic (made on the spot), gsm8k (a local folder, else the hub), or the user's own .jsonl.

Every row is checked when it is loaded, so that a run never meets a question it can't score. A subset is seeded, and a
smaller one is the beginning of a larger one; an example's index is its row in the source, whatever the subset.
"""

import difflib
import hashlib
import json
import os
import random
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from loop_rl import arithmetic, hub
from loop_rl.errors import UserError
from rewards.gsm8k import parse_gold

NAMES = ("arithmetic", "gsm8k")
VARIABLE = "LOOP_RL_DATA"  # the folder of local data sets, when the recipe names none
TEMPLATE = "Question: {question}\nAnswer:"
ARITHMETIC_SIZES = {"train": 20_000, "test": 1_000}  # when the recipe leaves the sizes open
TEST_SHARE = 10  # one question in ten of a user's file is held out


class DataSettings(Protocol):
    """What is read of a recipe's `data` section."""

    @property
    def name(self) -> str: ...
    @property
    def folder(self) -> str | None: ...
    @property
    def seed(self) -> int: ...
    @property
    def train_size(self) -> int | None: ...
    @property
    def eval_size(self) -> int | None: ...


@dataclass(frozen=True)
class Example:
    """One question: the prompt as the model reads it, the reference answer, and its row (from 0) in the source."""

    prompt: str
    answer: str
    index: int


@dataclass(frozen=True)
class Splits:
    """The questions to learn from and the held-out ones; disjoint."""

    train: list[Example]
    test: list[Example]


def load_dataset(settings: DataSettings, numeric: bool = True) -> Splits:
    """The examples that a recipe's `data` section names, in a seeded order.

    Args:
        settings: name, folder, seed, train_size, eval_size; a size of None means all (arithmetic: 20,000 and 1,000).
        numeric: refuse a reference without a number; False for a reward that compares something else.

    Raises:
        UserError: an unknown name, a missing or malformed file, a bad row, a size past the data, no way to the hub.
    """
    name = settings.name
    if name == "arithmetic":
        sizes = {
            "train": ARITHMETIC_SIZES["train"] if settings.train_size is None else settings.train_size,
            "test": ARITHMETIC_SIZES["test"] if settings.eval_size is None else settings.eval_size,
        }
        made = {
            split: [_example(row, at) for at, row in enumerate(arithmetic.problems(size, settings.seed, split))]
            for split, size in sizes.items()
        }
        return Splits(**made)
    if name == "gsm8k":
        train, test = _gsm8k(settings.folder)
    elif name.endswith(".jsonl"):
        train, test = _own_file(_own_path(name, settings.folder), numeric)
    else:
        nearest = difflib.get_close_matches(name.lower(), NAMES, n=1, cutoff=0.0)[0]
        raise UserError(
            f"data.name: unknown data set {name!r}; the nearest is {nearest} "
            f"(known: {', '.join(NAMES)}, or the path of a .jsonl file)"
        )
    return Splits(
        _subset(train, settings.train_size, settings.seed, f"data.train_size: {name}"),
        _subset(test, settings.eval_size, settings.seed, f"data.eval_size: {name}"),
    )


def _example(row: dict[str, str], index: int) -> Example:
    return Example(TEMPLATE.format(question=row["question"]), row["answer"], index)


def _subset(examples: list[Example], size: int | None, seed: int, place: str) -> list[Example]:
    if size is not None and size > len(examples):
        raise UserError(f"{place} has {len(examples)} questions, {size} were asked for; use a smaller size or null")
    shuffled = list(examples)
    random.Random(seed).shuffle(shuffled)
    return shuffled[:size]


def _gsm8k(folder: str | None) -> tuple[list[Example], list[Example]]:
    named = folder or os.environ.get(VARIABLE)
    if named:
        paths = [Path(named).expanduser() / f"gsm8k_{split}.jsonl" for split in ("train", "test")]
        missing = [str(path) for path in paths if not path.is_file()]
        if not missing:
            train, test = (_read(path, numeric=True) for path in paths)
            return train, test
        if folder or len(missing) == 1:
            place = "data.folder" if folder else VARIABLE
            raise UserError(f"{place}: {missing[0]} is missing; put gsm8k_train.jsonl and gsm8k_test.jsonl there")
    return _from_hub()


def _from_hub() -> tuple[list[Example], list[Example]]:
    cause = hub.unreachable()
    if cause is None:
        import datasets  # slow to import, and only this path needs it

        try:
            loaded = datasets.load_dataset("openai/gsm8k", "main")
        except (OSError, ValueError, RuntimeError) as error:  # what it raises when neither the hub nor its cache has it
            cause = " ".join(str(error).split())[:200] or type(error).__name__
        else:
            train, test = (
                _checked(((f"openai/gsm8k {split}, row {at + 1}", row) for at, row in enumerate(loaded[split])), True)
                for split in ("train", "test")
            )
            return train, test
    raise UserError(
        f"data.name: gsm8k can't be loaded from the hub ({cause}); set data.folder or {VARIABLE} to a folder with "
        "gsm8k_train.jsonl and gsm8k_test.jsonl, or HF_HUB_OFFLINE=1 to use a copy in the hub's cache"
    )


def _own_path(name: str, folder: str | None) -> Path:
    path = Path(name).expanduser()
    named = folder or os.environ.get(VARIABLE)
    if not path.is_file() and named and (Path(named).expanduser() / name).is_file():
        path = Path(named).expanduser() / name
    if not path.is_file():
        there = [str(other) for other in sorted(path.parent.glob("*.jsonl")) if other.is_file()]
        nearest = difflib.get_close_matches(str(path), there, n=1, cutoff=0.0)
        mend = f"did you mean {nearest[0]}?" if nearest else "give the path of a .jsonl file with question and answer"
        raise UserError(f"data.name: no file {name}; {mend}")
    return path


def _own_file(path: Path, numeric: bool) -> tuple[list[Example], list[Example]]:
    """A user's file: `x_test.jsonl` beside `x_train.jsonl` is the held-out half; otherwise a tenth of the file is.

    The tenth is chosen by a hash of the question, so neither the seed nor the order of the rows moves a question
    to the other half, and rows that repeat a question stay together.
    """
    examples = _read(path, numeric)
    beside = path.with_name(path.name.removesuffix("train.jsonl") + "test.jsonl")
    if path.name.endswith("_train.jsonl") and beside.is_file():
        return examples, _read(beside, numeric)
    ordered = sorted({e.prompt for e in examples}, key=lambda prompt: hashlib.sha256(prompt.encode()).digest())
    if len(ordered) < 2:
        raise UserError(f"{path}: one question only; at least two are needed, to hold one out")
    held_out = set(ordered[: max(1, len(ordered) // TEST_SHARE)])
    return [e for e in examples if e.prompt not in held_out], [e for e in examples if e.prompt in held_out]


def _read(path: Path, numeric: bool) -> list[Example]:
    try:
        # Split at newlines only: a JSON string may hold other line separators.
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} can't be read as UTF-8 text: {error}") from None

    def rows() -> Iterable[tuple[str, Any]]:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            place = f"{path}, row {number}"
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise UserError(f"{place}: not JSON ({error}); each line must be one JSON object") from None
            yield place, row

    examples = _checked(rows(), numeric)
    if not examples:
        raise UserError(f"{path}: no rows; each line must be a JSON object with question and answer")
    return examples


def _checked(rows: Iterable[tuple[str, Any]], numeric: bool) -> list[Example]:
    """Rows with their places, as examples; the first bad one is refused by its place."""
    examples = []
    for index, (place, row) in enumerate(rows):
        if not isinstance(row, dict):
            raise UserError(f"{place}: a JSON object with question and answer is needed, got {type(row).__name__}")
        for field in ("question", "answer"):
            if field not in row:
                raise UserError(
                    f"{place}: the field {field!r} is missing; it has {', '.join(map(repr, row)) or 'none'}"
                )
        question, answer = row["question"], row["answer"]
        if not isinstance(question, str) or not question.strip():
            raise UserError(f"{place}: question must be a text that is not empty, got {str(question)[:40]!r}")
        if isinstance(answer, int | float) and not isinstance(answer, bool):
            answer = str(answer)
        if not isinstance(answer, str) or not answer.strip():
            raise UserError(f"{place}: answer must be a text or a number, got {str(answer)[:40]!r}")
        if numeric and parse_gold(answer) is None:
            raise UserError(f"{place}: no number in the answer {answer[-40:]!r}; end it with '#### N', or give N alone")
        examples.append(_example({"question": question, "answer": answer}, index))
    return examples
