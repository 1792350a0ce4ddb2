"""Standard errors, gains and differences in the report, from runs' answers by question; which runs are pooled."""

import csv
import io
import json
import math
import statistics
from pathlib import Path

import pytest

from loop_rl.report import render
from tests.report.made import answer, comparison, make_run, write_lines

BEFORE_RIGHT = {"q1": 0, "q2": 1, "q3": 2, "q4": 4}
AFTER_RIGHT = {"q1": 1, "q2": 3, "q3": 3, "q4": 4}


def test_before_rl_is_one_measurement_with_an_error_over_questions(tmp_path: Path) -> None:
    for seed in range(3):
        answer(make_run(tmp_path, f"s{seed}", evals=(), seed=seed), 0, BEFORE_RIGHT)
    (before, row) = comparison([tmp_path])
    assert before.pass_1 == 7 / 16 and before.seeds is None
    assert before.pass_1_error == pytest.approx(statistics.stdev((0, 0.25, 0.5, 1)) / 2)
    assert (before.error_over, row.seeds, row.pass_1) == ("questions", 3, None)


def test_errors_over_questions_and_seeds(tmp_path: Path) -> None:
    finals = ({"q1": 1, "q2": 3, "q3": 3, "q4": 4}, {"q1": 0, "q2": 4, "q3": 2, "q4": 4})
    for seed, final in enumerate(finals):
        run = make_run(tmp_path, f"s{seed}", evals=(), seed=seed)
        answer(run, 0, BEFORE_RIGHT)
        answer(run, 4, final)
    row = comparison([tmp_path])[1]
    x = [[count / 4 for count in final.values()] for final in finals]
    means, columns = [statistics.mean(run) for run in x], [statistics.mean(q) for q in zip(*x, strict=True)]
    mean = statistics.mean(means)
    rest = sum((x[s][q] - means[s] - columns[q] + mean) ** 2 for s in range(2) for q in range(4)) / 3
    variance = statistics.variance(means) / 2 + statistics.variance(columns) / 4 - rest / 8
    assert row.pass_1 == pytest.approx(mean) and row.pass_1_error == pytest.approx(math.sqrt(variance))
    assert row.error_over == "questions and seeds" and row.pass_1_low < row.pass_1 < row.pass_1_high
    assert row.gain == pytest.approx(mean - 7 / 16)
    assert f"{row.pass_1:.3f} ± {row.pass_1_error:.3f}" in render([row])
    assert f"{row.gain:+.3f} ± {row.gain_error:.3f}" in render([row])
    (from_csv,) = csv.DictReader(io.StringIO(render([row], "csv")))
    assert float(from_csv["pass_1_error"]) == row.pass_1_error


def test_the_difference_to_the_baseline_is_paired_by_question(tmp_path: Path) -> None:
    answer(make_run(tmp_path, "a", evals=()), 4, BEFORE_RIGHT)
    answer(make_run(tmp_path, "b", "reuse_neumann4", evals=()), 4, AFTER_RIGHT)
    _, one, two = comparison([tmp_path])
    gaps = [(AFTER_RIGHT[q] - BEFORE_RIGHT[q]) / 4 for q in AFTER_RIGHT]
    assert two.difference == pytest.approx(statistics.mean(gaps)) and two.baseline == "full_bptt"
    assert two.difference_error == pytest.approx(statistics.stdev(gaps) / 2)
    assert one.difference is None and one.baseline is None
    assert "vs full_bptt" in render([one, two]) and "+0.250 ± 0.102" in render([one, two])


def test_runs_that_answered_other_questions_are_kept_apart_and_named(tmp_path: Path) -> None:
    for name, seed, final in (("a", 0, AFTER_RIGHT), ("b", 1, AFTER_RIGHT), ("c", 2, {"q1": 1, "q2": 3, "q5": 0})):
        run = make_run(tmp_path, name, evals=(), seed=seed, data__seed=seed)
        answer(run, 0, dict.fromkeys(final, 0))
        answer(run, 4, final)
    rows = {row.name: row for row in comparison([tmp_path])}
    assert {name: (row.seeds, row.questions) for name, row in rows.items()} == {
        "before RL (questions=3)": (None, 3),
        "before RL (questions=4)": (None, 4),
        "full_bptt (questions=3)": (1, 3),
        "full_bptt (questions=4)": (2, 4),
    }
    reuse = make_run(tmp_path, "d", "reuse_neumann4", evals=(), data__seed=2)
    answer(reuse, 4, {"q1": 1, "q2": 3, "q6": 0})
    rows = comparison([tmp_path / "a", reuse])
    assert "baseline answered other questions: no difference" in rows[-1].note and rows[-1].difference is None


def test_only_the_folders_tell_runs_apart_whose_data_file_changed(tmp_path: Path) -> None:
    answer(make_run(tmp_path, "old", evals=()), 4, {"q1": 1, "q2": 2})
    answer(make_run(tmp_path, "new", evals=(), seed=1), 4, {"q1": 1, "q3": 2})
    names = [row.name for row in comparison([tmp_path])][1:]
    assert names == ["full_bptt (other questions: new)", "full_bptt (other questions: old)"]


def test_other_samples_temperature_or_depth_are_kept_apart(tmp_path: Path) -> None:
    row = {"step": 4, "data": "arithmetic", "pass@1": 0.5, "stderr": 0.1, "questions": 4, "samples": 8}
    row |= {"temperature": 1.0, "depth": 6}
    for name, other in (("a", {}), ("b", {"samples": 4}), ("c", {"temperature": 0.5}), ("d", {"depth": 8})):
        run = make_run(tmp_path, name, evals=())
        write_lines(run / "evals.jsonl", [{**row, **other}])
    names = {row.name for row in comparison([tmp_path])[1:]}
    assert len(names) == 4
    for told in ("eval.samples=4", "eval.temperature=0.5", "depth=8"):
        assert any(told in name for name in names)


def test_a_run_that_is_not_there_yet_is_in_no_mean(tmp_path: Path) -> None:
    done, going = make_run(tmp_path, "a", evals=()), make_run(tmp_path, "b", evals=(), seed=1, updates=(9.0, 2.0))
    (going / "recipe.yaml").write_text((done / "recipe.yaml").read_text().replace("seed: 0", "seed: 1"))
    for run, step, right in ((done, 0, BEFORE_RIGHT), (going, 0, BEFORE_RIGHT), (going, 2, BEFORE_RIGHT)):
        answer(run, step, right)
    answer(done, 4, AFTER_RIGHT)
    row = comparison([tmp_path])[1]
    assert row.pass_1 == 11 / 16 and row.seeds == 2 and row.error_over == "questions"
    assert "pass@k of 1 of 2 runs, at step 4" in row.note and "b: last evaluated at step 2" in row.note


def test_lost_answers_fall_back_to_the_stored_error(tmp_path: Path) -> None:
    for spoil in (lambda file: file.unlink(), lambda file: file.write_bytes(b"PAR1 cut"), lambda file: None):
        run = make_run(tmp_path, f"run{len(list(tmp_path.iterdir()))}", evals=())
        answer(run, 4, AFTER_RIGHT)
        spoil(run / "evals" / "step_4.parquet")
    rows = [comparison([run])[1] for run in sorted(tmp_path.iterdir())]
    assert len({(row.pass_1, round(row.pass_1_error, 12), row.error_over) for row in rows}) == 1
    assert ["answers by question are missing" in row.note for row in rows] == [True, True, False]
    stale = tmp_path / "run2"
    row = json.loads((stale / "evals.jsonl").read_text())
    write_lines(stale / "evals.jsonl", [{**row, "pass@1": 0.9}])  # the samples are of another evaluation
    assert "answers by question are missing" in comparison([stale])[1].note
    assert comparison([stale])[1].pass_1 == 0.9
