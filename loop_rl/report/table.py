"""The comparison of estimators: what each run learned, and what an update cost it."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import statistics
from collections.abc import Sequence
from pathlib import Path

from loop_rl.errors import UserError
from loop_rl.report.runs import Group, Run, differences, group_runs, is_number, read_runs

BEFORE = "before RL"
DEFAULT_BASELINE = "full_bptt"
FORMATS = ("table", "md", "csv", "json")


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of the comparison; None where the runs do not say.

    A spread is the sample standard deviation over runs; for a single run, the evaluation's own standard error of
    pass@1. Times are seconds: the median over all steps of all runs, each run's first step left out because it pays
    for warming up. `ratio` is the baseline's median update time over this row's.
    """

    name: str
    data: str
    seeds: int
    steps: int | None = None
    before: float | None = None
    pass_1: float | None = None
    pass_1_spread: float | None = None
    pass_8: float | None = None
    pass_8_spread: float | None = None
    questions: int | None = None
    update_time: float | None = None
    step_time: float | None = None
    ratio: float | None = None
    note: str = ""


def comparison(runs: Sequence[str | Path], baseline: str | None = None) -> list[Row]:
    """A row before RL (the step-0 evaluations pooled) for each data set and model, then one for each estimator.

    Runs that differ in their seeds only are pooled. `baseline` is an estimator's name; without one, full_bptt if it
    was run. Raises UserError for folders that are no runs and for a baseline that none of them ran.
    """
    read = read_runs(runs)
    groups = group_runs(read)
    if baseline is not None and baseline not in {group.estimator for group in groups}:
        known = ", ".join(dict.fromkeys(group.estimator for group in groups))
        raise UserError(f"no run given has the baseline estimator {baseline!r}; they have: {known}")
    bases = [group for group in groups if group.estimator == (baseline or DEFAULT_BASELINE)]
    return [*_before_rows(read), *(_row(group, bases) for group in groups)]


def _before_rows(runs: list[Run]) -> list[Row]:
    starts: dict[tuple[str, str, str], list[Run]] = {}
    for run in runs:
        start = run.data, str(run.recipe.get("model.path")), str(run.recipe.get("model.depth"))
        starts.setdefault(start, []).append(run)
    rows = []
    for (data, path, depth), members in sorted(starts.items()):
        several = sum(other == data for other, _, _ in starts) > 1
        evals = [run.evals[0] for run in members if 0 in run.evals]
        rows.append(
            Row(
                name=f"{BEFORE} ({path}, depth {depth})" if several else BEFORE,
                data=data,
                seeds=len({run.seed for run in members}),
                steps=0,
                note="" if evals else "no evaluation at step 0",
                **_scores(evals),
            )
        )
    return rows


def _row(group: Group, bases: list[Group]) -> Row:
    finals = [run.evals[last] for run in group.runs if (last := max(run.evals, default=0)) > 0]
    befores = [_value(run.evals.get(0), "pass@1") for run in group.runs]
    seeds = len({run.seed for run in group.runs})
    update = median_time(group, "time/update")
    notes = []
    if seeds != len(group.runs):
        notes.append(f"{len(group.runs)} runs")
    for run in group.runs:
        done, wanted = max(run.metrics, default=0), run.recipe.get("run.max_steps")
        if is_number(wanted) and done < wanted:
            notes.append(f"{run.folder.name}: {done} of {wanted} steps")
        last = max(run.evals, default=0)
        if last == 0:
            notes.append(f"{run.folder.name}: no evaluation after step 0")
        elif last < done:
            notes.append(f"{run.folder.name}: last evaluated at step {last}")
        if run.torn_lines:
            notes.append(f"{run.folder.name}: {run.torn_lines} torn line{'s' * (run.torn_lines > 1)} skipped")
    ratio = None
    # Of several settings of the baseline, the one that this estimator's runs are closest to.
    same_data = [base for base in bases if base.data == group.data]
    base = min(same_data, key=lambda base: len(differences(base.settings, group.settings)), default=None)
    base_update = median_time(base, "time/update") if base is not None else None
    if base is not None and update and base_update:
        ratio = base_update / update
        other = [key for key in differences(base.settings, group.settings) if key != "run.max_steps"]
        if other:
            notes.append(f"baseline differs in {', '.join(other)}")
    return Row(
        name=group.label,
        data=group.data,
        seeds=seeds,
        steps=max((max(run.metrics, default=0) for run in group.runs), default=None),
        before=_mean(befores),
        update_time=update,
        step_time=median_time(group, "time/step"),
        ratio=ratio,
        note="; ".join(notes),
        **_scores(finals),
    )


def median_time(group: Group, key: str) -> float | None:
    """The median of a time in seconds over the steps of a group's runs, without the first step of each."""
    times = [value for run in group.runs for step, value in run.series(key).items() if step != min(run.metrics)]
    return statistics.median(times) if times else None


def _scores(evals: list[dict]) -> dict[str, float | int | None]:
    one = [value for row in evals if (value := _value(row, "pass@1")) is not None]
    eight = [value for row in evals if (value := _value(row, "pass@8")) is not None]
    spread = statistics.stdev(one) if len(one) > 1 else _value(evals[0], "stderr") if evals else None
    questions = [int(row["questions"]) for row in evals if is_number(row.get("questions"))]
    return {
        "pass_1": _mean(one),
        "pass_1_spread": spread,
        "pass_8": _mean(eight),
        "pass_8_spread": statistics.stdev(eight) if len(eight) > 1 else None,
        "questions": max(questions, default=None),
    }


def _value(row: dict | None, key: str) -> float | None:
    return float(row[key]) if row is not None and is_number(row.get(key)) else None


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


# ---- rendering


def render(rows: Sequence[Row], format: str = "table") -> str:
    """The rows as text: a table for a terminal, Markdown, CSV or JSON; the last two have every field in full."""
    if format not in FORMATS:
        raise UserError(f"unknown report format {format!r}; one of {', '.join(FORMATS)}")
    if format == "json":
        return json.dumps([dataclasses.asdict(row) for row in rows], indent=2, ensure_ascii=False) + "\n"
    if format == "csv":
        text = io.StringIO()
        writer = csv.DictWriter(text, [field.name for field in dataclasses.fields(Row)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(dataclasses.asdict(row) for row in rows)
        return text.getvalue()
    columns = _columns(rows)
    if format == "md":
        return f"{markdown(columns, _WORDS)}\n{_CAPTION}\n"
    return rich_table(columns, _WORDS, _CAPTION)


_WORDS = ("estimator", "data", "note")
_CAPTION = (
    "± over seeds, or of the evaluation for one seed; times: medians, first step left out; "
    "speed-up: baseline's update time / this one's"
)


def _columns(rows: Sequence[Row]) -> dict[str, list[str]]:
    """Columns of cells; data and note only where they tell something."""
    columns = {
        "estimator": [row.name for row in rows],
        "data": [row.data for row in rows],
        "seeds": [str(row.seeds) for row in rows],
        "steps": [number(row.steps, "d") for row in rows],
        "pass@1 before": [number(row.before, ".3f") for row in rows],
        "pass@1": [spread(row.pass_1, row.pass_1_spread) for row in rows],
        "pass@8": [spread(row.pass_8, row.pass_8_spread) for row in rows],
        "update (s)": [number(row.update_time, ".3g") for row in rows],
        "step (s)": [number(row.step_time, ".3g") for row in rows],
        "speed-up": [f"{row.ratio:.2f}x" if row.ratio is not None else "–" for row in rows],
        "note": [row.note for row in rows],
    }
    if len({row.data for row in rows}) < 2:
        del columns["data"]
    if not any(row.note for row in rows):
        del columns["note"]
    return columns


def markdown(columns: dict[str, list[str]], words: Sequence[str]) -> str:
    """Columns of cells as a Markdown table; those of `words` to the left, the others to the right."""
    lines = [list(columns), ["---" if name in words else "---:" for name in columns]]
    lines += [[cell.replace("|", "\\|") for cell in line] for line in zip(*columns.values(), strict=True)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def rich_table(columns: dict[str, list[str]], words: Sequence[str], caption: str) -> str:
    """Columns of cells as a table for a terminal."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(caption=caption or None, caption_justify="left")
    for name in columns:
        left = name in words
        table.add_column(
            name, justify="left" if left else "right", no_wrap=name != "note", max_width=48 if left else None
        )
    for cells in zip(*columns.values(), strict=True):
        table.add_row(*map(Text, cells))  # Text: a name in brackets is not rich's markup
    console = Console(file=io.StringIO(), width=240, color_system=None)
    console.print(table)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines()) + "\n"


def number(value: float | None, spec: str) -> str:
    """A number as a cell; a dash for None."""
    return "–" if value is None else format(value, spec)


def spread(value: float | None, error: float | None) -> str:
    """A number with what it may be off by, as a cell."""
    return number(value, ".3f") + (f" ± {error:.3f}" if value is not None and error is not None else "")
