"""An evaluation kept in its run folder: a row of evals.jsonl, and the samples as parquet."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from loop_rl.evaluation.evaluate import EvalResult


def eval_row(step: int, data: str, result: EvalResult) -> dict[str, Any]:
    """The row of evals.jsonl; numbers that the samples can't give are null."""
    return {
        "step": step,
        "data": data,
        "pass@1": result.pass_1,
        "pass@8": result.pass_8,
        "stderr": result.stderr,
        "reward": result.mean_reward,
        "samples": result.samples,
        "questions": result.questions,
        "temperature": result.temperature,
        "truncated": result.truncated,
        "not_scored": result.not_scored,
    }


def record_evaluation(run: Path, step: int, data: str, result: EvalResult, extra: dict[str, Any] | None = None) -> dict:
    """Appends the row to <run>/evals.jsonl, writes <run>/evals/step_<step>_<data>.parquet, and returns the row."""
    row = {**eval_row(step, data, result), **(extra or {})}
    write_samples(run / "evals" / f"step_{step}_{Path(data).stem}.parquet", result)
    with (run / "evals.jsonl").open("a+b") as file:
        file.seek(0, os.SEEK_END)
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":  # a write that was cut off: its line stays alone, so that this one can be read
                file.write(b"\n")
        file.write(json.dumps(row).encode() + b"\n")
    return row


def write_samples(file: Path, result: EvalResult) -> None:
    """The samples as parquet, a row each: index, prompt, completion, answer, reward, finish_reason."""
    import pyarrow as pa  # late: a fifth of a second that most commands can do without
    import pyarrow.parquet

    schema = pa.schema(
        [
            ("index", pa.int64()),
            ("prompt", pa.string()),
            ("completion", pa.string()),
            ("answer", pa.string()),
            ("reward", pa.float64()),
            ("finish_reason", pa.string()),
        ]
    )
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f".incomplete_{file.name}")
    pyarrow.parquet.write_table(pa.Table.from_pylist(result.rows, schema), temporary)
    os.replace(temporary, file)
