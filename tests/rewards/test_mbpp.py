"""MBPP's reward: asserts as data, compared outside the program's process."""

import json
import os
from pathlib import Path

import pytest

from rewards.code.asserts import mbpp_reward, mbpp_tests
from tests.rewards.mbpp_squares import MODES, scoring

DATA = Path(os.environ.get("LOOP_RL_DATA") or Path(__file__).parents[2] / "../shared/data") / "mbpp.jsonl"
TESTS = ["assert pair(2, [1.5]) == (2, {'a': [1.5]})", "assert pair(-1, []) == (-1, {'a': []})"]


def score(programs, tests=TESTS, setup=None):
    reasons = []
    rewards = mbpp_reward(
        [""] * len(programs),
        [f"```python\n{program}\n```" for program in programs],
        test_list=[tests] * len(programs),
        test_setup_code=setup and [setup] * len(programs),
        log_extra=lambda _, values: reasons.extend(values),
    )
    return list(zip(rewards, reasons, strict=True))


@pytest.mark.parametrize("mode", MODES)
def test_outputs_are_compared_outside(mode, tmp_path):
    right = "def pair(n, x): return n, {'a': x}"
    lying = "class A(tuple):\n    __eq__ = lambda s, o: True\ndef pair(n, x): return A((n, {'a': 5}))"
    patched = "import builtins\nbuiltins.AssertionError = None\ndef pair(n, x): raise SystemExit(0)"
    with scoring(mode, tmp_path):
        results = score([right, lying, patched, "def pair(n, x): return n, {'a': [1.5]}", "def p(): pass", ""])
    assert results == [
        (1.0, "correct"),
        (0.0, "wrong: test 0"),
        (0.0, "wrong: SystemExit at test 0"),
        (0.0, "wrong: test 1"),
        (0.0, "no answer: pair is not defined"),
        (0.0, "no answer"),
    ]


@pytest.mark.parametrize(
    "tests",
    [
        ["assert f(root) == 1"],
        ["assert f(1) == g(1)"],
        ["assert int(f(1)) == 1"],
        ["assert f(1)"],
        ["assert f(1) != 2"],
        ["assert 0 < f(1) == 1"],
        ["assert f(x=1) == 1"],
        ["assert f(*[1]) == 1"],
        ["assert f(1) == 1", "assert g(1) == 1"],
        ["f(1) == 1"],
        ["assert f(1) == 1; print()"],
        ["assert f(1"],
        [],
    ],
)
def test_other_tests_are_told_apart_and_not_scored(tests):
    assert mbpp_tests({"test_list": tests}) is None
    [(reward, reason)] = score(["def f(x): return 1"], tests)
    assert reward is None and reason.startswith("not scored: ")


def test_rows_with_set_up_code_are_told_apart():
    assert mbpp_tests({"test_list": TESTS, "test_setup_code": "root = 1"}) is None
    assert score(["def pair(n, x): return n, {'a': x}"], setup="root = 1")[0][0] is None


def test_tests_are_read():
    tests = mbpp_tests({"test_list": TESTS, "test_setup_code": ""})
    assert tests.entry_point == "pair"
    assert tests.inputs == ((2, [1.5]), (-1, [])) and tests.expected[0] == (2, {"a": [1.5]})


def test_a_mismatch_of_columns_is_one_line():
    with pytest.raises(ValueError, match="^test_list: 1 for 2 completions$"):
        mbpp_reward(["", ""], ["", ""], test_list=[TESTS])


def test_the_datas_own_solutions_pass(tmp_path):
    if not DATA.exists():
        pytest.skip(f"{DATA} is missing")
    rows = [json.loads(line) for line in DATA.read_text().splitlines()]
    assert sum(mbpp_tests(row) is not None for row in rows) == 967
    rows = [row for row in rows if mbpp_tests(row)][::25]
    with scoring("plain", tmp_path):
        rewards = mbpp_reward(
            [""] * len(rows),
            [f"```python\n{row['code']}\n```" for row in rows],
            test_list=[row["test_list"] for row in rows],
            test_setup_code=[row["test_setup_code"] for row in rows],
        )
    assert [row["task_id"] for row, reward in zip(rows, rewards, strict=True) if reward != 1.0] == []
