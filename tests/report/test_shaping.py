"""The table of pretraining runs against figures worked out by hand."""

import csv
import io
import json

import pytest

from loop_rl.cli import main
from loop_rl.errors import UserError
from loop_rl.report import render_shaping, shaping
from loop_rl.training.pretrain_recipe import PretrainRecipe


def make(folder, name, loss, penalty, flops=2e15, diagnosed=True):
    run = folder / name
    run.mkdir(parents=True)
    (run / "recipe.yaml").write_text(PretrainRecipe().dump_yaml())
    row = {"step": 9, "loss": loss, "prior/mean": 5.0, "prior/entropy": 2.0, "flops": flops}
    row["prior/probabilities"] = [0.1, 0.2, 0.3, 0.2, 0.15, 0.05]
    (run / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    if diagnosed:
        diagnosis = {
            "loss": {"5": loss, "16": loss + 0.1, "64": None},
            "sharing_by_depth": {"5": {"full": loss, "terminal": loss + 0.01, "penalty": penalty}},
            "residual": [0.02, 0.04],
            "contraction": {"worst": 0.8},
        }
        (run / "diagnosis.json").write_text(json.dumps(diagnosis))
    return run


def test_arms_pool_their_seeds(tmp_path):
    make(tmp_path, "pln5_seed0", 1.0, 0.01)
    make(tmp_path, "pln5_seed1", 1.2, 0.03)
    make(tmp_path, "ortho_seed0", 0.9, 0.0, diagnosed=False)
    rows = {row["arm"]: row for row in shaping([tmp_path])}
    assert rows["pln5"]["loss_5"] == [1.0, 1.2] and rows["pln5"]["seeds"] == 2
    assert rows["pln5"]["p5"] == [0.15, 0.15] and rows["pln5"]["petaflops"] == [2.0, 2.0]
    assert "loss_64" not in rows["pln5"] and "loss_5" not in rows["ortho"]
    text = render_shaping(list(rows.values()))
    assert "1.100 ± 0.141" in text and "+2.00%" in text and "5.00" in text
    assert render_shaping(list(rows.values()), "md").startswith("| arm | seeds | loss at 5 |")
    read = {row["arm"]: row for row in csv.DictReader(io.StringIO(render_shaping(list(rows.values()), "csv")))}
    assert float(read["pln5"]["loss_16"]) == pytest.approx(1.2)
    assert float(read["pln5"]["loss_16_deviation"]) == pytest.approx(0.1414, abs=1e-4)
    assert json.loads(render_shaping(list(rows.values()), "json"))[0]["arm"] in rows


def test_the_command_knows_the_kind_of_run(tmp_path, capsys):
    make(tmp_path, "pln5_seed0", 1.0, 0.01)
    assert main(["report", str(tmp_path)]) == 0
    assert "loss at 16" in capsys.readouterr().out
    assert main(["report", str(tmp_path), "--plot", "x.png"]) == 2
    (tmp_path / "pln5_seed0" / "diagnosis.json").write_text("{}")
    with pytest.raises(UserError, match="make it again"):
        shaping([tmp_path])


def test_runs_of_other_kinds_are_left_out_and_named(tmp_path, capsys):
    make(tmp_path, "pln5_seed0", 1.0, 0.01)
    (tmp_path / "fine_tuned").mkdir()
    (tmp_path / "fine_tuned" / "recipe.yaml").write_text("model: {path: m}\nprior: {mean: 4}\n")
    (tmp_path / "failed_at_start").mkdir()
    assert main(["report", *(str(folder) for folder in sorted(tmp_path.iterdir()))]) == 0
    captured = capsys.readouterr()
    assert "pln5" in captured.out and "left out" in captured.err and "fine_tuned" in captured.err
    assert main(["report", str(tmp_path / "fine_tuned")]) == 2
    assert main(["report", str(tmp_path / "failed_at_start")]) == 2
