"""Cells and tables as text, the same for every report."""

from __future__ import annotations

import csv
import io
import json
import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import Any

from loop_rl.errors import UserError

FORMATS = ("table", "md", "csv", "json")
_WIDEST = 240  # characters of a table that goes to a file or a pipe
_WIDEST_WORD = 48


def check_format(format: str) -> None:
    """Raises UserError for a format that no report has."""
    if format not in FORMATS:
        raise UserError(f"unknown report format {format!r}; one of {', '.join(FORMATS)}")


def as_json(rows: Sequence[dict[str, Any]]) -> str:
    return json.dumps(list(rows), indent=2, ensure_ascii=False) + "\n"


def as_csv(rows: Sequence[dict[str, Any]]) -> str:
    """A column for every key of any row; what a row lacks, or has as None, is an empty cell."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(key for row in rows for key in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def markdown(columns: dict[str, list[str]], words: Sequence[str]) -> str:
    """Columns of cells as a Markdown table; those of `words` to the left, the others to the right."""
    lines = [list(columns), ["---" if name in words else "---:" for name in columns]]
    lines += [[" ".join(cell.replace("|", "\\|").split()) for cell in line] for line in _lines(columns)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def rich_table(columns: dict[str, list[str]], words: Sequence[str], caption: str) -> str:
    """Columns of cells as a table for a terminal; long words are wrapped, never cut.

    A table that is wider than the terminal comes in parts below each other, each with the columns that name its rows.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    room = shutil.get_terminal_size().columns if sys.stdout.isatty() else _WIDEST
    lines: list[str] = []
    for part in _parts(columns, words, room):
        table = Table()
        for name in part:
            if name in words:
                table.add_column(name, max_width=_WIDEST_WORD, overflow="fold")
            else:
                table.add_column(name, justify="right", no_wrap=True)
        for cells in _lines(part):
            table.add_row(*map(Text, cells))  # Text: a name in brackets is not rich's markup
        console = Console(file=io.StringIO(), width=_WIDEST, color_system=None)
        console.print(table)
        lines += [line.rstrip() for line in console.file.getvalue().splitlines()]
    lines += textwrap.wrap(caption, min(room, max(map(len, lines))))
    return "\n".join(lines) + "\n"


def _parts(columns: dict[str, list[str]], words: Sequence[str], room: int) -> list[dict[str, list[str]]]:
    """The columns in as few tables as fit into `room` characters; the first ones, up to the rows' names, in each."""
    names = list(columns)
    first = next((i for i, name in enumerate(names) if name in words), 0)
    end = next((i for i in range(first + 1, len(names)) if names[i] not in words), len(names))
    parts = [names[:end]]
    for name in names[end:]:
        if len(parts[-1]) > end and 1 + sum(_width(columns, other, words) for other in [*parts[-1], name]) > room:
            parts.append(names[:end])
        parts[-1].append(name)
    return [{name: columns[name] for name in part} for part in parts]


def _width(columns: dict[str, list[str]], name: str, words: Sequence[str]) -> int:
    """Characters that a column takes in a table, its frame included."""
    widest = max(map(len, [name, *columns[name]]))
    return (min(widest, _WIDEST_WORD) if name in words else widest) + 3


def number(value: float | None, spec: str) -> str:
    """A number as a cell; a dash for None."""
    return "–" if value is None else format(int(value) if spec == "d" else value, spec)


def with_error(value: float | None, error: float | None, spec: str = ".3f") -> str:
    """A number and its standard error as a cell."""
    return number(value, spec) + (f" ± {error:.3f}" if value is not None and error is not None else "")


def _lines(columns: dict[str, list[str]]) -> list[tuple[str, ...]]:
    return list(zip(*columns.values(), strict=True))
