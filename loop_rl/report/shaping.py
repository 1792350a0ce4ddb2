"""Pretraining runs side by side: what their depth prior and injection made of their fixed points.

Loss, sharing and contraction are those of `loop-rl diagnose RUN --out RUN`, which leaves diagnosis.json in the folder.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from loop_rl.errors import UserError
from loop_rl.report.runs import is_number, read_rows, run_folders
from loop_rl.report.table import FORMATS, markdown, rich_table

_SEED = re.compile(r"_seed\d+$")
DEPTHS = (5, 16, 64)
_CAPTION = (
    "nats a token on held-out text, mean ± standard deviation over seeds; shared: the second half of each row, its "
    "prefix read through terminal KV, at depth 5; penalty: relative perplexity of sharing at 5, 16 and 64 recurrences"
)


def by_kind(folders: Sequence[str | Path]) -> dict[str, list[Path]]:
    """The run folders by what made them: train, pretrain, or other, which no table compares."""
    kinds: dict[str, list[Path]] = {"train": [], "pretrain": [], "other": []}
    for folder in run_folders(folders):
        recipe = _recipe(folder)
        kind = "train" if "learner" in recipe else "other"
        if "prior" in recipe and "path" not in (recipe.get("model") or {}):
            kind = "pretrain"
        kinds[kind].append(folder)
    return kinds


def shaping(folders: Sequence[str | Path]) -> list[dict[str, Any]]:
    """A row for each arm: runs whose names differ only in a last `_seed0`, `_seed1`, ... .

    Every figure is a list, a value for each seed that has it, in order of the folders.
    """
    arms: dict[str, list[dict[str, float]]] = {}
    for folder in run_folders(folders):
        arms.setdefault(_SEED.sub("", folder.name), []).append(_figures(folder))
    return [
        {"arm": arm, "seeds": len(runs)}
        | {key: [run[key] for run in runs if key in run] for key in dict.fromkeys(key for run in runs for key in run)}
        for arm, runs in arms.items()
    ]


def render_shaping(rows: Sequence[dict[str, Any]], format: str = "table") -> str:
    """The rows as text; CSV has mean and standard deviation of every figure, JSON the values themselves."""
    if format not in FORMATS:
        raise UserError(f"unknown report format {format!r}; one of {', '.join(FORMATS)}")
    if format == "json":
        return json.dumps(list(rows), indent=2) + "\n"
    if format == "csv":
        text = io.StringIO()
        flat = [_flat(row) for row in rows]
        writer = csv.DictWriter(text, list(dict.fromkeys(key for row in flat for key in row)), lineterminator="\n")
        writer.writeheader()
        writer.writerows(flat)
        return text.getvalue()
    columns = {"arm": [row["arm"] for row in rows], "seeds": [str(row["seeds"]) for row in rows]}
    columns |= {f"loss at {depth}": [_cell(row, f"loss_{depth}") for row in rows] for depth in DEPTHS}
    columns["shared"] = [_cell(row, "shared_5") for row in rows]
    columns["penalty"] = [" ".join(_percent(row, f"penalty_{depth}") for depth in DEPTHS) for row in rows]
    columns |= {
        "residual": [_percent(row, "residual") for row in rows],
        "eigenvalue": [_cell(row, "eigenvalue", 2) for row in rows],
        "E[R]": [_cell(row, "mean_depth", 2) for row in rows],
        "entropy": [_cell(row, "entropy", 2) for row in rows],
        "p(5)": [_cell(row, "p5", 2) for row in rows],
        "PFLOPs": [_cell(row, "petaflops", 3) for row in rows],
    }
    if format == "md":
        return markdown(columns, ("arm",)) + f"\n{_CAPTION}\n"
    return rich_table(columns, ("arm",), _CAPTION)


def _figures(folder: Path) -> dict[str, float]:
    rows, _ = read_rows(folder / "metrics.jsonl")
    found: dict[str, Any] = {}
    if rows:
        last = rows[-1]
        probabilities = last.get("prior/probabilities") or []
        found = {
            "mean_depth": last.get("prior/mean"),
            "entropy": last.get("prior/entropy"),
            "p5": probabilities[4] if len(probabilities) > 4 else 0.0,
            "petaflops": last["flops"] / 1e15 if is_number(last.get("flops")) else None,
            "train_loss": statistics.fmean(row["loss"] for row in rows[-20:] if is_number(row.get("loss"))),
        }
    file = folder / "diagnosis.json"
    if file.is_file():
        try:
            diagnosis = json.loads(file.read_text(encoding="utf-8"))
            found |= {f"loss_{depth}": diagnosis["loss"].get(str(depth)) for depth in DEPTHS}
            for depth in DEPTHS:
                sharing = diagnosis["sharing_by_depth"].get(str(depth), {})
                found |= {f"shared_{depth}": sharing.get("terminal"), f"penalty_{depth}": sharing.get("penalty")}
            found |= {"residual": diagnosis["residual"][0], "eigenvalue": diagnosis["contraction"]["worst"]}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{file} is not what loop-rl diagnose writes ({error}); make it again") from None
    return {key: value for key, value in found.items() if is_number(value)}


def _recipe(folder: Path) -> dict[str, Any]:
    try:
        values = yaml.safe_load((folder / "recipe.yaml").read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"cannot read {folder / 'recipe.yaml'}: {' '.join(str(error).split())}") from None
    return values if isinstance(values, dict) else {}


def _moments(row: dict[str, Any], key: str) -> tuple[float | None, float | None]:
    values = row.get(key) or []
    return (statistics.fmean(values) if values else None, statistics.stdev(values) if len(values) > 1 else None)


def _cell(row: dict[str, Any], key: str, digits: int = 3) -> str:
    mean, deviation = _moments(row, key)
    if mean is None:
        return "–"
    return f"{mean:.{digits}f}" + (f" ± {deviation:.{digits}f}" if deviation is not None and deviation > 0 else "")


def _percent(row: dict[str, Any], key: str) -> str:
    mean, _ = _moments(row, key)
    return "–" if mean is None or not math.isfinite(mean) else f"{mean:+.2%}" if "penalty" in key else f"{mean:.2%}"


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {"arm": row["arm"], "seeds": row["seeds"]}
    for key in row:
        if key not in flat:
            mean, deviation = _moments(row, key)
            flat |= {key: mean, f"{key}_deviation": deviation}
    return flat
