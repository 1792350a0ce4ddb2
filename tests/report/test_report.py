"""Reports from run folders made by hand, whose numbers can be worked out on paper."""

import csv
import io
import json
import statistics
from pathlib import Path

import pytest
import yaml

from loop_rl.errors import UserError
from loop_rl.recipe import Recipe
from loop_rl.report import BEFORE, comparison, plot, render
from loop_rl.report.plot import smooth


def make_run(
    folder: Path,
    name: str,
    estimator: str = "full_bptt",
    updates: tuple[float, ...] = (9.0, 2.0, 4.0, 3.0),
    evals: tuple[tuple[int, float, float], ...] = ((0, 0.2, 0.5), (4, 0.6, 0.8)),
    seed: int = 0,
    data: str = "arithmetic",
    **others: object,
) -> Path:
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
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in steps))
    rows = [
        {"step": step, "data": data, "pass@1": one, "pass@8": eight, "stderr": 0.05, "samples": 8, "questions": 50}
        for step, one, eight in evals
    ]
    (run / "evals.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return run


def test_the_numbers_of_two_estimators(tmp_path: Path) -> None:
    full = make_run(tmp_path, "a")
    reuse = make_run(tmp_path, "b", "reuse_neumann4", (8.0, 1.0, 2.0, 1.5), ((0, 0.4, 0.7), (4, 0.7, 0.9)))
    before, one, two = comparison([reuse, full])
    assert (before.name, before.steps, before.ratio) == (BEFORE, 0, None)
    assert before.pass_1 == pytest.approx(0.3) and before.pass_8 == pytest.approx(0.6)
    assert (one.name, two.name) == ("full_bptt", "reuse_neumann4")
    assert (one.update_time, two.update_time) == (3.0, 1.5)  # medians of 2, 4, 3 and of 1, 2, 1.5
    assert (one.step_time, one.ratio, two.ratio) == (6.0, 1.0, 2.0)
    assert (two.before, two.pass_1, two.pass_8) == (0.4, 0.7, 0.9)
    assert (two.seeds, two.steps, two.questions, two.pass_1_spread, two.note) == (1, 4, 50, 0.05, "")


def test_seeds_are_pooled(tmp_path: Path) -> None:
    for seed, final in enumerate((0.5, 0.6, 0.8)):
        updates = (9.0, 1.0 + seed, 1.0 + seed, 1.0 + seed)
        make_run(tmp_path, f"s{seed}", updates=updates, evals=((0, 0.2, 0.5), (4, final, final)), seed=seed)
    before, row = comparison([tmp_path])
    assert (before.seeds, row.seeds) == (3, 3)
    assert row.pass_1 == pytest.approx(1.9 / 3)
    assert row.pass_1_spread == pytest.approx(statistics.stdev((0.5, 0.6, 0.8)))
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
    assert rows[3].ratio is None
    assert "data" in render(rows)


def test_a_named_baseline_and_one_that_is_not_there(tmp_path: Path) -> None:
    make_run(tmp_path, "a", "recompute_neumann4")
    make_run(tmp_path, "b", "reuse_neumann4", (8.0, 1.0, 2.0, 1.5))
    assert [row.ratio for row in comparison([tmp_path])] == [None, None, None]
    assert comparison([tmp_path], "recompute_neumann4")[2].ratio == 2.0
    with pytest.raises(UserError, match="'full_bptt'.*recompute_neumann4, reuse_neumann4"):
        comparison([tmp_path], "full_bptt")


def test_a_run_killed_while_it_wrote(tmp_path: Path) -> None:
    run = make_run(tmp_path, "a", run__max_steps=60)
    for name in ("metrics.jsonl", "evals.jsonl"):
        with (run / name).open("ab") as file:
            file.write(b'{"step": 5, "pass@1": 0.9, "rew\xff')
    row = comparison([run])[1]
    assert (row.pass_1, row.update_time, row.steps) == (0.6, 3.0, 4)
    assert "4 of 60 steps" in row.note and "2 torn lines" in row.note


def test_a_resumed_run_counts_each_step_once_the_later_time(tmp_path: Path) -> None:
    run = make_run(tmp_path, "a")
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "rew\n' + "".join(f'{{"step": {step}, "time/update": 7.0}}\n' for step in (3, 4)))
    assert comparison([run])[1].update_time == 7.0  # of 2, 7, 7


def test_a_run_that_has_only_begun(tmp_path: Path) -> None:
    run = make_run(tmp_path, "a", updates=(3.0,), evals=((0, 0.2, 0.5),), run__max_steps=5)
    before, row = comparison([run])
    assert before.pass_1 == 0.2
    assert (row.pass_1, row.update_time, row.ratio) == (None, None, None)
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
        (lambda run: (run / "recipe.yaml").unlink(), "not a run folder"),
        (lambda run: (run / "recipe.yaml").write_text("a: ["), "recipe.yaml"),
        (lambda run: (run / "recipe.yaml").write_text("[]"), "learner.estimator"),
        (lambda run: (run / "metrics.jsonl").write_text("x\ny\n"), "metrics.jsonl"),
        (lambda run: (run / "metrics.jsonl").write_text("[1]\n3\n"), "metrics.jsonl"),
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
    assert comparison([run, tmp_path, run])[1].note == ""


def test_renderings_agree(tmp_path: Path) -> None:
    make_run(tmp_path, "a")
    make_run(tmp_path, "b", "reuse_neumann4", (8.0, 1.0, 2.0, 1.5))
    rows = comparison([tmp_path])
    from_json, from_csv = json.loads(render(rows, "json")), list(csv.DictReader(io.StringIO(render(rows, "csv"))))
    assert from_json[2]["ratio"] == 2.0 and from_json[0]["ratio"] is None
    assert from_csv[2]["ratio"] == "2.0" and from_csv[0]["ratio"] == ""
    for text in (render(rows), render(rows, "md")):
        line = next(line for line in text.splitlines() if "reuse_neumann4" in line)
        for cell in ("0.200", "0.600 ± 0.050", "0.800", "1.5", "2.00x"):
            assert cell in line
    table = [line for line in render(rows, "md").splitlines() if line.startswith("|")]
    assert len(table) == 5 and len({line.count("|") for line in table}) == 1
    with pytest.raises(UserError, match="html.*table, md, csv, json"):
        render(rows, "html")


def test_smoothing_is_a_trailing_mean() -> None:
    assert smooth([1.0, 2.0, 6.0, 4.0], 2) == [1.0, 1.5, 4.0, 5.0]
    assert smooth([1.0, 2.0], 1) == [1.0, 2.0]


def test_a_plot_is_written(tmp_path: Path) -> None:
    make_run(tmp_path / "runs", "a")
    make_run(tmp_path / "runs", "b", "reuse_neumann4", seed=1, evals=())
    file = plot([tmp_path / "runs"], tmp_path / "new" / "plot.png")
    assert file.read_bytes().startswith(b"\x89PNG")
    svg = plot([tmp_path / "runs" / "a"], tmp_path / "plot.svg")
    assert "<svg" in svg.read_text()


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
