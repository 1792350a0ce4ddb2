"""The second table of collected failures: each input's outcome, by the reward that it is about."""

import json
from pathlib import Path

import pytest

from rewards.code.program import extract_program
from rewards.gsm8k import gsm8k_reward
from rewards.math500 import math500_reward

TABLE = Path(__file__).parents[2] / "../shared/cases/known_failures_2.jsonl"


def inputs(area: str) -> list[tuple[str, dict]]:
    if not TABLE.exists():
        pytest.skip(f"{TABLE} is missing")
    cases = [json.loads(line) for line in TABLE.read_text(encoding="utf-8").splitlines()]
    found = [(case["id"], case["input"]) for case in cases if case["area"] == area]
    assert found
    return found


def test_numbers():
    for name, given in inputs("gsm8k"):
        golds = given.get("golds") or [given["gold"]]
        texts = given.get("completions") or [given["completion"]]
        assert gsm8k_reward(None, texts, answer=golds) == [1.0] * len(texts), name
        assert gsm8k_reward(None, texts, answer=["2", "11", "30", "3", "28"][: len(texts)]) == [0.0] * len(texts), name


def test_mathematics():
    for name, given in inputs("math"):
        equal = [*given.get("pairs", []), *given.get("pairs_equal", [])]
        equal += [[given["completion"], given["gold"]]] if "completion" in given else []
        for pairs, wanted in ((equal, {1.0}), (given.get("pairs_unequal", []), {0.0, None})):
            scores = math500_reward(None, [text for text, _ in pairs], answer=[gold for _, gold in pairs])
            assert set(scores) <= wanted, (name, pairs, scores)


def test_programs():
    for name, given in inputs("mbpp"):
        for text in given["completions"]:
            program = extract_program(text, "similar_elements")
            space: dict = {}
            exec(program or "", space)
            assert set(space["similar_elements"]((1, 2), (2, 3))) == {2}, (name, text)
