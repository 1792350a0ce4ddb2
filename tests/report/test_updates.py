"""What an update cost in the report: skipped updates, learned tokens, recomputation."""

import json
import statistics
from pathlib import Path

import pytest

from loop_rl.report import render
from tests.report.made import comparison, learning_run, make_run, write_lines


def test_updates_that_were_skipped_are_in_no_time(tmp_path: Path) -> None:
    full = learning_run(tmp_path, "a", "full_bptt", 0.0097, 0.00173)
    reuse = learning_run(tmp_path, "b", "reuse_neumann4", 0.0100, 0.00100)
    steps = [[json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()] for run in (full, reuse)]
    medians = [statistics.median(row["time/update"] for row in rows[1:]) for rows in steps]
    assert medians[0] / medians[1] == pytest.approx(0.97)  # what a median over all steps would call the speed-up
    _, one, two = comparison([tmp_path])
    assert two.speed_up == pytest.approx(1.73) and one.speed_up == 1.0
    learned = [row for row in steps[1] if not row["skipped_update"]]
    assert (two.updates, two.steps_made) == (5, 14) == (len(learned), len(steps[1]))
    assert two.learned_tokens == sum(row["completions/learned_tokens"] for row in learned)
    assert two.learned_tokens_from == "counted"
    assert two.update_time == statistics.median(row["time/update"] for row in learned[1:])
    assert two.update_time_per_token == pytest.approx(0.001)
    line = next(line for line in render([one, two]).splitlines() if "reuse" in line)
    assert "5/14" in line and f"{two.learned_tokens:,.0f}" in line and "1.73x" in line
    for text in (render([two], "csv"), render([two], "json")):
        assert "learned_tokens" in text and "update_time_per_token" in text


@pytest.mark.parametrize(
    ("lost", "source", "factor"),
    [
        (("completions/learned_tokens",), "completions/learned_from x completions/mean_length", 1),
        (("completions/learned_tokens", "completions/mean_length"), "tokens", None),
        (("completions/learned_tokens", "completions/learned_from"), "tokens", None),
    ],
)
def test_runs_without_the_count_are_estimated_and_said(tmp_path, lost, source, factor) -> None:
    for name, estimator, per_token in (("a", "full_bptt", 0.00173), ("b", "reuse_neumann4", 0.00100)):
        run = learning_run(tmp_path, name, estimator, 0.01, per_token)
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        write_lines(run / "metrics.jsonl", [{k: v for k, v in row.items() if k not in lost} for row in rows])
    rows = comparison([tmp_path])
    assert rows[2].learned_tokens_from == source and rows[2].updates == 5
    assert rows[2].speed_up == pytest.approx(1.73)
    assert " ".join(render(rows).split()).count(f"estimated from {source}") == 1


def test_iterations_of_one_batch_learn_from_it_again(tmp_path: Path) -> None:
    row = {"step": 1, "time/update": 1.0, "skipped_update": 0.0}
    row |= {"completions/learned_from": 5.0, "completions/mean_length": 20.0}
    run = make_run(tmp_path, "a", learner__num_iterations=3)
    write_lines(run / "metrics.jsonl", [row, {**row, "step": 2}, {**row, "step": 3, "skipped_update": 1.0}])
    assert comparison([run])[1].learned_tokens == 2 * 3 * 5 * 20
    assert comparison([run])[1].updates == 2


def test_steps_after_a_breach_are_not_timed_as_the_estimators(tmp_path: Path) -> None:
    run = make_run(tmp_path, "a", "reuse_neumann4", updates=(9.0, 1.0, 5.0, 5.0, 5.0))
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    write_lines(run / "metrics.jsonl", [{**row, "health/recomputes": float(row["step"] > 2)} for row in rows])
    row = comparison([run])[1]
    assert row.update_time == 1.0 and row.updates == 5
    assert "a: 3 steps learned by recomputation" in row.note


def test_a_run_whose_every_update_was_skipped(tmp_path: Path) -> None:
    run = make_run(tmp_path, "a")
    write_lines(run / "metrics.jsonl", [{"step": s, "time/update": 1.0, "skipped_update": 1.0} for s in (1, 2, 3, 4)])
    row = comparison([run])[1]
    assert (row.updates, row.steps_made, row.update_time, row.speed_up) == (0, 4, None, None)
    assert "0/4" in render([row])
