"""Reports from run folders made by hand, whose numbers can be worked out on paper."""

import csv
import io
import json
import math
import random
import statistics
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from loop_rl.cli import main
from loop_rl.errors import UserError
from loop_rl.evaluation.record import write_rows
from loop_rl.recipe import Recipe
from loop_rl.report import BEFORE, Row, read_runs, render
from loop_rl.report import comparison as compare_runs
from loop_rl.report import plot as plot_runs
from loop_rl.report.plot import smooth


def comparison(folders: Sequence[Path], baseline: str | None = None) -> list[Row]:
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
    write_rows(run / file, rows)
    shares = [count / samples for count in right.values()]
    row = {"step": step, "data": "arithmetic", "pass@1": statistics.fmean(shares), "samples": samples, "file": file}
    row |= {"questions": len(right), "stderr": statistics.stdev(shares) / math.sqrt(len(shares))}
    with (run / "evals.jsonl").open("a") as evals:
        evals.write(json.dumps(row) + "\n")


def test_the_numbers_of_two_estimators(tmp_path: Path) -> None:
    full = make_run(tmp_path, "a")
    reuse = make_run(tmp_path, "b", "reuse_neumann4", (8.0, 1.0, 2.0, 1.5), ((0, 0.4, 0.7), (4, 0.7, 0.9)))
    before, one, two = comparison([reuse, full])
    assert (before.name, before.steps, before.speed_up, before.seeds) == (BEFORE, 0, None, None)
    assert before.pass_1 == pytest.approx(0.3) and before.pass_8 == pytest.approx(0.6)
    assert (one.name, two.name) == ("full_bptt", "reuse_neumann4")
    assert (one.update_time, two.update_time) == (3.0, 1.5)  # medians of 2, 4, 3 and of 1, 2, 1.5
    assert (one.step_time, one.speed_up, two.speed_up) == (6.0, 1.0, 2.0)
    assert (two.pass_1, two.pass_8) == (0.7, 0.9)
    assert (two.seeds, two.steps, two.questions, two.pass_1_error, two.error_over) == (1, 4, 50, 0.05, "questions")
    assert (two.updates, two.steps_made, two.learned_tokens) == (4, 4, None)


def test_seeds_are_pooled(tmp_path: Path) -> None:
    for seed, final in enumerate((0.5, 0.6, 0.8)):
        updates = (9.0, 1.0 + seed, 1.0 + seed, 1.0 + seed)
        make_run(tmp_path, f"s{seed}", updates=updates, evals=((0, 0.2, 0.5), (4, final, final)), seed=seed)
    before, row = comparison([tmp_path])
    assert (before.seeds, row.seeds) == (None, 3)
    assert row.pass_1 == pytest.approx(1.9 / 3)
    assert row.pass_1_error**2 == pytest.approx(0.05**2 + statistics.variance((0.5, 0.6, 0.8)) / 3)
    assert (row.error_over, before.error_over) == ("questions and seeds", "questions")
    assert before.pass_1_error == pytest.approx(0.05)  # one measurement made three times
    assert row.update_time == 2.0


def test_other_settings_are_not_pooled_and_say_what_differs(tmp_path: Path) -> None:
    make_run(tmp_path, "a")
    make_run(tmp_path, "b", optim__learning_rate=1e-4)
    make_run(tmp_path, "c", "reuse_neumann4", optim__learning_rate=1e-4)
    names = [row.name for row in comparison([tmp_path])]
    assert names[0] == BEFORE and len(names) == 4 and names[3] == "reuse_neumann4"
    assert {"full_bptt (optim.learning_rate=1e-06)", "full_bptt (optim.learning_rate=0.0001)"} == set(names[1:3])
    assert "differs" not in comparison([tmp_path])[3].note


def test_a_baseline_of_other_settings_is_told(tmp_path: Path) -> None:
    make_run(tmp_path, "a")
    make_run(tmp_path, "c", "reuse_neumann4", rollout__prompts_per_step=2)
    assert "baseline differs in rollout.prompts_per_step" in comparison([tmp_path])[2].note


def test_data_sets_have_rows_and_baselines_of_their_own(tmp_path: Path) -> None:
    make_run(tmp_path, "a")
    make_run(tmp_path, "b", "reuse_neumann4", (9.0, 1.5, 1.5), ((0, 0.1, 0.1),), data="gsm8k")
    rows = comparison([tmp_path])
    assert [(row.name, row.data) for row in rows] == [
        (BEFORE, "arithmetic"),
        (BEFORE, "gsm8k"),
        ("full_bptt", "arithmetic"),
        ("reuse_neumann4", "gsm8k"),
    ]
    assert rows[3].speed_up is None
    assert "data" in render(rows)


def test_a_named_baseline_and_one_that_is_not_there(tmp_path: Path) -> None:
    make_run(tmp_path, "a", "recompute_neumann4")
    make_run(tmp_path, "b", "reuse_neumann4", (8.0, 1.0, 2.0, 1.5))
    assert [row.speed_up for row in comparison([tmp_path])] == [None, None, None]
    assert comparison([tmp_path], "recompute_neumann4")[2].speed_up == 2.0
    with pytest.raises(UserError, match="'full_bptt'.*recompute_neumann4, reuse_neumann4"):
        comparison([tmp_path], "full_bptt")


def test_a_run_killed_while_it_wrote(tmp_path: Path) -> None:
    run = make_run(tmp_path, "a", run__max_steps=60)
    for name in ("metrics.jsonl", "evals.jsonl"):
        with (run / name).open("ab") as file:
            file.write(b'{"step": 5, "pass@1": 0.9, "rew\xff')
    row = comparison([run])[1]
    assert (row.pass_1, row.update_time, row.steps) == (0.6, 3.0, 4)
    assert "4 of 60 steps" in row.note and "metrics.jsonl: 1 damaged line skipped" in row.note


def test_a_resumed_run_counts_each_step_once_the_later_time(tmp_path: Path) -> None:
    run = make_run(tmp_path, "a")
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "rew\n' + "".join(f'{{"step": {step}, "time/update": 7.0}}\n' for step in (3, 4)))
    assert comparison([run])[1].update_time == 7.0  # of 2, 7, 7


def test_a_run_that_has_only_begun(tmp_path: Path) -> None:
    run = make_run(tmp_path, "a", updates=(3.0,), evals=((0, 0.2, 0.5),), run__max_steps=5)
    before, row = comparison([run])
    assert before.pass_1 == 0.2
    assert (row.pass_1, row.update_time, row.speed_up) == (None, None, None)
    assert "no evaluation after step 0" in row.note
    (run / "evals.jsonl").unlink()
    (run / "metrics.jsonl").unlink()
    before, row = comparison([run])
    assert before.note == "no evaluation at step 0" and "0 of 5 steps" in row.note
    for format in ("table", "md", "csv", "json"):
        assert "full_bptt" in render([before, row], format)


def test_values_that_are_no_numbers_are_left_out(tmp_path: Path) -> None:
    run = make_run(tmp_path, "a")
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "time/update": NaN, "reward": null}\n{"step": 6, "time/update": "x"}\n')
    assert comparison([run])[1].update_time == 3.0


def test_evaluations_on_other_data_are_left_out(tmp_path: Path) -> None:
    run = make_run(tmp_path, "a")
    with (run / "evals.jsonl").open("a") as file:
        file.write('{"step": 9, "data": "gsm8k", "pass@1": 0.0}\n')
    assert comparison([run])[1].pass_1 == 0.6


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda run: (run / "recipe.yaml").unlink(), "cannot read .*recipe.yaml: No such file"),
        (lambda run: (run / "recipe.yaml").write_text("a: ["), "cannot read .*recipe.yaml"),
        (lambda run: (run / "recipe.yaml").write_text("[]"), "is not the recipe of a run"),
        (lambda run: (run / "recipe.yaml").write_text("learner: 3"), "does not say learner.estimator"),
        (lambda run: (run / "recipe.yaml").write_text("a: &a [*a]"), "is not the recipe of a run"),
    ],
)
def test_a_folder_that_is_no_run(tmp_path: Path, spoil: object, said: str) -> None:
    run = make_run(tmp_path, "a")
    spoil(run)
    with pytest.raises(UserError, match=said) as caught:
        comparison([run])
    assert "\n" not in str(caught.value)


def test_no_run_at_all(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no run folder"):
        comparison([tmp_path / "nothing"])
    with pytest.raises(UserError, match="no run folder"):
        comparison([])


def test_a_run_given_twice_counts_once(tmp_path: Path) -> None:
    run = make_run(tmp_path, "a")
    assert comparison([run, tmp_path, run])[1].seeds == 1 and "runs" not in comparison([run, tmp_path])[1].note


def test_renderings_agree(tmp_path: Path) -> None:
    make_run(tmp_path, "a")
    make_run(tmp_path, "b", "reuse_neumann4", (8.0, 1.0, 2.0, 1.5))
    rows = comparison([tmp_path])
    from_json, from_csv = json.loads(render(rows, "json")), list(csv.DictReader(io.StringIO(render(rows, "csv"))))
    assert from_json[2]["speed_up"] == 2.0 and from_json[0]["speed_up"] is None
    assert from_csv[2]["speed_up"] == "2.0" and from_csv[0]["speed_up"] == ""
    for text in (render(rows), render(rows, "md")):
        line = next(line for line in text.splitlines() if "reuse_neumann4" in line)
        for cell in ("0.600 ± 0.050", "0.800", "4/4", "1.5", "2.00x"):
            assert cell in line
    table = [line for line in render(rows, "md").splitlines() if line.startswith("|")]
    assert len(table) == 5 and len({line.count("|") for line in table}) == 1
    with pytest.raises(UserError, match="html.*table, md, csv, json"):
        render(rows, "html")


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


def test_long_labels_show_all_that_differs(tmp_path: Path) -> None:
    paths = [f"/a/very/long/path/to/checkpoints/that/are/named/alike/{end}" for end in ("first", "second")]
    for name, path in zip("ab", paths, strict=True):
        make_run(tmp_path, name, model__path=path)
    rows = comparison([tmp_path])
    cells = [[cell.strip() for cell in line.split("│")[1:2]] for line in render(rows).splitlines() if "│" in line]
    together = "".join(cell for line in cells for cell in line)
    for path in paths:
        assert f"full_bptt (model.path={path})".replace(" ", "") in together.replace(" ", "")


@pytest.mark.parametrize(
    "line",
    [
        b"garbage",
        b"[1, 2]",
        b"3",
        b"null",
        b'{"step": "4"}',
        b'{"step": null}',
        b'{"step": true}',
        b'{"step": 1.5}',
        b'{"step": -1}',
        b'{"step": NaN}',
        b'{"loss": 1}',
        b'{"step": 1' + b"0" * 400 + b"}",
        b'{"step": 5, "data": "\xc3',
        b"[" * 100_000,
    ],
)
def test_a_damaged_line_is_skipped_and_named(tmp_path: Path, line: bytes, capsys: pytest.CaptureFixture) -> None:
    run = make_run(tmp_path, "a")
    whole = comparison([run])[1]
    for name in ("metrics.jsonl", "evals.jsonl"):
        text = (run / name).read_bytes()
        (run / name).write_bytes(line + b"\n" + text + line)
    row = comparison([run])[1]
    assert (row.pass_1, row.update_time, row.steps) == (whole.pass_1, whole.update_time, whole.steps)
    assert "metrics.jsonl: 2 damaged lines" in row.note and "evals.jsonl: 2 damaged lines" in row.note
    assert main(["report", "--evals", str(run)]) == 0
    assert "evals.jsonl: 2 damaged lines" in capsys.readouterr().err


def test_values_of_other_types_are_borne(tmp_path: Path) -> None:
    run = make_run(tmp_path, "a")
    odd = {"step": 5, "time/update": [1], "time/step": {}, "skipped_update": "no", "tokens": None, "reward": 10**400}
    odd |= {"completions/learned_from": "5", "completions/learned_tokens": None}
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(odd) + "\n")
    row = {"step": 4, "data": "arithmetic", "pass@1": "0.5", "questions": [1], "file": 3, "samples": {}, "by_level": 3}
    write_lines(run / "evals.jsonl", [row, {**row, "step": 5, "by_level": {"1": 3}, "temperature": [1]}])
    for format in ("table", "md", "csv", "json"):
        assert "full_bptt" in render(comparison([run]), format)
        assert main(["report", "--evals", str(run), "--format", format]) == 0


@pytest.mark.parametrize("name", ["metrics.jsonl", "evals.jsonl"])
def test_a_folder_in_a_files_place(tmp_path: Path, name: str) -> None:
    run = make_run(tmp_path, "a")
    (run / name).unlink()
    (run / name).mkdir()
    row = comparison([run])[1]
    assert "a: cannot read " in row.note and f"{name}: Is a directory" in row.note
    assert (row.pass_1 is None) == (name == "evals.jsonl") and (row.update_time is None) == (name == "metrics.jsonl")


def test_smoothing_is_a_trailing_mean() -> None:
    assert smooth([1.0, 2.0, 6.0, 4.0], 2) == [1.0, 1.5, 4.0, 5.0]
    assert smooth([1.0, 2.0], 1) == [1.0, 2.0]


def test_a_plot_is_written(tmp_path: Path) -> None:
    make_run(tmp_path / "runs", "a")
    make_run(tmp_path / "runs", "b", "reuse_neumann4", seed=1, evals=())
    file = plot([tmp_path / "runs"], tmp_path / "new" / "plot.png")
    assert file.read_bytes().startswith(b"\x89PNG")
    svg = plot([tmp_path / "runs" / "a"], tmp_path / "plot.svg").read_text()
    assert "<svg" in svg and "standard error" in svg and "over questions)" in svg
    learning_run(tmp_path / "learned", "a", "full_bptt", 0.01, 0.00173)
    learning_run(tmp_path / "learned", "b", "reuse_neumann4", 0.01, 0.001)
    svg = plot([tmp_path / "learned"], tmp_path / "plot.svg").read_text()
    assert "ms per learned token" in svg and "1.73x" in svg


def test_plots_that_cannot_be(tmp_path: Path) -> None:
    run = make_run(tmp_path, "a", updates=(), evals=(), run__max_steps=3)
    with pytest.raises(UserError, match="nothing to draw"):
        plot([run], tmp_path / "plot.png")
    with pytest.raises(UserError, match=".png"):
        plot([run], tmp_path / "plot.xyz")
    make_run(tmp_path, "b")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write"):
        plot([tmp_path / "b"], tmp_path / "file" / "plot.png")
