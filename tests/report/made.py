"""Run folders made by hand, whose numbers can be worked out on paper."""

import json
import math
import random
import statistics
from collections.abc import Sequence
from pathlib import Path

import yaml

from loop_rl.evaluation.record import write_samples
from loop_rl.recipe.rl import Recipe
from loop_rl.report import ComparisonRow, read_runs
from loop_rl.report import comparison as compare_runs
from loop_rl.report import plot as plot_runs


def comparison(folders: Sequence[Path], baseline: str | None = None) -> list[ComparisonRow]:
    return compare_runs(read_runs(folders)[0], baseline)


def plot(folders: Sequence[Path], file: Path) -> Path:
    return plot_runs(read_runs(folders)[0], file)


def make_run(
    folder: Path,
    name: str,
    estimator: str = "full_bptt",
    updates: Sequence[float] = (9.0, 2.0, 4.0, 3.0),
    evals: Sequence[tuple[int, float, float]] = ((0, 0.2, 0.5), (4, 0.6, 0.8)),
    seed: int = 0,
    data: str = "arithmetic",
    **others: object,
) -> Path:
    """A run folder as one before answers by question and learned tokens were recorded: means and errors alone."""
    run = folder / name
    run.mkdir(parents=True)
    recipe = yaml.safe_load(Recipe().dump_yaml())
    recipe["learner"]["estimator"] = estimator
    recipe["data"]["name"] = data
    recipe["run"] |= {"name": name, "seed": seed, "max_steps": len(updates)}
    for key, value in others.items():
        section, leaf = key.split("__")
        recipe[section][leaf] = value
    (run / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    steps = [
        {"step": step, "reward": 0.1 * step, "time/update": update, "time/step": 2 * update}
        for step, update in enumerate(updates, 1)
    ]
    write_lines(run / "metrics.jsonl", steps)
    rows = [
        {"step": step, "data": data, "pass@1": one, "pass@8": eight, "stderr": 0.05, "samples": 8, "questions": 50}
        for step, one, eight in evals
    ]
    write_lines(run / "evals.jsonl", rows)
    return run


def write_lines(file: Path, rows: Sequence[dict]) -> None:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def answer(run: Path, step: int, right: dict[str, int], samples: int = 4) -> None:
    """Record an evaluation with its samples: by question, how many of the samples are right."""
    rows = [
        {"index": index, "sample": sample, "prompt": question, "answer": "1", "correct": sample < count}
        for index, (question, count) in enumerate(right.items())
        for sample in range(samples)
    ]
    file = f"evals/step_{step}.parquet"
    write_samples(run / file, rows)
    shares = [count / samples for count in right.values()]
    row = {"step": step, "data": "arithmetic", "pass@1": statistics.fmean(shares), "samples": samples, "file": file}
    row |= {"questions": len(right), "stderr": statistics.stdev(shares) / math.sqrt(len(shares))}
    with (run / "evals.jsonl").open("a") as evals:
        evals.write(json.dumps(row) + "\n")


def learning_run(folder: Path, name: str, estimator: str, skipped: float, per_token: float, **keys: object) -> Path:
    """14 steps of which 9 had no signal; the others learned from 300 to 700 tokens at a time per token."""
    run = make_run(folder, name, estimator, updates=[1.0] * 14, evals=((0, 0.2, 0.5), (14, 0.6, 0.8)))
    chance, rows = random.Random(0), []
    for step in range(1, 15):
        tokens = 0 if step % 3 != 1 else chance.randrange(300, 700)
        seconds = tokens * per_token if tokens else skipped
        row = {"step": step, "time/update": seconds, "time/step": 3.0, "skipped_update": float(not tokens)}
        row |= {"tokens": 1000, "completions/mean_length": 20.0, "completions/learned_from": tokens / 20}
        rows.append({**row, "completions/learned_tokens": tokens})
    write_lines(run / "metrics.jsonl", rows)
    return run
