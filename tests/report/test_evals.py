"""The table of evaluations, from folders made by hand."""

import csv
import io
import json
from pathlib import Path

import pytest

from loop_rl.cli import main
from loop_rl.errors import UserError
from loop_rl.recipe.rl import Recipe
from loop_rl.report import evaluations, lines, render_evaluations

ROW = {
    "step": 0,
    "data": "math500",
    "pass@1": 0.25,
    "pass@2": 0.375,
    "pass@8": 0.5,
    "stderr": 0.0625,
    "stderr@8": 0.125,
    "reward": 0.25,
    "questions": 40,
    "samples": 8,
    "temperature": 1.0,
    "truncated": 0.1,
    "no_answer": 0.125,
    "not_scored": 0,
}
PART = {"pass@1": 0.75, "stderr": 0.03125, "pass@8": None, "questions": 4, "no_answer": 0.0, "truncated": 0.0}


def folder_of(folder: Path, rows: list[dict], run: bool = False) -> Path:
    folder.mkdir(parents=True)
    (folder / "evals.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if run:
        (folder / "recipe.yaml").write_text(Recipe().dump_yaml())
    return folder


def test_runs_and_models_with_every_step_and_data_set(tmp_path: Path) -> None:
    folder_of(tmp_path / "runs" / "mine", [ROW, {**ROW, "step": 40}, {**ROW, "step": 40, "data": "gsm8k"}], run=True)
    folder_of(tmp_path / "evals" / "huginn", [{**ROW, "model": "owner/huginn", "temperature": 0, "samples": 1}])
    found, _ = evaluations([tmp_path / "runs", tmp_path / "evals" / "huginn", tmp_path / "runs" / "mine"])
    assert [(row["name"], row["step"], row["data"]) for row in found] == [
        ("mine", 0, "math500"),
        ("mine", 40, "math500"),
        ("mine", 40, "gsm8k"),
        ("owner/huginn", 0, "math500"),
    ]
    assert (found[0]["pass@1"], found[0]["stderr"], found[0]["stderr@8"], found[0]["part"]) == (
        0.25,
        0.0625,
        0.125,
        "all",
    )
    text = render_evaluations(found)
    assert "0.250 ± 0.062" in text and "0.500 ± 0.125" in text and "12.5%" in text and "10.0%" in text
    assert text.count("greedy") == 1
    assert "not scored" not in text and "depth" not in text  # nothing to tell


def test_the_same_evaluation_made_again_counts_once(tmp_path: Path) -> None:
    again = {**ROW, "pass@1": 0.5}
    other = [{**ROW, "samples": 4}, {**ROW, "temperature": 0.5}, {**ROW, "depth": 12}]
    found, _ = evaluations([folder_of(tmp_path / "a", [ROW, *other, again])])
    assert [row["pass@1"] for row in found] == [0.25, 0.25, 0.25, 0.5]
    assert "depth" in render_evaluations(found)


def test_levels_and_subjects_are_parts(tmp_path: Path) -> None:
    row = {**ROW, "by_level": {"1": PART, "5": {**PART, "pass@1": 0.125}}, "by_subject": {"Algebra": PART}}
    found, _ = evaluations([folder_of(tmp_path / "a", [row, {**ROW, "data": "gsm8k"}])])
    assert [(line["data"], line["part"]) for line in found] == [
        ("math500", "all"),
        ("math500", "level 1"),
        ("math500", "level 5"),
        ("math500", "subject Algebra"),
        ("gsm8k", "all"),
    ]
    assert (found[2]["pass@1"], found[2]["questions"], found[2]["samples"]) == (0.125, 4, 8)
    first, _, second = render_evaluations(found).partition("level 1")
    assert "gsm8k" in first and "gsm8k" not in second  # wholes above, parts in a table of their own
    assert "0.750 ± 0.031" in second


def test_renderings_agree(tmp_path: Path) -> None:
    found, _ = evaluations([folder_of(tmp_path / "a", [{**ROW, "not_scored": 3, "by_level": {"1": PART}}])])
    from_json = json.loads(render_evaluations(found, "json"))
    from_csv = list(csv.DictReader(io.StringIO(render_evaluations(found, "csv"))))
    assert [row["pass@1"] for row in from_json] == [0.25, 0.75] == [float(row["pass@1"]) for row in from_csv]
    assert from_json[1]["pass@8"] is None and from_csv[1]["pass@8"] == ""
    assert from_json[0]["pass@2"] == 0.375
    for text in (render_evaluations(found), render_evaluations(found, "md")):
        for cell in (
            "0.250 ± 0.062",
            "0.500 ± 0.125",
            "not scored",
            "level 1",
            "| 3 |" if "---" in text else "│          3 │",
        ):
            assert cell in text
    tables = render_evaluations(found, "md").split("\n\n")
    assert [len(table.splitlines()) for table in tables[:2]] == [3, 3]
    with pytest.raises(UserError, match="html.*table, md, csv, json"):
        render_evaluations(found, "html")


def test_other_numbers_of_samples_show_what_they_have(tmp_path: Path) -> None:
    rows = [{**ROW, "samples": 4, "pass@4": 0.45, "pass@8": None}, {**ROW, "samples": 16, "pass@16": 0.7}]
    head = render_evaluations(lines(rows)).splitlines()[1]
    assert [word.strip() for word in head.split("┃") if "pass" in word] == ["pass@1", "pass@4", "pass@8", "pass@16"]


def test_what_has_no_evaluations(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(UserError, match="no folder"):
        evaluations([tmp_path / "nothing"])
    with pytest.raises(UserError, match="has no evaluations"):
        evaluations([tmp_path])
    folder = folder_of(tmp_path / "a", [ROW])
    (folder / "evals.jsonl").write_text(
        (folder / "evals.jsonl").read_text() + '{"step": 3, "da'
    )  # killed while writing
    assert main(["report", "--evals", str(folder), "--format", "md"]) == 0
    assert "0.250 ± 0.062" in capsys.readouterr().out
    assert main(["report", "--evals", str(folder), "--plot", "x.png"]) == 2
    assert "--plot belongs to the comparison" in capsys.readouterr().err
