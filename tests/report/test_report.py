"""Reports from run folders made by hand: pooling, rendering, damage, plots."""

import csv
import io
import json
import statistics
from pathlib import Path

import pytest

from loop_rl.cli import main
from loop_rl.errors import UserError
from loop_rl.report import BEFORE, render
from loop_rl.report.plot import smooth
from tests.report.made import comparison, learning_run, make_run, plot, write_lines


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


@pytest.mark.parametrize("room", [80, 120, 200])
def test_a_table_wider_than_the_terminal_comes_in_parts(tmp_path: Path, monkeypatch, room: int) -> None:
    make_run(tmp_path, "a")
    make_run(tmp_path, "b", "reuse_neumann4", (8.0, 1.0, 2.0, 1.5))
    rows = comparison([tmp_path])
    whole = render(rows)
    monkeypatch.setattr("sys.stdout", io.StringIO())
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(room))
    text = render(rows)
    assert max(map(len, text.splitlines())) <= room
    heads = [line.strip("┃ ").split("┃") for line in text.splitlines() if line.startswith("┃")]
    names = [[name.strip() for name in head] for head in heads]
    assert (len(heads) == 1) == (room == 200) and {head[0] for head in names} == {"estimator"}
    (head,) = [line.strip("┃ ").split("┃") for line in whole.splitlines() if line.startswith("┃")]
    assert [name for part in names for name in part[1:]] == [name.strip() for name in head][1:]


def test_there_is_a_speed_up_only_beside_a_baseline(tmp_path: Path) -> None:
    make_run(tmp_path, "b", "reuse_neumann4")
    assert "speed-up" not in render(comparison([tmp_path]))


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
