"""`loop-rl bench`: the rows of a benchmark as a table."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

_HEADINGS = {
    "method": "estimator",
    "seconds": "update (s)",
    "ratio": "speed-up",
    "peak_memory_mb": "peak memory (MB)",
    "cosine": "cosine",
    "relative_error": "relative error",
}
_FORMATS = {"seconds": "{:.3f}", "ratio": "{:.2f}x", "peak_memory_mb": "{:.0f}", "cosine": "{:.4f}"}


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows for a terminal; cosine and error are those of the gradient against full BPTT's."""
    from rich.console import Console
    from rich.table import Table

    grid = Table(caption="speed-up, cosine and relative error: against full BPTT", caption_justify="left")
    for key, heading in _HEADINGS.items():
        grid.add_column(heading, justify="left" if key == "method" else "right")
    for row in rows:
        grid.add_row(*(_cell(key, row.get(key)) for key in _HEADINGS))
    console = Console(file=io.StringIO(), width=160, color_system=None)
    console.print(grid)
    return console.file.getvalue()


def _cell(key: str, value: Any) -> str:
    if value is None:
        return "–"
    return str(value) if key == "method" else _FORMATS.get(key, "{:.4g}").format(value)
