"""A table of evaluations: of every run and model, on every data set, at every step."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from loop_rl.errors import UserError
from loop_rl.report.cells import as_csv, as_json, check_format, markdown, number, rich_table, with_error
from loop_rl.report.runs import readable_rows
from loop_rl.runs.rows import is_number

# What makes two rows the same evaluation; made again, the later one counts.
_IDENTITY = ("name", "step", "data", "questions", "samples", "temperature", "depth", "cache", "depth_tolerance")
_METRICS = re.compile(r"pass@\d+|stderr(@\d+)?|reward|questions|truncated|no_answer|not_scored|mean_depth")
WHOLE = "all"


def evaluations(folders: Sequence[str | Path]) -> tuple[list[dict[str, Any]], list[str]]:
    """The evaluations in run folders and in folders of `loop-rl eval`, a folder of such folders standing for all; and
    a line for each file or folder that could not be read.

    A row has name (of the run or model), step, data, part (`all`, or such as `level 3`), questions, samples,
    temperature, pass@k and their standard errors, and the shares and counts of what went wrong; None where a row of
    evals.jsonl does not say.

    Raises UserError for a folder that does not exist, and where there is no evaluation at all.
    """
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    found, problems = _eval_folders(folders)
    for folder in found:
        kept, damage = readable_rows(folder / "evals.jsonl")
        problems += [f"{folder}: {line}" for line in damage]
        for row in kept:
            name = folder.name if (folder / "recipe.yaml").is_file() else str(row.get("model", folder.name))
            row = {"name": name, **row}
            key = (folder.resolve(), *(str(row.get(part)) for part in _IDENTITY))
            rows.pop(key, None)
            rows[key] = row
    if not rows:
        raise UserError("; ".join(problems) or "no folder was given to report on")
    return lines(list(rows.values())), problems


def lines(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of evals.jsonl as lines of the table: each one's whole, and then its parts by level and subject."""
    found = []
    for row in rows:
        about = {key: row.get(key) for key in ("name", "step", "data", "depth", "cache")}
        sampling = {key: row.get(key) for key in ("samples", "temperature")}
        parts = [(WHOLE, row)]
        for by in sorted(key for key in row if key.startswith("by_")):
            if isinstance(row[by], dict):
                parts += [(f"{by.removeprefix('by_')} {value}", part) for value, part in row[by].items()]
        parts = [(part, values) for part, values in parts if isinstance(values, dict)]
        for part, values in parts:
            metrics = {key: value for key, value in values.items() if _METRICS.fullmatch(key)}
            found.append({**about, "part": part, **sampling, **metrics})
    return found


def _eval_folders(folders: Sequence[str | Path]) -> tuple[list[Path], list[str]]:
    found: dict[Path, Path] = {}
    problems = []
    for folder in map(Path, folders):
        if not folder.is_dir():
            raise UserError(f"there is no folder {folder}; give run folders, or what loop-rl eval wrote (evals/MODEL)")
        here = [folder] if (folder / "evals.jsonl").exists() else sorted(p.parent for p in folder.glob("*/evals.jsonl"))
        if not here:
            problems.append(f"{folder} has no evaluations: neither it nor a folder in it has an evals.jsonl")
        for one in here:
            found.setdefault(one.resolve(), one)
    return list(found.values()), problems


def render_evaluations(rows: Sequence[dict[str, Any]], format: str = "table") -> str:
    """Lines as text: a table for a terminal or Markdown, with the parts in a second one; CSV or JSON, with all keys."""
    check_format(format)
    if format == "json":
        return as_json(rows)
    if format == "csv":
        return as_csv(rows)
    whole = [row for row in rows if row["part"] == WHOLE]
    parts = [row for row in rows if row["part"] != WHOLE]
    tables = [_columns(some) for some in (whole, parts) if some]
    if format == "md":
        return "\n".join(markdown(columns, _WORDS) for columns in tables) + f"\n{_CAPTION}\n"
    captions = [""] * (len(tables) - 1) + [_CAPTION]
    return "".join(rich_table(columns, _WORDS, note) for columns, note in zip(tables, captions, strict=True))


_WORDS = ("model", "data", "part")
_CAPTION = (
    "±: standard error over questions; no answer, cut: shares of all samples in which no answer was found, or which "
    "were cut at the length cap"
)


def _columns(rows: Sequence[dict[str, Any]]) -> dict[str, list[str]]:
    """Columns of cells; name, part, depth, cache, recurrences and not scored only where they tell something.

    Beside pass@1 there is pass@8, and what a row with other samples has most: pass@4 of 4, pass@16 of 16.
    """
    most = sorted({8 for row in rows if _value(row, "pass@8") is not None} | {_most(row) for row in rows} - {1})
    columns = {
        "model": [str(row["name"]) for row in rows],
        "step": [_cell(row, "step", "d") for row in rows],
        "data": [str(row["data"]) for row in rows],
        "part": [row["part"] for row in rows],
        "depth": [_cell(row, "depth", "d") for row in rows],
        "cache": [str(row.get("cache") or "–") for row in rows],
        "recurrences": [_cell(row, "mean_depth", ".2f") for row in rows],
        "questions": [_cell(row, "questions", "d") for row in rows],
        "samples": [_cell(row, "samples", "d") for row in rows],
        "temperature": ["greedy" if row.get("temperature") == 0 else _cell(row, "temperature", "g") for row in rows],
        "pass@1": [with_error(_value(row, "pass@1"), _value(row, "stderr")) for row in rows],
        **{
            f"pass@{k}": [with_error(_value(row, f"pass@{k}"), _value(row, f"stderr@{k}")) for row in rows]
            for k in most
        },
        "no answer": [_cell(row, "no_answer", ".1%") for row in rows],
        "cut": [_cell(row, "truncated", ".1%") for row in rows],
        "not scored": [_cell(row, "not_scored", "d") for row in rows],
    }
    if all(row["name"] is None for row in rows):
        del columns["model"]
    if all(row["part"] == WHOLE for row in rows):
        del columns["part"]
    if len({row.get("depth") for row in rows}) < 2:
        del columns["depth"]
    if all(row.get("cache") in (None, "full") for row in rows):
        del columns["cache"]
    if all(_value(row, "mean_depth") in (None, row.get("depth")) for row in rows):
        del columns["recurrences"]
    if not any(_value(row, "not_scored") for row in rows):
        del columns["not scored"]
    return columns


def _most(row: dict[str, Any]) -> int:
    """The largest k of which the row has pass@k; 1 where it has none."""
    names = [key for key in row if key.startswith("pass@") and _value(row, key) is not None]
    return max((int(name.removeprefix("pass@")) for name in names), default=1)


def _value(row: dict[str, Any], key: str) -> float | None:
    return row[key] if is_number(row.get(key)) else None


def _cell(row: dict[str, Any], key: str, spec: str) -> str:
    return number(_value(row, key), spec)
