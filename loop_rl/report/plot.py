"""A picture of the comparison: reward while training, held-out pass@1, and what an update cost."""

from __future__ import annotations

import statistics
import textwrap
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from loop_rl.errors import UserError
from loop_rl.extras import extra
from loop_rl.report.answers import measure
from loop_rl.report.groups import RunGroup, group_runs
from loop_rl.report.runs import RunLog
from loop_rl.report.table import DEFAULT_BASELINE
from loop_rl.report.updates import speed_up, updates

# Okabe and Ito's colours, told apart with any kind of colour vision; lines and markers differ as well.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_LINES = ("-", "--", "-.", ":")
_MARKERS = "osD^vPX"


def plot(runs: Sequence[RunLog], file: str | Path, baseline: str | None = None) -> Path:
    """Draws runs of RL, pooled over seeds as in the table, into `file` (png, svg, pdf: by its suffix) and returns it.

    The bars carry the speed-up over `baseline` (full_bptt if it was run). Error bars are the table's standard errors.
    Raises UserError for runs with nothing to draw, and a file that cannot be written.
    """
    figures = extra("matplotlib.figure", "plot", "a plot")  # a Figure of its own draws with Agg: no display, no state
    file = Path(file)
    groups = group_runs(runs)
    several_data = len({group.data for group in groups}) > 1
    labels = [f"{group.label}, {group.data}" if several_data else group.label for group in groups]
    labels = [textwrap.fill(label, 36) for label in labels]  # all of it: what differs may stand at its end
    figure = figures.Figure(figsize=(13, 4.6), layout="constrained")
    if file.suffix.lstrip(".").lower() not in figure.canvas.get_supported_filetypes():
        raise UserError(f"cannot draw into {file}: its name must end in .png, .svg or .pdf")
    reward, held_out, cost = figure.subplots(1, 3, width_ratios=(1.1, 1.1, 0.9))
    drawn = [
        _curves(reward, groups, labels),
        _held_out(held_out, groups, labels),
        _bars(cost, groups, labels, baseline or DEFAULT_BASELINE),
    ]
    if not any(drawn):
        raise UserError("nothing to draw: none of the runs has written a step or an evaluation yet")
    for axes in (reward, held_out):
        axes.xaxis.get_major_locator().set_params(integer=True)
    for axes, some in zip((reward, held_out, cost), drawn, strict=True):
        axes.spines[["top", "right"]].set_visible(False)
        if not some:
            axes.text(0.5, 0.5, "nothing recorded", transform=axes.transAxes, ha="center", va="center", color="0.4")
    handles, names = [], []
    for axes in (held_out, reward):  # the held-out panel's handles show marker and line
        for handle, name in zip(*axes.get_legend_handles_labels(), strict=True):
            if name not in names:
                handles.append(handle)
                names.append(name)
    if handles:
        figure.legend(handles, names, loc="outside lower center", ncols=min(5, len(names)), frameon=False)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(file, dpi=150)
    except OSError as error:
        raise UserError(f"cannot write {file}: {error.strerror or error}") from None
    return file


def smooth(values: Sequence[float], window: int) -> list[float]:
    """The mean of each value with up to window − 1 before it, so that no point shows what came after it."""
    return [statistics.fmean(values[max(0, end - window) : end]) for end in range(1, len(values) + 1)]


def _style(index: int) -> dict[str, Any]:
    return {"color": _COLOURS[index % len(_COLOURS)], "linestyle": _LINES[index % len(_LINES)], "linewidth": 2}


def _across_runs(group: RunGroup, rows: list[dict[int, float]]) -> dict[int, list[float]]:
    """Values by step; a step counts only where every run that wrote anything has it, lest the mean jump."""
    written = [row for row in rows if row]
    pooled: dict[int, list[float]] = defaultdict(list)
    for row in written:
        for step, value in row.items():
            pooled[step].append(value)
    return {step: pooled[step] for step in sorted(pooled) if len(pooled[step]) == len(written)}


def _curves(axes: Any, groups: list[RunGroup], labels: list[str]) -> bool:
    pooled = [_across_runs(group, [run.series("reward") for run in group.runs]) for group in groups]
    window = max(1, round(max(map(len, pooled)) / 12))
    for index, (by_step, label) in enumerate(zip(pooled, labels, strict=True)):
        if not by_step:
            continue
        steps, means = list(by_step), [statistics.fmean(values) for values in by_step.values()]
        if window > 1 and len(groups) <= 3:  # with more, the raw curves hide the smoothed ones
            axes.plot(steps, means, color=_style(index)["color"], alpha=0.2, linewidth=1)
        axes.plot(steps, smooth(means, window), label=label, **_style(index))
    axes.set(
        title="Reward while training", xlabel="step", ylabel="mean reward" + f", last {window} steps" * (window > 1)
    )
    axes.grid(alpha=0.25)
    return any(pooled)


def _held_out(axes: Any, groups: list[RunGroup], labels: list[str]) -> bool:
    over: set[str] = set()
    some = False
    last = max((step for group in groups for run in group.runs for step in run.evals), default=0)
    for index, group in enumerate(groups):
        evaluated = _across_runs(group, [{step: 0.0 for step in run.evals} for run in group.runs])
        found = {step: measure(group.runs, step, 1, one_model=step == 0).estimate for step in evaluated}
        found = {step: estimate for step, estimate in found.items() if estimate.mean is not None}
        if not found:
            continue
        some = True
        over |= {estimate.over for step, estimate in found.items() if step and estimate.over is not None}
        bars = [estimate.error or 0.0 for estimate in found.values()]
        axes.errorbar(
            [step + (index - (len(groups) - 1) / 2) * 0.008 * last for step in found],  # side by side, not stacked
            [estimate.mean for estimate in found.values()],
            yerr=bars if any(bars) else None,
            marker=_MARKERS[index % len(_MARKERS)],
            markersize=7,
            label=labels[index],
            capsize=3,
            **_style(index),
        )
    # At step 0 the runs measured one model, and one seed says nothing of seeds.
    errors = "questions and seeds; of one seed,\nquestions" if len(over) > 1 else "".join(over)
    axes.set(xlabel="step", ylabel=f"pass@1 (bars: standard error\nover {errors})" if over else "pass@1")
    axes.set_title("Held-out questions")
    axes.grid(alpha=0.25)
    return some


def _bars(axes: Any, groups: list[RunGroup], labels: list[str], baseline: str) -> bool:
    """A bar for each group's update time per learned token; per update where no run says how many those were."""
    costs = [updates(group.runs) for group in groups]
    by_token = all(cost.time_per_token is not None for cost in costs if cost.time is not None)
    times = [_scaled(cost.time_per_token) if by_token else cost.time for cost in costs]
    bases = {group.data: cost for group, cost in zip(groups, costs, strict=True) if group.estimator == baseline}
    shown = [index for index, time in enumerate(times) if time is not None]
    unit = "ms" if by_token else "s"
    for place, index in enumerate(shown):
        time, base = times[index], bases.get(groups[index].data)
        axes.barh(place, time, color=_COLOURS[index % len(_COLOURS)], height=0.7)
        ratio = speed_up(base, costs[index]) if base is not None and groups[index].estimator != baseline else None
        axes.text(time, place, f" {time:.3g} {unit}" + (f"  {ratio:.2f}x" if ratio else ""), va="center", ha="left")
    axes.set_yticks(range(len(shown)), [labels[index] for index in shown])
    axes.invert_yaxis()
    axes.margins(x=0.35)
    axes.set_xlim(left=0)
    axes.set(
        title="Update time (less is better)",
        xlabel="ms per learned token, median" if by_token else "seconds per update, median",
    )
    return bool(shown)


def _scaled(seconds: float | None) -> float | None:
    return None if seconds is None else 1000 * seconds
