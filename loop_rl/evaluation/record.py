"""An evaluation kept in a folder: a row of evals.jsonl, and the samples as parquet."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from loop_rl.evaluation.evaluate import EvalResult
from loop_rl.evaluation.metrics import EvalMetrics
from loop_rl.runs.disk import replacing
from loop_rl.runs.rows import append_row


def eval_row(step: int, data: str, result: EvalResult) -> dict[str, Any]:
    """The row of evals.jsonl; numbers that the samples can't give are null."""
    return {
        "step": step,
        "data": data,
        **_named(result.metrics),
        "samples": result.samples,
        "temperature": result.temperature,
        **{
            f"by_{column}": {value: _named(part) for value, part in parts.items()}
            for column, parts in result.by.items()
        },
    }


def _named(part: EvalMetrics) -> dict[str, Any]:
    """Metrics by the names that they have in evals.jsonl: pass@8 is always there, and pass@1's error is `stderr`."""
    passes = {8: (None, None), **part.passes}
    return {
        **{f"pass@{k}": mean for k, (mean, _) in sorted(passes.items())},
        **{f"stderr@{k}" if k > 1 else "stderr": error for k, (_, error) in sorted(part.passes.items())},
        "reward": part.reward,
        "questions": part.questions,
        "truncated": part.truncated,
        "no_answer": part.no_answer,
        "not_scored": part.not_scored,
        "mean_depth": part.mean_depth,
    }


def record_evaluation(
    folder: Path,
    step: int,
    data: str,
    result: EvalResult,
    extra: dict[str, Any] | None = None,
    name: str | None = None,
) -> dict[str, Any]:
    """Appends the row to <folder>/evals.jsonl, writes the samples, and returns the row.

    The samples go to <folder>/evals/<name>.parquet; without a name, to step_<step>_<data>.parquet.
    """
    file = Path("evals") / f"{name or sample_name(step, data)}.parquet"
    row = {**eval_row(step, data, result), "file": str(file), **(extra or {})}
    write_samples(folder / file, result.rows)
    append_row(folder / "evals.jsonl", row)
    return row


def sample_name(step: int, data: str) -> str:
    """What the files of an evaluation are called; of a data file, its stem."""
    stem = Path(data).stem if data.endswith(".jsonl") else data
    return f"step_{step}_{''.join(c if c.isalnum() or c in '._-' else '_' for c in stem)}"


def write_samples(file: Path, rows: Sequence[dict[str, Any]]) -> None:
    """The rows of evaluate as parquet, whole or not at all."""
    import pyarrow as pa  # late: a fifth of a second that most commands can do without
    import pyarrow.parquet

    types = {"index": pa.int64(), "sample": pa.int64(), "seed": pa.int64(), "correct": pa.bool_()}
    names = dict.fromkeys(name for row in rows for name in row)  # a question may lack a column that others have
    numbers = [name for name in names if name.startswith(("reward", "mean_"))]
    schema = pa.schema([(name, pa.float64() if name in numbers else types.get(name, pa.string())) for name in names])
    file.parent.mkdir(parents=True, exist_ok=True)
    with replacing(file) as temporary:
        pyarrow.parquet.write_table(pa.Table.from_pylist(list(rows), schema), temporary)


def read_samples(file: Path) -> list[dict[str, Any]]:
    """What write_samples wrote. Raises OSError or ValueError for a file that is not there, or damaged."""
    import pyarrow.parquet

    return pyarrow.parquet.read_table(file).to_pylist()


class PartFiles:
    """Finished batches of an evaluation in a folder, a file each; see loop_rl.evaluation.evaluate.Parts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self, number: int, rows: int) -> list[dict[str, Any]] | None:
        """A batch's rows, if it is kept and has that many."""
        try:
            kept = read_samples(self._file(number))
        except (OSError, ValueError):  # not there, or cut off by a full disk
            return None
        return kept if len(kept) == rows else None

    def write(self, number: int, rows: list[dict[str, Any]]) -> None:
        """Keep a batch."""
        write_samples(self._file(number), rows)

    def _file(self, number: int) -> Path:
        return self.folder / f"batch_{number:05}.parquet"
