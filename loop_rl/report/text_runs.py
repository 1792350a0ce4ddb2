"""Runs that train on text side by side: pretraining, fine-tuning and distillation.

Loss, tokens and time are of a run's own metrics. Loss by depth, sharing and contraction are those of `loop-rl diagnose
RUN --out RUN`, which leaves diagnosis.json in the folder.
"""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Sequence
from typing import Any

from loop_rl.report.answers import measure
from loop_rl.report.cells import as_csv, as_json, check_format, markdown, number, rich_table, with_error
from loop_rl.report.runs import RunLog
from loop_rl.runs.rows import is_number, value_of

_SEED = re.compile(r"_seed\d+$")
_OF_THE_SAMPLE = {"run.name", "run.folder", "train.seed", "data.seed", "train.save_steps", "train.keep_checkpoints"}
DEPTHS = (5, 16, 64)
LAST = 20  # updates that the training loss is averaged over
_WORDS = ("arm", "kind", "held-out data", "note")


def text_runs(runs: Sequence[RunLog]) -> list[dict[str, Any]]:
    """A row for each arm: runs of one kind and one recipe whose names differ only in a last `_seed0`, `_seed1`, ... .

    Every metric is a list, a value for each seed that has it, in order of the runs; only pass_1, of the last
    evaluation, is one mean with its standard error and 95 % interval. note: what could not be read.
    """
    arms: dict[tuple[Any, ...], list[RunLog]] = {}
    for run in runs:
        settings = tuple(sorted((key, str(value)) for key, value in run.recipe.items() if key not in _OF_THE_SAMPLE))
        arms.setdefault((run.kind, _SEED.sub("", run.folder.name), settings), []).append(run)
    rows = []
    for kind, arm, settings in arms:
        namesakes = [dict(other) for other_kind, name, other in arms if (other_kind, name) == (kind, arm)]
        own = dict(settings)
        differing = sorted({key for other in namesakes for key in own if other.get(key) != own[key]})
        told = ", ".join(f"{key}={own[key]}" for key in differing)
        members = arms[kind, arm, settings]
        read = [_metrics(run) for run in members]
        keys = dict.fromkeys(key for metrics, _ in read for key in metrics)
        rows.append(
            {"arm": f"{arm} ({told})" if told else arm, "kind": kind, "seeds": len(members)}
            | {key: [metrics[key] for metrics, _ in read if key in metrics] for key in keys}
            | _held_out(members)
            | {"note": "; ".join(note for _, notes in read for note in notes)}
        )
    return rows


def render_text_runs(rows: Sequence[dict[str, Any]], format: str = "table") -> str:
    """The rows as text; CSV has mean and standard error of every metric, JSON the values themselves."""
    check_format(format)
    if format == "json":
        return as_json(rows)
    if format == "csv":
        return as_csv([_flat(row) for row in rows])
    columns, caption = _columns(rows), _caption(rows)
    if format == "md":
        return markdown(columns, _WORDS) + f"\n{caption}\n"
    return rich_table(columns, _WORDS, caption)


def _columns(rows: Sequence[dict[str, Any]]) -> dict[str, list[str]]:
    """Columns of cells; all but arm and seeds only where a row has something in them."""
    columns = {
        "arm": [row["arm"] for row in rows],
        "kind": [row["kind"] for row in rows],
        "seeds": [str(row["seeds"]) for row in rows],
        "updates": [_cell(row, "updates", ".0f") for row in rows],
        "loss": [_cell(row, "train_loss") for row in rows],
        "perplexity": [_cell(row, "perplexity", ".2f") for row in rows],
        "hidden": [_cell(row, "hidden") for row in rows],
        "kl": [_cell(row, "kl") for row in rows],
        "tokens": [number(_mean(row, "tokens"), ",.0f") for row in rows],
        "time (s)": [number(_mean(row, "seconds"), ",.0f") for row in rows],
        "pass@1": [with_error(row.get("pass_1"), row.get("pass_1_error")) for row in rows],
        "held-out data": [row.get("held_out_data") or "–" for row in rows],
        **{f"loss at {depth}": [_cell(row, f"loss_{depth}") for row in rows] for depth in DEPTHS},
        "shared": [_cell(row, "shared_5") for row in rows],
        "penalty": [_penalties(row) for row in rows],
        "residual": [number(_mean(row, "residual"), ".2%") for row in rows],
        "eigenvalue": [_cell(row, "eigenvalue", ".2f") for row in rows],
        "E[R]": [_cell(row, "mean_depth", ".2f") for row in rows],
        "entropy": [_cell(row, "entropy", ".2f") for row in rows],
        "p(5)": [_cell(row, "p5", ".2f") for row in rows],
        "PFLOPs": [_cell(row, "petaflops") for row in rows],
        "note": [row["note"] for row in rows],
    }
    if len({row["kind"] for row in rows}) < 2:
        del columns["kind"]
    kept = ("arm", "seeds", "updates", "loss", "tokens", "time (s)")
    return {name: cells for name, cells in columns.items() if name in kept or set(cells) - {"–", ""}}


def _caption(rows: Sequence[dict[str, Any]]) -> str:
    parts = [
        f"loss: while training, mean of the last {LAST} updates, nats per token, and perplexity its exponential",
        "±: standard error over seeds; of pass@1 over questions and seeds, of one seed over questions only",
    ]
    if any("hidden" in row for row in rows):
        parts.append("distill's loss: the weighted sum of hidden (relative squared error) and kl (nats per token)")
    if any(_diagnosed(row) for row in rows):
        parts.append(
            "loss at 5, 16, 64: nats per token on held-out text; shared: the second half of each row, its prefix read "
            "through terminal KV, at depth 5; penalty: relative perplexity of sharing at 5, 16 and 64 recurrences"
        )
    missing = [row["arm"] for row in rows if row["kind"] != "distill" and not _diagnosed(row)]
    if missing:
        parts.append(
            "loss by depth, shared, penalty, residual and eigenvalue need loop-rl diagnose RUN --out RUN first: "
            + ", ".join(missing)
        )
    return "; ".join(parts)


def _diagnosed(row: dict[str, Any]) -> bool:
    return bool(row.get("residual"))


def _metrics(run: RunLog) -> tuple[dict[str, Any], list[str]]:
    """What a run's metrics, evaluations and diagnosis say; and what could not be read."""
    name = run.folder.name
    notes = [f"{name}: {note}" for note in run.notes]
    found: dict[str, Any] = {"updates": len(run.metrics), "seed": run.recipe.get("train.seed")}
    wanted = run.recipe.get("train.max_steps")
    if is_number(wanted) and run.last_step < wanted:
        notes.append(f"{name}: {run.last_step} of {wanted} updates")
    if run.metrics:
        rows = list(run.metrics.values())
        last = rows[-1]
        probabilities = last.get("prior/probabilities")
        loss = _recent(rows, "loss")
        found |= {
            "train_loss": loss,
            "perplexity": math.exp(loss) if loss is not None and loss < 700 and run.kind != "distill" else None,
            "hidden": _recent(rows, "hidden"),
            "kl": _recent(rows, "kl"),
            "tokens": sum(_tokens(row) for row in rows) or None,
            "seconds": math.fsum(run.series("time/step").values()) or None,
            "mean_depth": last.get("prior/mean"),
            "entropy": last.get("prior/entropy"),
            "petaflops": last["flops"] / 1e15 if is_number(last.get("flops")) else None,
        }
        if isinstance(probabilities, list):
            found["p5"] = probabilities[4] if len(probabilities) > 4 else 0.0
    diagnosis, damage = _diagnosis(run)
    found |= diagnosis
    notes += [f"{name}: {line}" for line in damage]
    return {key: value for key, value in found.items() if is_number(value)}, notes


def _held_out(runs: Sequence[RunLog]) -> dict[str, Any]:
    """pass@1 at the last step that any was evaluated at, where they were on one data set."""
    step = max((run.last_eval for run in runs if run.last_eval is not None), default=None)
    if step is None:
        return {}
    data = {str(run.evals[step].get("data")) for run in runs if step in run.evals}
    if len(data) > 1:
        return {}
    found = measure(runs, step, 1).estimate
    return {
        "held_out_data": data.pop(),
        "pass_1": found.mean,
        "pass_1_error": found.error,
        "pass_1_low": found.low,
        "pass_1_high": found.high,
    }


def _diagnosis(run: RunLog) -> tuple[dict[str, Any], list[str]]:
    file = run.folder / "diagnosis.json"
    if not file.exists():
        return {}, []
    try:
        diagnosis = json.loads(file.read_text(encoding="utf-8"))
        found = {f"loss_{depth}": diagnosis["loss"].get(str(depth)) for depth in DEPTHS}
        for depth in DEPTHS:
            sharing = diagnosis["sharing_by_depth"].get(str(depth), {})
            found |= {f"shared_{depth}": sharing.get("terminal"), f"penalty_{depth}": sharing.get("penalty")}
        return found | {"residual": diagnosis["residual"][0], "eigenvalue": diagnosis["contraction"]["worst"]}, []
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        return {}, [f"diagnosis.json is not what loop-rl diagnose writes ({' '.join(str(error).split())})"]


def _recent(rows: Sequence[dict[str, Any]], key: str) -> float | None:
    """The mean over the last updates, of those that have it."""
    values = [value for row in rows[-LAST:] if (value := value_of(row, key)) is not None]
    return statistics.fmean(values) if values else None


def _tokens(row: dict[str, Any]) -> int:
    """Tokens that an update learned from; of distillation, which counts none, those that it read."""
    counts = row.get("tokens")
    if isinstance(counts, list):
        return sum(int(count) for count in counts if is_number(count))
    rate, seconds = value_of(row, "tokens_per_second"), value_of(row, "time/step")
    return round(rate * seconds) if rate is not None and seconds is not None else 0


def _mean(row: dict[str, Any], key: str) -> float | None:
    values = row.get(key)
    return statistics.fmean(values) if values else None


def _error(row: dict[str, Any], key: str) -> float | None:
    """The standard error of the mean over seeds; None of one seed."""
    values = row.get(key) or []
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None


def _cell(row: dict[str, Any], key: str, spec: str = ".3f") -> str:
    mean, error = _mean(row, key), _error(row, key)
    digits = int(spec.strip("f").strip(".") or 0)
    told = f" ± {error:.{digits}f}" if error is not None and error >= 0.5 * 10**-digits else ""
    return number(mean, spec) + told


def _penalties(row: dict[str, Any]) -> str:
    cells = [number(_mean(row, f"penalty_{depth}"), "+.2%") for depth in DEPTHS]
    return " ".join(cells) if set(cells) != {"–"} else "–"


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, values in row.items():
        if not isinstance(values, list):
            flat[key] = values
        elif key != "seed":
            flat |= {key: _mean(row, key), f"{key}_error": _error(row, key)}
    return flat
