"""`loop-rl data`: what it prints, and that its page's commands do what the page says."""

import re
import shlex
from pathlib import Path

import pytest

from loop_rl.cli import main
from loop_rl.data import NAMES, default_reward, load_dataset
from loop_rl.data.examples import RESERVED
from loop_rl.data.gym_process import SECONDS
from loop_rl.data.named import SETS
from loop_rl.data.reasoning_gym import SIZES
from loop_rl.recipe.rl import load_recipe
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


def test_the_extra_that_is_missing_is_named_with_its_brackets(capsys, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert row(run(capsys, "data")[1], "reasoning_gym:GENERATOR")[4] == "pip install 'loop-rl[reasoning-gym]'"


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
    assert row(out, "math500")[1:3] == ["–", "–"] and row(out, "math500")[4].startswith("data.folder:")


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
        (("fetch", "o/a", "o/b", "--to", "x", "--config", "c"), "--config is of one hub data set"),
    ],
)
def test_mistakes_are_named_in_one_line(capsys, argv, words):
    try:
        code, out, err = run(capsys, "data", *argv)
    except SystemExit as stop:  # the parser's own
        code, err = stop.code, capsys.readouterr().err
    assert code == 2 and err.count("\n") == 1 and words in err


def test_fetch_says_what_to_set(capsys, tmp_path):
    published("MbppPlus-v0.2.0.jsonl.gz")
    code, out, _ = run(capsys, "data", "fetch", "mbpp_plus", "--to", tmp_path, "--from", DATA)
    assert code == 0
    assert f"{tmp_path}/MbppPlus-v0.2.0.jsonl.gz: 378 rows, sha256 b54e762755248ca4, the published file\n" in out
    for words in (f"LOOP_RL_DATA={tmp_path}", f"data.folder={tmp_path}", f"MBPP_OVERRIDE_PATH={tmp_path}/MbppPlus"):
        assert words in out


def test_several_are_fetched_in_order_and_what_came_before_a_failure_is_kept(capsys, tmp_path):
    for file in ("gsm8k_test.jsonl", "svamp.json"):
        published(file)
    code, out, err = run(capsys, "data", "fetch", "svamp", "gsm8k", "gms8k", "--to", tmp_path, "--from", DATA)
    assert code == 2 and "nearest is gsm8k" in err
    assert 0 <= out.index("svamp.json: ") < out.index("gsm8k_test.jsonl: ") and out.count("to use it: ") == 2
    assert (tmp_path / "svamp.json").is_file() and (tmp_path / "gsm8k_test.jsonl").is_file()


# ---- docs/data.md


def table_of(page, first):
    lines = iter(page.read_text("utf-8").splitlines())
    header = next(line for line in lines if line.startswith(f"| {first} |"))
    names = [cell.strip() for cell in header.strip("|").split("|")]
    next(lines)
    rows = {}
    for line in lines:
        if not line.startswith("|"):
            return rows
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        rows[cells[0]] = dict(zip(names, cells, strict=True))


def test_the_pages_commands_run(capsys, tmp_path, monkeypatch):
    for file in ("gsm8k_test.jsonl", "MbppPlus-v0.2.0.jsonl.gz"):
        published(file)
    pytest.importorskip("reasoning_gym")
    monkeypatch.setenv("HOME", str(tmp_path))
    commands = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("loop-rl data")]
    assert len(commands) >= 7
    for command in commands:
        argv = shlex.split(command, comments=True)[1:]
        if argv[1:2] == ["fetch"]:
            argv += ["--from", str(DATA)]
        assert main(argv) == 0, command
        out = capsys.readouterr().out
        if "--generators" in argv:
            assert "chain_sum" in out.split() and len(out.split()) > 100
    assert (tmp_path / "data" / "gsm8k_train.jsonl").is_file()


def test_the_pages_tables_are_the_sets(capsys):
    shown = table_of(PAGE, "data.name")
    assert tuple(shown) == NAMES
    for name, said in shown.items():
        assert said["reward"] == default_reward(name)
        if name in SETS and name != "mbpp":  # the one whose size depends on the reward; below
            assert (int(said["train"]), int(said["test"])) == SETS[name].sizes
    for name, said in table_of(PAGE, "data").items():
        files = {file for layout in SETS[name].layouts for file in layout.values()}
        assert set(re.findall(r"`([^`]+)`", said["files"])) == files
    for file in ("mbpp.jsonl", "MbppPlus-v0.2.0.jsonl.gz"):
        published(file)
    out = run(capsys, "data", "list", "--folder", DATA)[1]
    assert row(out, "mbpp")[1:3] == [shown["mbpp"]["train"], shown["mbpp"]["test"]]


def test_the_pages_names_are_those_of_the_code():
    text = PAGE.read_text("utf-8")
    for name in RESERVED:
        assert f"`{name}`" in text
    assert f"ended after {SECONDS:g} seconds" in text
    assert f"Open sizes mean {SIZES['train']} and {SIZES['test']}" in text


def test_the_pages_recipe_loads(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    (block,) = re.findall(r"```yaml\n(.*?)```", PAGE.read_text("utf-8"), re.S)
    (tmp_path / "mine.yaml").write_text(block)
    rows = [{"problem": f"{n} + 1?", "solution": n + 1, "level": n} for n in range(500)]
    monkeypatch.setattr(datasets, "load_dataset", lambda name, config: {"train": rows, "test": rows})
    recipe = load_recipe(tmp_path / "mine.yaml", ["data.train_size=null", "data.eval_size=1"])
    (example,) = load_dataset(recipe.data).test
    n = example.index
    assert example.prompt == f"Problem ({n}): {n} + 1?\nPut the answer in \\boxed{{}}.\n"
    assert (example.answer, example.columns) == (str(n + 1), {"difficulty": n})
