"""Rows of JSON, one a line: metrics.jsonl and evals.jsonl, also when a crash or a full disk cut a line."""

from __future__ import annotations

import json
import logging
import math
import os
from pathlib import Path
from typing import Any

from loop_rl.errors import UserError
from loop_rl.runs.disk import write_whole

logger = logging.getLogger(__name__)


def read_rows(file: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """The rows, and a note (line and fault) on each line that is none.

    A row is an object with the number of a step as `step`; what it has as `data` is a name. A file that is not there
    has no rows. Raises UserError for one that can't be read, such as a folder.
    """
    rows, notes = [], []
    for number, line in enumerate(_lines(file), 1):
        if not line.strip():
            continue
        row, fault = _row(line)
        if fault is None:
            rows.append(row)
        else:
            notes.append(f"line {number}: {fault}")
    return rows, notes


def is_number(value: Any) -> bool:
    """Whether it is a finite number that a float can hold."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(float(value))
    except OverflowError:
        return False


def value_of(row: dict[str, Any] | None, key: str) -> float | None:
    """A row's number; None where it has none."""
    return float(row[key]) if row is not None and is_number(row.get(key)) else None


def append_row(file: Path, row: dict[str, Any]) -> dict[str, Any]:
    """Add a row: all of it or, where the disk takes only a part, nothing. Returns it as written: numbers that are not
    finite are None.

    A line that a killed process left without its end stays alone, so that this one can be read.
    """
    _refuse_a_pipe(file)
    row = _finite(row)
    text = json.dumps(row, allow_nan=False).encode() + b"\n"
    with file.open("a+b", buffering=0) as out:
        size = out.seek(0, os.SEEK_END)
        if size:
            out.seek(size - 1)
            text = text if out.read(1) == b"\n" else b"\n" + text
        try:
            written = 0
            while written < len(text):  # a disk that fills up takes a part, and refuses the rest
                written += out.write(text[written:])
        except OSError as error:
            out.truncate(size)
            raise OSError(error.errno, error.strerror, str(file)) from error
    return row


def drop_rows_after(file: Path, step: int | None) -> None:
    """Keep the rows up to a checkpoint's step, since those after it are written again; None: keep none.

    Lines that are no rows go too, with a warning. The file is replaced whole, so that a kill loses nothing.
    """
    rows, notes = read_rows(file)
    for note in notes:
        logger.warning("%s, %s; it is left out", file, note)
    kept = [row for row in rows if step is not None and row["step"] <= step]
    if notes or len(kept) < len(rows):
        write_whole(file, "".join(json.dumps(row) + "\n" for row in kept))


def _refuse_a_pipe(file: Path) -> None:
    """UserError for what is neither a file nor a folder: opening a pipe waits for its other end, for ever."""
    if file.exists() and not file.is_file() and not file.is_dir():
        raise UserError(f"{file} is neither a file nor a folder; move it away")


def _lines(file: Path) -> list[bytes]:
    _refuse_a_pipe(file)
    try:
        return file.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror or error}; move it away") from None


def _row(line: bytes) -> tuple[dict[str, Any], str | None]:
    """The row, or what keeps the line from being one."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):  # UnicodeDecodeError is a ValueError
        return {}, "not JSON, such as a line that was cut"
    if not isinstance(row, dict):
        return {}, "no JSON object"
    step = row.get("step")
    if isinstance(step, float) and step.is_integer():
        row["step"] = step = int(step)
    if not isinstance(step, int) or isinstance(step, bool) or not 0 <= step < 2**63:
        return {}, "step is no number of a step" if "step" in row else "no step"
    if not isinstance(row.get("data", ""), str):
        return {}, "data is no name of a data set"
    return row, None


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
