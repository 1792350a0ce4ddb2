"""MBPP+ v0.2.0's tasks, read from its file; JSON has no tuples and no complex numbers, so inputs are restored here."""

import gzip
import json
import marshal
import os
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

FILE_NAMES = ("MbppPlus-v0.2.0.jsonl.gz", "MbppPlus-v0.2.0.jsonl")


@dataclass(frozen=True)
class MbppTask:
    """One task.

    Attributes:
        base_input, plus_input: what the entry point is called with, a sequence of arguments each.
        atol: the data's absolute tolerance; 0: exact, except for floats (see `rewards.code.oracle`).
        assertion: MBPP's own asserts; not used for scoring.
    """

    task_id: str
    prompt: str
    entry_point: str
    canonical_solution: str
    base_input: list[Any]
    plus_input: list[Any]
    atol: float
    assertion: str

    @property
    def inputs(self) -> list[Any]:
        return [*self.base_input, *self.plus_input]

    @cached_property
    def encoded(self) -> list[bytes]:
        """The inputs as a sandbox takes them."""
        return [marshal.dumps(arguments, 2) for arguments in self.inputs]

    def name_input(self, index: int) -> str:
        """How a reason calls an input: "base input 0", "plus input 17", as numbered in the data."""
        base = len(self.base_input)
        return f"base input {index}" if index < base else f"plus input {index - base}"


def _rows(argument: Any) -> list[Any]:
    return [tuple(row) for row in argument]


def _deep(argument: Any) -> Any:
    return tuple(map(_deep, argument)) if isinstance(argument, list) else argument


def _each(restore: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda arguments: [restore(argument) for argument in arguments]


def _first(restore: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda arguments: [restore(arguments[0]), *arguments[1:]]


_RESTORE: dict[int, Callable[[Any], Any]] = {
    106: lambda arguments: [arguments[0], tuple(arguments[1])],
    124: lambda arguments: [float(arguments[0]), complex(arguments[1])],
    252: _first(complex),
    278: _each(lambda rows: tuple(tuple(row) if isinstance(row, list) else row for row in rows)),
    722: _first(lambda table: {key: tuple(row) for key, row in table.items()}),
}
_RESTORE |= dict.fromkeys((2, 116, 132, 222, 261, 273, 394, 421, 424, 429, 470, 560, 579, 596), _each(tuple))
_RESTORE |= dict.fromkeys((616, 630, 726, 740, 744, 809), _each(tuple))
_RESTORE |= dict.fromkeys((63, 64, 70, 94, 120, 237, 272, 299, 409, 473, 614, 780), _each(_rows))
_RESTORE |= dict.fromkeys((75, 413, 444, 753), _first(_rows))
_RESTORE |= dict.fromkeys((250, 405, 446, 720, 763, 808), _first(tuple))
_RESTORE |= dict.fromkeys((259, 445), _each(lambda rows: tuple(_rows(rows))))
_RESTORE |= dict.fromkeys((580, 615, 791), _each(_deep))
_RESTORE[750] = _RESTORE[106]


def _task(row: dict[str, Any]) -> MbppTask:
    name = row["task_id"]
    restore = _RESTORE.get(int(name.removeprefix("Mbpp/")), list)
    # A task without plus inputs has {} there.
    base, plus = ([restore(arguments) for arguments in row[key] or []] for key in ("base_input", "plus_input"))
    texts = [row[key] for key in ("prompt", "entry_point", "canonical_solution", "assertion")]
    if not base or not all(isinstance(text, str) for text in texts):
        raise ValueError("no inputs, or a text that is none")
    return MbppTask(name, *texts[:3], base, plus, float(row["atol"]), texts[3])


def load_tasks(path: str | Path) -> dict[str, MbppTask]:
    """The tasks of a file by id ("Mbpp/2"), in its order.

    Raises:
        ValueError: no such file, or not MBPP+; one line names the file and the row.
    """
    path, number = Path(path), 0
    tasks: dict[str, MbppTask] = {}
    try:
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else open(path, encoding="utf-8") as lines:
            for line in lines:
                number += 1
                task = _task(json.loads(line))
                tasks[task.task_id] = task
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path}: can't be read as MBPP+ ({error})") from error
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        cause = f"{type(error).__name__} {error}".strip()
        raise ValueError(f"{path}, row {number}: no MBPP+ task ({cause}); get {FILE_NAMES[0]} again") from error
    if not tasks:
        raise ValueError(f"{path}: no tasks; get {FILE_NAMES[0]} again")
    return tasks


def find_data() -> Path:
    """MBPP+'s file: MBPP_OVERRIDE_PATH (the file), else in the folder LOOP_RL_DATA.

    Raises:
        ValueError: neither leads to one.
    """
    named, folder = os.environ.get("MBPP_OVERRIDE_PATH"), os.environ.get("LOOP_RL_DATA")
    if named:
        return Path(named)
    for name in FILE_NAMES if folder else ():
        if (path := Path(folder) / name).is_file():
            return path
    where = f"; it isn't in LOOP_RL_DATA={folder}" if folder else ""
    raise ValueError(
        f"MBPP+ needs its file {FILE_NAMES[0]}{where}: set MBPP_OVERRIDE_PATH to it, LOOP_RL_DATA to its folder, "
        "or the recipe's data.folder"
    )
