"""The comparison of estimators: what each run learned, and what an update cost it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from loop_rl.errors import UserError
from loop_rl.evaluation.standard_error import Estimate
from loop_rl.report.answers import Measured, measure, paired
from loop_rl.report.cells import as_csv, as_json, check_format, markdown, number, rich_table, with_error
from loop_rl.report.groups import RunGroup, differences, group_runs, starts
from loop_rl.report.runs import RunLog
from loop_rl.report.updates import COUNTED, Updates, median_step, recomputed, speed_up, updates
from loop_rl.runs.rows import is_number

BEFORE = "before RL"
DEFAULT_BASELINE = "full_bptt"


@dataclasses.dataclass(frozen=True)
class ComparisonRow:
    """One line of the comparison; None where the runs do not say.

    pass_1, pass_8: means over runs and questions; `_error`: standard error, `_low` and `_high`: 95 % interval, both
    as in loop_rl.evaluation.standard_error. error_over: what pass_1's error includes, "questions", or "questions and
    seeds". gain: pass@1 less that of the same questions before RL. difference: less the baseline's. Both are paired by
    question, with errors of their own.

    seeds: training seeds; None of the model before RL, which has none. updates: steps whose update was not skipped,
    of `steps_made` by all runs together. learned_tokens: scored in them; learned_tokens_from: "counted", or what it
    is estimated from. update_time (seconds), update_time_per_token (seconds per learned token): medians over those
    updates, each run's first one left out because it pays for warming up. step_time: seconds, median over all steps.
    speed_up: the baseline's update time per learned token over this row's.
    """

    name: str
    data: str
    seeds: int | None
    steps: int | None = None
    questions: int | None = None
    pass_1: float | None = None
    pass_1_error: float | None = None
    pass_1_low: float | None = None
    pass_1_high: float | None = None
    pass_8: float | None = None
    pass_8_error: float | None = None
    pass_8_low: float | None = None
    pass_8_high: float | None = None
    error_over: str | None = None
    gain: float | None = None
    gain_error: float | None = None
    gain_low: float | None = None
    gain_high: float | None = None
    baseline: str | None = None
    difference: float | None = None
    difference_error: float | None = None
    difference_low: float | None = None
    difference_high: float | None = None
    updates: int | None = None
    steps_made: int | None = None
    learned_tokens: float | None = None
    learned_tokens_from: str | None = None
    update_time: float | None = None
    update_time_per_token: float | None = None
    step_time: float | None = None
    speed_up: float | None = None
    note: str = ""


def comparison(runs: Sequence[RunLog], baseline: str | None = None) -> list[ComparisonRow]:
    """A row before RL for each data set and model, then one for each estimator, of runs of RL.

    Runs that differ in their training seeds only are pooled. `baseline` is an estimator's name; without one, full_bptt
    if it was run. Raises UserError for a baseline that none of them ran.
    """
    groups = group_runs(runs)
    if baseline is not None and baseline not in {group.estimator for group in groups}:
        known = ", ".join(dict.fromkeys(group.estimator for group in groups))
        raise UserError(f"no run given has the baseline estimator {baseline!r}; they have: {known}")
    measured = [_Measured.of(group) for group in groups]
    bases = [one for one in measured if one.group.estimator == (baseline or DEFAULT_BASELINE)]
    return [*(_before(told, pool) for told, pool in starts(runs)), *(_row(one, bases) for one in measured)]


@dataclasses.dataclass(frozen=True)
class _Measured:
    """A group with what was measured of it; `last`: at its last evaluation, `before`: of the same runs at step 0."""

    group: RunGroup
    last: Measured | None
    before: Measured
    cost: Updates

    @classmethod
    def of(cls, group: RunGroup) -> _Measured:
        step = group.last_eval
        last = measure(group.runs, step, 1) if step else None
        return cls(group, last, measure(group.runs, 0, 1, one_model=True), updates(group.runs))


def _before(told: str, runs: Sequence[RunLog]) -> ComparisonRow:
    """The evaluations at step 0 are all of one model: no spread over seeds is in their error."""
    one, eight = measure(runs, 0, 1, one_model=True), measure(runs, 0, 8, one_model=True)
    evaluated = [run for run in runs if 0 in run.evals]
    return ComparisonRow(
        name=BEFORE + told,
        data=runs[0].data,
        seeds=None,
        steps=0,
        questions=_questions(evaluated, 0),
        **_with_interval("pass_1", one.estimate),
        **_with_interval("pass_8", eight.estimate),
        error_over=one.estimate.over,
        note="; ".join(_lost(one)) if evaluated else "no evaluation at step 0",
    )


def _row(measured: _Measured, bases: Sequence[_Measured]) -> ComparisonRow:
    group, last = measured.group, measured.last
    step = group.last_eval or 0
    pooled = [run for run in group.runs if step and step in run.evals]
    notes = _notes(group, step) + (_lost(last) if last is not None else [])
    seeds = len({run.seed for run in group.runs})
    if seeds != len(group.runs):
        notes.insert(0, f"{len(group.runs)} runs")
    if len(pooled) not in (0, len(group.runs)):
        notes.insert(0, f"pass@k of {len(pooled)} of {len(group.runs)} runs, at step {step}")
    gain = paired(last, measured.before) if last is not None else None
    found = _against(measured, bases)
    eight = measure(group.runs, step, 8).estimate if last is not None else Estimate()
    one = last.estimate if last is not None else Estimate()
    return ComparisonRow(
        name=group.label,
        data=group.data,
        seeds=seeds,
        steps=max(run.last_step for run in group.runs),
        questions=_questions(pooled, step),
        **_with_interval("pass_1", one),
        **_with_interval("pass_8", eight),
        error_over=one.over,
        **_with_interval("gain", gain or Estimate()),
        baseline=found.baseline,
        **_with_interval("difference", found.difference or Estimate()),
        updates=measured.cost.learned,
        steps_made=measured.cost.steps,
        learned_tokens=measured.cost.tokens,
        learned_tokens_from=measured.cost.tokens_from,
        update_time=measured.cost.time,
        update_time_per_token=measured.cost.time_per_token,
        step_time=median_step(group.runs),
        speed_up=found.speed_up,
        note="; ".join(notes + found.notes),
    )


def _notes(group: RunGroup, step: int) -> list[str]:
    notes = []
    for run in group.runs:
        name, done, wanted = run.folder.name, run.last_step, run.recipe.get("run.max_steps")
        if is_number(wanted) and done < wanted:
            notes.append(f"{name}: {done} of {wanted} steps")
        if not run.last_eval:
            notes.append(f"{name}: no evaluation after step 0")
        elif run.last_eval < max(done, step):
            notes.append(f"{name}: last evaluated at step {run.last_eval}")
        turned = sum(recomputed(row) for row in run.metrics.values())
        if turned:
            notes.append(f"{name}: {turned} steps learned by recomputation, which are not timed")
        notes += [f"{name}: {note}" for note in run.notes]
    return notes


def _lost(measured: Measured) -> list[str]:
    notes = []
    if measured.values is None and measured.estimate.mean is not None:
        notes.append("answers by question are missing: error from the stored ones")
    if measured.unscored:
        notes.append(f"{measured.unscored} questions that not every run has scored answers to are left out")
    return notes


@dataclasses.dataclass(frozen=True)
class _Against:
    baseline: str | None = None
    difference: Estimate | None = None
    speed_up: float | None = None
    notes: list[str] = dataclasses.field(default_factory=list)


def _against(measured: _Measured, bases: Sequence[_Measured]) -> _Against:
    """A group against, of several settings of the baseline on its data, the one that its runs are closest to."""
    group = measured.group
    bases = [base for base in bases if base.group.data == group.data]
    if not bases:
        return _Against()
    base = next((one for one in bases if one is measured), None) or min(
        bases, key=lambda one: len(differences(one.group.settings, group.settings))
    )
    ratio = speed_up(base.cost, measured.cost)
    if base is measured:
        return _Against(None, None, ratio)
    other = [key for key in differences(base.group.settings, group.settings) if key != "run.max_steps"]
    notes = [f"baseline differs in {', '.join(other)}"] if other else []
    difference = None
    if measured.last is not None and base.last is not None:
        if base.group.last_eval != group.last_eval:
            notes.append(f"baseline was last evaluated at step {base.group.last_eval}: no difference in pass@1")
        else:
            difference = paired(measured.last, base.last)
            if difference is None:
                lost = measured.last.values is None or base.last.values is None
                reason = "answers by question are missing" if lost else "baseline answered other questions"
                notes.append(f"{reason}: no difference in pass@1")
    return _Against(base.group.label, difference, ratio, notes)


def _with_interval(name: str, found: Estimate) -> dict[str, float | None]:
    low, high = found.low, found.high
    if name.startswith("pass") and low is not None and high is not None:  # a share: no true value lies beyond
        low, high = max(low, 0.0), min(high, 1.0)
    return {name: found.mean, f"{name}_error": found.error, f"{name}_low": low, f"{name}_high": high}


def _questions(runs: Sequence[RunLog], step: int) -> int | None:
    counts = [run.evals[step].get("questions") for run in runs]
    return max((int(count) for count in counts if is_number(count)), default=None)


# ---- rendering


def render(rows: Sequence[ComparisonRow], format: str = "table") -> str:
    """The rows as text: a table for a terminal, Markdown, CSV or JSON; the last two have every field in full."""
    check_format(format)
    if format == "json":
        return as_json([dataclasses.asdict(row) for row in rows])
    if format == "csv":
        return as_csv([dataclasses.asdict(row) for row in rows])
    columns, caption = _columns(rows), _caption(rows)
    if format == "md":
        return f"{markdown(columns, _WORDS)}\n{caption}\n"
    return rich_table(columns, _WORDS, caption)


_WORDS = ("estimator", "data", "note")


def _caption(rows: Sequence[ComparisonRow]) -> str:
    parts = [
        "±: standard error over questions and training seeds; with one seed, and before RL, over questions only",
        "gain and difference are paired by question",
        "update and step: median seconds; updates: those that learned, of all steps, in which alone updates are timed",
    ]
    if any(row.speed_up is not None for row in rows):
        parts.append("speed-up: in update time per learned token")
    estimated = sorted({source for row in rows if (source := row.learned_tokens_from) not in (None, COUNTED)})
    if estimated:
        parts.append(f"learned tokens of runs without that count: estimated from {', '.join(estimated)}")
    if any(row.speed_up is not None and row.update_time_per_token is None for row in rows):
        parts.append("speed-up of runs that do not say how many tokens they learned from: in time per update")
    return "; ".join(parts)


def _columns(rows: Sequence[ComparisonRow]) -> dict[str, list[str]]:
    """Columns of cells; data, gain, difference, speed-up and note only where they tell something."""
    against = {row.baseline for row in rows if row.difference is not None}
    difference = f"vs {min(against)}" if len(against) == 1 else "vs baseline"
    columns = {
        "estimator": [row.name for row in rows],
        "data": [row.data for row in rows],
        "seeds": [number(row.seeds, "d") for row in rows],
        "steps": [number(row.steps, "d") for row in rows],
        "pass@1": [with_error(row.pass_1, row.pass_1_error) for row in rows],
        "gain": [with_error(row.gain, row.gain_error, "+.3f") for row in rows],
        difference: [with_error(row.difference, row.difference_error, "+.3f") for row in rows],
        "pass@8": [with_error(row.pass_8, row.pass_8_error) for row in rows],
        "updates": [f"{row.updates}/{row.steps_made}" if row.updates is not None else "–" for row in rows],
        "learned tokens": [number(row.learned_tokens, ",.0f") for row in rows],
        "update (s)": [number(row.update_time, ".3g") for row in rows],
        "ms/token": [number(_times(row.update_time_per_token, 1000), ".3g") for row in rows],
        "step (s)": [number(row.step_time, ".3g") for row in rows],
        "speed-up": [f"{row.speed_up:.2f}x" if row.speed_up is not None else "–" for row in rows],
        "note": [row.note for row in rows],
    }
    if len({row.data for row in rows}) < 2:
        del columns["data"]
    if all(row.gain is None for row in rows):
        del columns["gain"]
    if not against:
        del columns[difference]
    if all(row.speed_up is None for row in rows):
        del columns["speed-up"]
    if not any(row.note for row in rows):
        del columns["note"]
    return columns


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor
