"""A diagnosis for people: a table for the terminal, JSON, and one figure with a panel for each measurement."""

import dataclasses
import io
import json
import math
from pathlib import Path
from typing import Any

from loop_rl.diagnosis.advice import advise, core_share
from loop_rl.diagnosis.convergence import QUANTILES
from loop_rl.diagnosis.measure import Diagnosis
from loop_rl.errors import UserError
from loop_rl.extras import extra


def to_json(diagnosis: Diagnosis, **about: Any) -> str:
    """Every metric, with the advice; numbers that are not finite are null. `about`: model, data and the like."""
    values = dataclasses.asdict(diagnosis)
    for depth, sharing in diagnosis.sharing_by_depth.items():
        values["sharing_by_depth"][depth]["penalty"] = sharing.penalty
    return json.dumps(_finite({**about, **values, "advice": advise(diagnosis)}), indent=1, ensure_ascii=False) + "\n"


def to_table(diagnosis: Diagnosis) -> str:
    """For a terminal: what was measured, the estimators, and the advice."""
    from rich.console import Console
    from rich.table import Table

    facts = Table(show_header=False)
    for name, value in _facts(diagnosis):
        facts.add_row(name, value)
    estimators = Table(caption="against full BPTT and the implicit gradient; cost: of full BPTT's core", show_edge=True)
    for name in ("estimator", "cost", "cosine", "relative error", "implicit cosine", "implicit error"):
        estimators.add_column(name, justify="left" if name == "estimator" else "right")
    for row in diagnosis.gradients:
        share = core_share(row.estimator, diagnosis.depth)
        cost = "–" if share is None else f"{share:.0%}"
        numbers = (row.cosine, row.error, row.implicit_cosine, row.implicit_error)
        estimators.add_row(row.estimator, cost, *("–" if x is None else f"{x:.4f}" for x in numbers))
    console = Console(file=io.StringIO(), width=110, color_system=None)
    console.print(facts)
    console.print(estimators)
    console.print(advise(diagnosis), highlight=False)
    return console.file.getvalue()


def _facts(d: Diagnosis) -> list[tuple[str, str]]:
    c = d.convergence
    share = ", ".join(f"{value:.0%} {kind}" for kind, value in d.contraction.shares.items() if value)
    quantiles = ", ".join(f"{q:.0%}: {value:g}" for q, value in zip(QUANTILES, c.quantiles, strict=True))
    return [
        ("text", f"{d.rows} rows of {d.tokens} tokens, depth {d.depth}"),
        ("perplexity by depth", ", ".join(f"{depth}: {_exp(loss)}" for depth, loss in d.loss.items())),
        ("residual at the endpoint", f"median {d.residual[0]:.2%}, nine in ten below {d.residual[1]:.2%}"),
        (
            "convergence depth",
            f"median {c.median:g} at a change below {c.threshold:.0%}; {quantiles}; "
            f"{c.unsettled:.1%} not within {c.horizon}",
        ),
        ("by position", ", ".join(f"to {end}: {depth:g}" for end, depth in c.by_position)),
        (
            "order",
            f"{c.out_of_order:.0%} of the tokens settled before one to their left; rank correlation with position "
            + ("–" if c.spearman is None else f"{c.spearman:.2f}"),
        ),
        (
            "dominant eigenvalue",
            f"largest {d.contraction.real:.3f}"
            + (f" ± {d.contraction.imaginary:.3f}i" if d.contraction.imaginary > 1e-6 else "")
            + f", median modulus {d.contraction.factor:.3f}; {share}",
        ),
        (
            "terminal KV sharing",
            "perplexity with the full cache and shared, "
            + ", ".join(
                f"{depth}: {_exp(one.full)} and {_exp(one.terminal)} ({one.penalty:+.2%})"
                for depth, one in d.sharing_by_depth.items()
            ),
        ),
    ]


def _exp(loss: float) -> str:
    return f"{math.exp(loss):.3f}" if loss < 20 else f"e^{loss:.3g}"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def plot_diagnosis(diagnosis: Diagnosis, file: str | Path, title: str) -> Path:
    """The figure, into a png, svg or pdf file (by its suffix). Raises UserError for a file that can't be written."""
    figures = extra("matplotlib.figure", "plot", "a plot")  # a Figure of its own draws with Agg: no display, no state
    file, d = Path(file), diagnosis
    figure = figures.Figure(figsize=(13, 7.4), layout="constrained")
    if file.suffix.lstrip(".").lower() not in figure.canvas.get_supported_filetypes():
        raise UserError(f"cannot draw into {file}: its name must end in .png, .svg or .pdf")
    (change, loss, settle), (eigen, gradient, sharing) = figure.subplots(2, 3)
    figure.suptitle(title)

    change.semilogy(range(1, len(d.changes) + 1), d.changes, color=_BLUE)
    change.axhline(d.convergence.threshold, color=_GREY, linestyle=":")
    change.axvline(d.depth, color=_GREY, linestyle="--")
    change.set(title="relative change of the state", xlabel="recurrence", ylabel="median over tokens")

    loss.plot(list(d.loss), list(d.loss.values()), marker="o", color=_BLUE)
    loss.axvline(d.depth, color=_GREY, linestyle="--")
    loss.set(title="loss by depth", xlabel="depth", ylabel="nats per token", xscale="log")
    loss.set_xticks([depth for depth in (1, 2, 4, 8, 16, 32, 64) if depth <= max(d.loss)])
    loss.xaxis.set_major_formatter("{x:g}")
    loss.xaxis.set_minor_formatter("")

    ends, depths = zip(*d.convergence.by_position, strict=True)
    settle.plot(ends, depths, marker="o", color=_BLUE)
    settle.set(title=f"depth at which tokens settle (< {d.convergence.threshold:.0%})", xlabel="position")
    settle.set(ylabel="median depth", ylim=(0, max(depths) + 1))

    angles = [2 * math.pi * step / 200 for step in range(201)]
    eigen.plot([math.cos(a) for a in angles], [math.sin(a) for a in angles], color=_GREY, linestyle=":")
    signs = (1, -1) if d.contraction.imaginary > 1e-6 else (1,)
    eigen.scatter([d.contraction.real] * len(signs), [s * d.contraction.imaginary for s in signs], color=_RED, zorder=3)
    eigen.set(title="dominant eigenvalue and the unit circle", xlabel="real", ylabel="imaginary", aspect="equal")

    for suffix, name, colour in (("", "Neumann-k", _BLUE), ("_tail", "with the tail", _RED)):
        cosines = {r.estimator: r.cosine for r in d.gradients}
        terms = [k for k in range(1, 9) if f"reuse_neumann{k}{suffix}" in cosines]
        gradient.plot(
            terms, [cosines[f"reuse_neumann{k}{suffix}"] for k in terms], marker="o", color=colour, label=name
        )
    gradient.set(title="gradient of reuse against full BPTT", xlabel="terms k", ylabel="cosine")
    gradient.legend(frameon=False)

    bars = sharing.bar(["full cache", "terminal cache"], [d.sharing.full, d.sharing.terminal], color=[_BLUE, _RED])
    sharing.bar_label(bars, fmt="{:.3f}")
    sharing.set(title=f"terminal KV sharing: perplexity {d.sharing.penalty:+.2%}", ylabel="nats per token")
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(file, dpi=130)
    except OSError as error:
        raise UserError(f"cannot write {file}: {error.strerror or error}") from None
    return file


_BLUE, _RED, _GREY = "#0072B2", "#D55E00", "0.6"
