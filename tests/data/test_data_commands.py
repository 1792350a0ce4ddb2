"""`loop-rl data`: what it prints, and that its page's commands do what the page says."""

import re
from pathlib import Path

import pytest

from loop_rl.cli import main
from tests.data.helpers import DATA, published, write

PAGE = Path(__file__).resolve().parents[2] / "docs" / "data.md"


def run(capsys, *argv):
    code = main([str(one) for one in argv])
    out, err = capsys.readouterr()
    return code, out, err


def row(table, name):
    line = next(line for line in table.splitlines() if line.startswith(f"│ {name} "))
    return [cell.strip() for cell in line.strip("│").split("│")]


def test_the_list_without_any_folder(capsys):
    code, out, _ = run(capsys, "data")
    assert code == 0 and run(capsys, "data", "list")[1] == out
    assert row(out, "arithmetic") == ["arithmetic", "20000", "1000", "gsm8k", "made here"]
    assert row(out, "gsm8k") == ["gsm8k", "7473", "1319", "gsm8k", "hub: openai/gsm8k"]
    assert row(out, "aqua")[1:4] == ["97467", "254", "choice"]
    assert row(out, "mbpp_plus")[4] == "not here: loop-rl data fetch mbpp_plus --to FOLDER"
    assert row(out, "reasoning_gym:GENERATOR")[1:3] == ["500", "100"]


def test_the_list_of_a_folder_counts_what_is_there(capsys, tmp_path, monkeypatch):
    write(tmp_path / "gsm8k_train.jsonl", [{"question": f"{n}?", "answer": n} for n in range(3)])
    write(tmp_path / "gsm8k_test.jsonl", [{"question": "9?", "answer": 9}])
    write(tmp_path / "svamp.json", ["[1]"])
    monkeypatch.setenv("LOOP_RL_DATA", str(tmp_path))
    out = run(capsys, "data", "list")[1]
    assert row(out, "gsm8k") == ["gsm8k", "3", "1", "gsm8k", str(tmp_path)]
    assert row(out, "math500")[4] == "hub: HuggingFaceH4/MATH-500"
    assert row(out, "svamp")[1] == "–" and "svamp.json, item 1" in row(out, "svamp")[4]
    out = run(capsys, "data", "list", "--folder", tmp_path)[1]
    assert "math500_test.jsonl is missing" in row(out, "math500")[4]


def test_show(capsys):
    path = published("svamp.json")
    code, out, _ = run(capsys, "data", "show", "svamp", "--n", 2, "--folder", path.parent)
    assert code == 0
    assert out.startswith("svamp: 700 to train on, 300 held out\n")
    assert out.count("── test ") == 2 and out.count("\nQuestion: ") == 2
    number = int(re.search(r"── test 1, row (\d+)", out).group(1))
    assert f"── id ── chal-{number + 1}\n" in out
    other = run(capsys, "data", "show", "svamp", "--split", "train", "--folder", path.parent, "--set", "data.seed=1")[1]
    assert other.count("── train ") == 3


def test_show_of_an_own_file_with_a_template(capsys, tmp_path):
    path = write(tmp_path / "mine.jsonl", [{"q": f"{n}?", "answer": n, "note": "x" * 500} for n in range(20)])
    options = ("--set", "data.columns={question: q}", "data.template='Say: {question}'", "data.eval_size=1")
    code, out, _ = run(capsys, "data", "show", path, *options)
    assert code == 0
    assert re.search(r"\nSay: (\d+)\?\n── answer ──\n\1\n── note ── x{100}…\n", out)
    assert "18 to train on, 1 held out" in out


def test_show_of_an_empty_half(capsys):
    published("aqua_test.jsonl")
    out = run(capsys, "data", "show", "aqua", "--split", "train", "--folder", DATA)[1]
    assert "nothing is in the half train; try --split test" in out


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("show", "gms8k"), "nearest is gsm8k"),
        (("show", "arithmetic", "--set", "data.sed=1"), "nearest valid key is data.seed"),
        (("show", "arithmetic", "--set", "data.template=Q"), "no {question}"),
        (("show", "mbpp_plus"), "MbppPlus-v0.2.0.jsonl"),
        (("show", "nowhere.jsonl"), "no file nowhere.jsonl"),
        (("show", "arithmetic", "--set", "reward.name=math501"), "math500"),
        (("fetch", "arithmetic", "--to", "x"), "made on the spot"),
        (("fetch", "gsm8k"), "--to"),
    ],
)
def test_mistakes_are_named_in_one_line(capsys, argv, words):
    try:
        code, out, err = run(capsys, "data", *argv)
    except SystemExit as stop:  # the parser's own
        code, err = stop.code, capsys.readouterr().err
    assert code == 2 and err.count("\n") == 1 and words in err


def test_the_generators(capsys):
    pytest.importorskip("reasoning_gym")
    lines = run(capsys, "data", "list", "--generators")[1].splitlines()
    assert "chain_sum" in lines and lines == sorted(lines) and len(lines) > 100


def test_fetch_says_what_to_set(capsys, tmp_path):
    published("MbppPlus-v0.2.0.jsonl.gz")
    code, out, _ = run(capsys, "data", "fetch", "mbpp_plus", "--to", tmp_path, "--from", DATA)
    assert code == 0
    assert f"{tmp_path}/MbppPlus-v0.2.0.jsonl.gz: 378 rows, sha256 b54e762755248ca4, the published file\n" in out
    for words in (f"LOOP_RL_DATA={tmp_path}", f"data.folder={tmp_path}", f"MBPP_OVERRIDE_PATH={tmp_path}/MbppPlus"):
        assert words in out
