"""The table of runs that train on text against numbers worked out by hand."""

import csv
import io
import json
import math
from pathlib import Path

import pytest

from loop_rl.cli import main
from loop_rl.recipe.distill import DistillRecipe
from loop_rl.recipe.pretrain import PretrainRecipe
from loop_rl.recipe.rl import Recipe
from loop_rl.recipe.sft import SftRecipe
from loop_rl.report import read_runs, render_text_runs, text_runs


def make(folder, name, loss, penalty=None, recipe=None, **row):
    """A run of one update; diagnosed where there is a penalty."""
    run = folder / name
    run.mkdir(parents=True)
    recipe = recipe or PretrainRecipe()
    (run / "recipe.yaml").write_text(recipe.dump_yaml())
    row = {"step": recipe.train.max_steps, "loss": loss, "time/step": 2.0, **row}
    if isinstance(recipe, PretrainRecipe):
        row |= {"tokens": [300, 200], "prior/mean": 5.0, "prior/entropy": 2.0, "flops": 2e15}
        row["prior/probabilities"] = [0.1, 0.2, 0.3, 0.2, 0.15, 0.05]
    (run / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    if penalty is not None:
        diagnosis = {
            "loss": {"5": loss, "16": loss + 0.1, "64": None},
            "sharing_by_depth": {"5": {"full": loss, "terminal": loss + 0.01, "penalty": penalty}},
            "residual": [0.02, 0.04],
            "contraction": {"worst": 0.8},
        }
        (run / "diagnosis.json").write_text(json.dumps(diagnosis))
    return run


def rows_of(*folders):
    return text_runs(read_runs(folders)[0])


def test_arms_pool_their_seeds(tmp_path):
    make(tmp_path, "pln5_seed0", 1.0, 0.01)
    make(tmp_path, "pln5_seed1", 1.2, 0.03)
    make(tmp_path, "ortho_seed0", 0.9)
    rows = {row["arm"]: row for row in rows_of(tmp_path)}
    assert rows["pln5"]["loss_5"] == [1.0, 1.2] and rows["pln5"]["seeds"] == 2
    assert rows["pln5"]["p5"] == [0.15, 0.15] and rows["pln5"]["petaflops"] == [2.0, 2.0]
    assert "loss_64" not in rows["pln5"] and "loss_5" not in rows["ortho"]
    text = render_text_runs(list(rows.values()))
    assert "1.100 ± 0.100" in text and "+2.00%" in text and "5.00" in text  # 0.2/√2 between seeds, /√2 of their mean
    assert render_text_runs(list(rows.values()), "md").startswith("| arm | seeds | updates | loss |")
    read = {row["arm"]: row for row in csv.DictReader(io.StringIO(render_text_runs(list(rows.values()), "csv")))}
    assert float(read["pln5"]["loss_16"]) == pytest.approx(1.2)
    assert float(read["pln5"]["loss_16_error"]) == pytest.approx(0.1)
    assert json.loads(render_text_runs(list(rows.values()), "json"))[0]["arm"] in rows


def test_a_run_that_was_not_diagnosed_shows_what_its_metrics_hold(tmp_path):
    make(tmp_path, "mine", math.log(3))
    (row,) = rows_of(tmp_path / "mine")
    assert (row["tokens"], row["seconds"], row["perplexity"]) == ([500], [2.0], [pytest.approx(3.0)])
    text = render_text_runs([row])
    line = next(line for line in text.splitlines() if "mine" in line)
    assert "1.099" in line and "3.00" in line and "500" in line and "–" not in line
    assert "eigenvalue need loop-rl diagnose RUN --out RUN first: mine" in " ".join(text.split())
    assert "loss at 5" not in text


def test_fine_tuning_and_distillation(tmp_path):
    sft = make(tmp_path, "sft", 0.5, recipe=SftRecipe(model={"path": "m"}), tokens=[100])
    held_out = {"by": "loop-rl eval", "step": 9, "data": "gsm8k", "pass@1": 0.25, "stderr": 0.0625}
    (sft / "evals.jsonl").write_text(json.dumps(held_out) + "\n")
    distill = DistillRecipe(teacher={"path": "m"})
    make(tmp_path, "student", 0.7, recipe=distill, hidden=0.6, kl=0.1, tokens_per_second=32.0)
    rows = {row["kind"]: row for row in rows_of(tmp_path)}
    assert (rows["sft"]["tokens"], rows["sft"]["pass_1"], rows["sft"]["held_out_data"]) == ([100], 0.25, "gsm8k")
    assert rows["distill"]["hidden"] == [0.6] and rows["distill"]["tokens"] == [64]
    assert "perplexity" not in rows["distill"]  # its loss is no cross-entropy
    text = render_text_runs(list(rows.values()))
    assert "0.250 ± 0.062" in text and "gsm8k" in text and "kl" in text
    for format in ("md", "csv", "json"):
        assert "student" in render_text_runs(list(rows.values()), format)


def test_namesakes_of_other_recipes_are_not_pooled(tmp_path):
    make(tmp_path / "a", "x_seed0", 1.0)
    other = PretrainRecipe()
    other = other.model_copy(update={"train": other.train.model_copy(update={"batch_size": 77})})
    make(tmp_path / "b", "x_seed1", 1.2, recipe=other)
    assert [row["seeds"] for row in rows_of(tmp_path / "a", tmp_path / "b")] == [1, 1]
    assert "x (train.batch_size=77)" in [row["arm"] for row in rows_of(tmp_path / "a", tmp_path / "b")]


@pytest.mark.parametrize(
    "text",
    [
        '{"step": 1, "loss": null, "tokens": "many", "prior/probabilities": 3, "time/step": [1]}\n',
        '{"step": 1, "loss": 1e9, "tokens": [null, "x", 3], "flops": NaN}\n',
        "garbage\n[1]\n",
        "",
    ],
)
def test_metrics_without_numbers(tmp_path: Path, text):
    run = make(tmp_path, "mine", 1.0)
    (run / "metrics.jsonl").write_text(text)
    (run / "diagnosis.json").write_text("{}")
    rows = rows_of(run)
    assert "diagnosis.json is not what loop-rl diagnose writes" in rows[0]["note"]
    for format in ("table", "md", "csv", "json"):
        assert "mine" in render_text_runs(rows, format)


def test_the_command_knows_the_kind_of_run(tmp_path, capsys):
    make(tmp_path, "pln5_seed0", 1.0, 0.01)
    assert main(["report", str(tmp_path)]) == 0
    assert "loss at 16" in capsys.readouterr().out
    assert main(["report", str(tmp_path), "--plot", "x.png"]) == 2
    (tmp_path / "rl").mkdir()
    (tmp_path / "rl" / "recipe.yaml").write_text(Recipe().dump_yaml())
    capsys.readouterr()
    assert main(["report", str(tmp_path)]) == 0
    captured = capsys.readouterr()
    assert "before RL" in captured.out and "pln5_seed0, a run of pretrain: report it without" in captured.err


def test_folders_that_hold_no_run_are_left_out_and_named(tmp_path, capsys):
    make(tmp_path, "pln5_seed0", 1.0, 0.01)
    (tmp_path / "unknown").mkdir()
    (tmp_path / "unknown" / "recipe.yaml").write_text("model: {path: m}\n")
    (tmp_path / "failed_at_start").mkdir()
    (tmp_path / "no_recipe").mkdir()
    (tmp_path / "no_recipe" / "metrics.jsonl").write_text('{"step": 1}\n')
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "recipe.yaml").write_bytes(b"model: {\xff")
    (tmp_path / "date").mkdir()
    (tmp_path / "date" / "recipe.yaml").write_text("run: {name: 2026-13-45}\n")
    (tmp_path / "folder" / "recipe.yaml").mkdir(parents=True)
    folders = sorted(tmp_path.iterdir())
    assert main(["report", *map(str, folders)]) == 0
    captured = capsys.readouterr()
    assert "pln5" in captured.out
    lines = captured.err.splitlines()
    for name in ("unknown", "failed_at_start", "no_recipe", "damaged", "date", "folder"):
        assert sum("left out" in line and f"/{name}" in line.split(":")[2] for line in lines) == 1
        assert main(["report", str(tmp_path / name)]) == 2
        error = capsys.readouterr().err
        assert name in error and error.count("\n") == 1
