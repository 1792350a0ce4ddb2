"""`loop-rl bench`: what a model is timed on, and the rows of a benchmark as a table."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from loop_rl.errors import UserError

_HEADINGS = {
    "method": "estimator",
    "seconds": "update (s)",
    "ratio": "speed-up",
    "peak_memory_mb": "peak memory (MB)",
    "cosine": "cosine",
    "relative_error": "relative error",
}
_FORMATS = {"seconds": "{:.3f}", "ratio": "{:.2f}x", "peak_memory_mb": "{:.0f}", "cosine": "{:.4f}"}


def table(rows: Sequence[dict[str, Any]], learned_tokens: int) -> str:
    """The rows for a terminal; cosine and error are those of the gradient against full BPTT's."""
    from rich.console import Console
    from rich.table import Table

    caption = f"an update learns from {learned_tokens} tokens; speed-up, cosine and relative error: against full BPTT"
    grid = Table(caption=caption, caption_justify="left")
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


def decode(
    model: str, depth: int | None, batch: int, prompt: int, tokens: int, runs: int, threads: int | None
) -> tuple[list[dict[str, Any]], str]:
    """Both caches' rows, and their table."""
    from loop_rl.bench.inference import bench_decode
    from loop_rl.bench.inference import table as as_table

    looped, _, _ = _load(model, threads, prompt + tokens)
    rows = bench_decode(looped, batch, prompt, tokens, depth or looped.config.depth, runs, _say)
    return rows, as_table(rows)


def prefill(
    model: str,
    depth: int | None,
    batch: int,
    length: int,
    runs: int,
    threads: int | None,
    data: str,
    data_folder: str | None,
) -> tuple[list[dict[str, Any]], str]:
    """A row for each way of prefilling, and their table."""
    from loop_rl.bench.inference import bench_prefill
    from loop_rl.bench.inference import table as as_table
    from loop_rl.diagnosis.running import text_rows
    from loop_rl.models.prefill import PrefillStudent

    looped, tokenizer, folder = _load(model, threads, length)
    student = PrefillStudent.load(folder, looped)
    text = text_rows(data, data_folder, tokenizer, rows=16, length=min(256, length))
    rows = bench_prefill(looped, student, text, length, batch, depth or looped.config.depth, runs, _say)
    return rows, as_table(rows)


def _load(model: str, threads: int | None, length: int) -> tuple[Any, Any, Path]:
    """Model, tokenizer and the model's folder; UserError for sequences longer than the model is made for."""
    import torch

    from loop_rl.models.loading import load_model, resolve_model

    if threads is not None:
        torch.set_num_threads(threads)
    looped, tokenizer = load_model(model, "float32")
    longest = looped.config.max_position_embeddings
    if length > longest:
        raise UserError(f"{model} is made for {longest} tokens, {length} were asked for; lower the lengths")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return looped.to(device).eval(), tokenizer, Path(resolve_model(model))


def _say(line: str) -> None:
    print(line, file=sys.stderr)
