"""MBPP+'s expected outputs: made once, kept, checked when they are read, and what follows from them."""

import json

import pytest

from rewards import mbpp_plus
from rewards.code import expected as mbpp_expected
from rewards.sandbox.worker import Limits
from tests.rewards.mbpp_squares import LONG, MODES, SQUARES, row, score, scoring, write_tasks

RIGHT = "def f(n): return n * n + 1"


@pytest.mark.parametrize("mode", MODES)
def test_long_outputs_are_compared_by_digest(mode, tmp_path):
    right = "def g(n):\n    out = []\n    for k in range(900_000): out.append(n + k)\n    return out"
    wrong = right.replace("return out", "out[654_321] += 1\n    return out")
    longer = "def g(n): return list(range(n, n + 3_500_000))"
    lazy = "def g(n): return range(n, n + 900_000)"
    digest = "import os\ndef g(n):\n    os.write(9, b'D' + (32).to_bytes(4, 'little') + bytes(32)); os._exit(0)"
    with scoring(mode, tmp_path):
        results = score([right, wrong, longer, lazy, digest], task=LONG)
    assert [reward for reward, _ in results] == [1.0, 0.0, 0.0, 0.0, 0.0]
    [kept] = (tmp_path / "cache" / "mbpp_plus").glob("Mbpp-9002")
    assert kept.stat().st_size < 1000


def test_expected_outputs_are_made_once_and_kept(tmp_path, monkeypatch, capsys):
    made = []
    original = mbpp_expected.make_expected
    recorded = lambda task, worker: made.append(task.task_id) or original(task, worker)  # noqa: E731
    monkeypatch.setattr(mbpp_expected, "make_expected", recorded)
    for _ in range(2):
        with scoring("plain", tmp_path):
            assert score([RIGHT] * 8) == [(1.0, "correct")] * 8
    assert made == [SQUARES]  # by the first of eight, and not for the other task
    assert "expected outputs of Mbpp/9001" in capsys.readouterr().err
    folder = tmp_path / "cache" / "mbpp_plus"
    assert [path.name for path in folder.iterdir()] == ["Mbpp-9001"]


@pytest.mark.parametrize("damage", ["cut", "flip", "other key", "garbage", "nothing"])
def test_a_damaged_cache_is_made_anew(damage, tmp_path):
    with scoring("plain", tmp_path):
        score([RIGHT])
        path = tmp_path / "cache" / "mbpp_plus" / "Mbpp-9001"
        whole = path.read_bytes()
        flipped = whole[:-3] + bytes([whole[-3] ^ 1]) + whole[-2:]
        other = whole.replace(json.loads(whole.split(b"\n")[0])["key"].encode(), b"0" * 32)
        path.write_bytes({"cut": whole[:-9], "flip": flipped, "other key": other, "garbage": b"\n\n"}.get(damage, b""))
        mbpp_plus._scorer._expected = mbpp_expected.ExpectedOutputs()
        assert score([RIGHT, "def f(n): return n"]) == [(1.0, "correct"), (0.0, "wrong: base input 0")]
        assert json.loads(path.read_bytes().split(b"\n")[0]) == json.loads(whole.split(b"\n")[0]) | {
            "checksum": json.loads(path.read_bytes().split(b"\n")[0])["checksum"]
        }


def test_a_changed_task_gets_other_expected_outputs(tmp_path):
    with scoring("plain", tmp_path):
        assert score([RIGHT]) == [(1.0, "correct")]
        mbpp_plus.use_data(write_tasks(tmp_path, [row(9001, "f", "def f(n): return n", [[3]], [])]))
        assert score([RIGHT, "def f(n): return n"]) == [(0.0, "wrong: base input 0"), (1.0, "correct")]


def test_a_cache_that_cannot_be_written_costs_only_time(tmp_path, monkeypatch):
    with scoring("plain", tmp_path):
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("LOOP_RL_CACHE", str(tmp_path / "file"))
        assert score([RIGHT]) == [(1.0, "correct")]


def test_a_canonical_solution_that_fails_is_not_scored(tmp_path):
    rows = [row(9004, "f", "def f(n): raise KeyError", [[3]], []), row(9005, "f", "def g(n): return n", [[3]], [])]
    rows.append(row(9006, "f", "def f(n): return [map(abs, [n])]", [[3]], []))
    with scoring("plain", tmp_path):
        mbpp_plus.use_data(write_tasks(tmp_path, rows))
        results = [score([RIGHT], task=f"Mbpp/{number}")[0] for number in (9004, 9005, 9006)]
    assert [reward for reward, _ in results] == [None] * 3
    assert results[0][1] == "not scored: the canonical solution of Mbpp/9004 fails here: KeyError"
    assert results[1][1] == "not scored: the canonical solution of Mbpp/9005 fails here: undefined"
    assert results[2][1] == "not scored: the canonical solution of Mbpp/9006 fails here: its output is no plain data"


def test_limits_follow_the_canonical_solution():
    assert mbpp_expected.Expected([], 0.1, 10 << 20).limits == Limits(4.0, 1 << 30)
    assert mbpp_expected.Expected([], 20.0, 2 << 30).limits == Limits(80.0, (4 << 30) + (256 << 20))
    assert Limits(4.0).wall == 13.0
