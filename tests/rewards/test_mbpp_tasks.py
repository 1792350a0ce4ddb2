"""MBPP+'s file: inputs as evalplus restores them, and one line for what can't be read."""

import ast
import gzip
import importlib.util
import json
import os
from pathlib import Path

import pytest

from rewards import mbpp_plus
from rewards.code.oracle import _AS_SETS, _SECOND_READINGS, NOT_NONE
from rewards.code.tasks import FILE_NAMES, find_data, load_tasks
from tests.rewards.mbpp_squares import row

DATA = Path(os.environ.get("LOOP_RL_DATA") or Path(__file__).parents[2] / "../shared/data") / FILE_NAMES[0]


@pytest.fixture(scope="module")
def tasks():
    if not DATA.exists():
        pytest.skip(f"{DATA} is missing")
    return load_tasks(DATA)


def same(one, other):
    if type(one) is not type(other):
        return False
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other if not isinstance(one, dict) else same([*one.items()], [*other.items()])


def test_every_task_is_read(tasks):
    assert len(tasks) == 378
    assert sum(len(task.inputs) for task in tasks.values()) == 41015
    assert tasks["Mbpp/793"].plus_input == []
    names = {task.entry_point for task in tasks.values()}
    assert names >= _AS_SETS | NOT_NONE | set(_SECOND_READINGS)


def test_inputs_are_as_evalplus_restores_them(tasks):
    spec = importlib.util.find_spec("evalplus")
    if spec is None:
        pytest.skip("evalplus is not installed")
    # Its module imports what it needs to download; the function needs nothing.
    source = ast.parse((Path(spec.submodule_search_locations[0]) / "data/mbpp.py").read_text())
    [function] = [node for node in source.body if getattr(node, "name", "") == "mbpp_deserialize_inputs"]
    space: dict = {}
    exec(ast.unparse(function), space)
    with gzip.open(DATA, "rt") as lines:
        for line in lines:
            data = json.loads(line)
            for key in ("base_input", "plus_input"):
                theirs = [list(arguments) for arguments in space[function.name](data["task_id"], data[key])]
                ours = [list(arguments) for arguments in getattr(tasks[data["task_id"]], key)]
                assert same(ours, theirs), data["task_id"]


def test_inputs_are_named_as_in_the_data(tasks):
    task = tasks["Mbpp/2"]
    assert [task.name_input(index) for index in (0, 2, 3)] == ["base input 0", "base input 2", "plus input 0"]


GOOD = row(9003, "f", "def f(n): return n", [[1]], [])


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "no tasks"),
        (b"{", "row 1"),
        (json.dumps(GOOD).encode() + b"\n[]\n", "row 2"),
        (json.dumps({**GOOD, "base_input": []}).encode(), "row 1"),
        (json.dumps({**GOOD, "entry_point": None}).encode(), "row 1"),
        (json.dumps({key: value for key, value in GOOD.items() if key != "atol"}).encode(), "KeyError 'atol'"),
        (json.dumps({**GOOD, "task_id": "HumanEval/2"}).encode(), "row 1"),
        (b"\xff\xfe\n", "row"),
    ],
)
@pytest.mark.parametrize("name", ["tasks.jsonl", "tasks.jsonl.gz"])
def test_a_bad_file_is_refused_in_one_line(tmp_path, content, told, name):
    path = tmp_path / name
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    with pytest.raises(ValueError, match=told) as raised:
        load_tasks(path)
    assert "\n" not in str(raised.value) and str(path) in str(raised.value)


def test_a_damaged_archive_is_refused_in_one_line(tmp_path):
    path = tmp_path / "tasks.jsonl.gz"
    whole = gzip.compress(json.dumps(GOOD).encode() * 100)
    for content in (b"not gzip", whole[:-20], whole[:30] + b"\0\0\0\0" + whole[34:]):
        path.write_bytes(content)
        with pytest.raises(ValueError) as raised:
            load_tasks(path)
        assert "\n" not in str(raised.value)


def test_a_missing_file_is_refused_in_one_line(tmp_path, monkeypatch):
    monkeypatch.delenv("MBPP_OVERRIDE_PATH", raising=False)
    monkeypatch.setenv("LOOP_RL_DATA", str(tmp_path))
    with pytest.raises(ValueError, match="MBPP_OVERRIDE_PATH") as raised:
        find_data()
    assert "LOOP_RL_DATA" in str(raised.value) and "\n" not in str(raised.value)
    with pytest.raises(ValueError, match="no MbppPlus"):
        mbpp_plus.use_data(tmp_path)
    with pytest.raises(ValueError, match="can't be read"):
        load_tasks(tmp_path / "none.jsonl")


def test_the_environment_names_the_file(tmp_path, monkeypatch):
    path = tmp_path / FILE_NAMES[1]
    path.write_text(json.dumps(GOOD))
    monkeypatch.delenv("MBPP_OVERRIDE_PATH", raising=False)
    monkeypatch.setenv("LOOP_RL_DATA", str(tmp_path))
    assert find_data() == path
    monkeypatch.setenv("MBPP_OVERRIDE_PATH", str(tmp_path / "other.jsonl"))
    assert find_data() == tmp_path / "other.jsonl"
