"""Rows of a local file: JSON lines or one JSON list, gzipped or not."""

import gzip
import json
import re
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from loop_rl.data.examples import Row
from loop_rl.errors import UserError

_ESCAPED_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def find_file(folder: Path, name: str) -> Path | None:
    """The file of that name in the folder, or gzipped beside it."""
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    return None


def read_data_file(path: Path, wanted: str = "question and answer") -> list[Row]:
    """The rows of a .json or .jsonl file, also with .gz behind; an index counts rows, a place counts lines.

    Args:
        path: an existing file.
        wanted: the fields that a row should have, for the words of a refusal.

    Raises:
        UserError: not UTF-8, not JSON, a row that is no object, or no row at all.
    """
    text = _text(path)
    listed = path.name.removesuffix(".gz").endswith(".json")
    values = _list_items(path, text) if listed else _lines(path, text)
    rows = as_rows(values, wanted)
    if not rows:
        what = "it must be a list of JSON objects" if listed else "each line must be a JSON object"
        raise UserError(f"{path}: no rows; {what} with {wanted}")
    return rows


def as_rows(values: Iterable[tuple[str, Any]], wanted: str) -> list[Row]:
    """Values with their places, numbered; the first that is no object is refused."""
    rows = []
    for index, (place, value) in enumerate(values):
        if not isinstance(value, dict):
            raise UserError(f"{place}: a JSON object with {wanted} is needed, got {type(value).__name__}")
        rows.append(Row(place, index, value))
    return rows


def _text(path: Path) -> str:
    try:
        raw = path.read_bytes()
        if path.name.endswith(".gz"):
            raw = gzip.decompress(raw)
        return raw.decode("utf-8-sig")
    except (OSError, EOFError, zlib.error) as error:  # gzip's own errors are OSErrors
        raise UserError(f"{path} can't be read: {error}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path} can't be read as UTF-8 text: {error}") from None


def _lines(path: Path, text: str) -> Iterator[tuple[str, Any]]:
    # Split at newlines only: a JSON string may hold other line separators.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        place = f"{path}, row {number}"
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{place}: not JSON ({error}); each line must be one JSON object") from None
        if _ESCAPED_SURROGATE.search(line):
            _refuse_surrogates(place, value)
        yield place, value


def _list_items(path: Path, text: str) -> Iterator[tuple[str, Any]]:
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not JSON ({error}); it must be one JSON list of objects") from None
    if not isinstance(values, list):
        raise UserError(f"{path}: a JSON list of objects is needed, got {type(values).__name__}")
    suspect = _ESCAPED_SURROGATE.search(text)
    for number, value in enumerate(values, start=1):
        if suspect:
            _refuse_surrogates(f"{path}, item {number}", value)
        yield f"{path}, item {number}", value


def _refuse_surrogates(place: str, value: Any) -> None:
    """Half of a surrogate pair is JSON, but no text: nothing can tokenize or write it."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise UserError(f"{place}: a text has half a character ({error.object[error.start]!a})") from None
