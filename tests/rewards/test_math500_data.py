r"""The reward on MATH500 itself and on the collected cases; math-verify and exact SymPy are the references."""

import json
import os
import random
import time
from pathlib import Path

import math_verify
import pytest

from rewards import math500
from rewards.math500 import check_gold, math500_reward, start

ROOT = Path(__file__).parents[2]
DATA = Path(os.environ.get("LOOP_RL_DATA") or ROOT / "../shared/data")
CASES = ROOT / "../shared/cases"


def lines(path):
    if not path.exists():
        pytest.skip(f"{path} is missing")
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def rows():
    return lines(DATA / "math500_test.jsonl")


@pytest.mark.parametrize(
    "write",
    [
        "{solution}",
        "so \\boxed{{{answer}}}.",
        "so ${answer}$",
        "The final answer is $\\displaystyle {answer}$.",
        "{answer}",
    ]
    + ["we get \\[ x = 1 \\] and\n\\[ \\boxed{{ {answer} .}} \\]", "**Answer:** \\({answer}\\)"],
)
def test_every_answer_scores_one_against_itself(rows, write):
    golds = [row["answer"] for row in rows]
    scores = math500_reward(None, [write.format(**row) for row in rows], answer=golds)
    assert [(gold, score) for gold, score in zip(golds, scores, strict=True) if score != 1.0] == []


def test_every_reference_is_usable_alone_and_as_a_solution(rows):
    assert check_gold([row["answer"] for row in rows]) == [None] * 500
    assert check_gold([row["solution"] for row in rows]) == [None] * 500
    boxes = [f"\\boxed{{{row['answer']}}}" for row in rows]
    assert math500_reward(None, boxes, answer=[row["solution"] for row in rows]) == [1.0] * 500


def parsed(text):
    return math_verify.parse(f"${text}$", parsing_timeout=None)


def test_answers_of_other_problems_score_zero_unless_they_are_equal(rows):
    source = random.Random(7)
    pairs = [source.sample(rows, 2) for _ in range(2000)]
    scores = math500_reward(None, [two["solution"] for _, two in pairs], answer=[one["answer"] for one, _ in pairs])
    for (one, two), score in zip(pairs, scores, strict=True):
        if score != 0.0 and one["answer"] != two["answer"]:
            # equal for math-verify too: up to units, a base, order or a name, which both leave out
            golds, answers = parsed(one["answer"]), parsed(two["answer"])
            assert math_verify.verify(golds, answers, timeout_seconds=None), (one["answer"], two["answer"])


def test_the_collected_pairs():
    cases = lines(CASES / "math_pairs.jsonl")
    scores = math500_reward(None, [case["completion"] for case in cases], answer=[case["gold"] for case in cases])
    wrong = [
        (case["gold"], case["completion"][:60]) for case, s in zip(cases, scores, strict=True) if s != case["score"]
    ]
    assert wrong == []


def test_the_collected_failures(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    failures = [case for case in lines(CASES / "known_failures.jsonl") if case["area"] == "math"]
    assert failures
    for case in failures:
        given, expected = case["input"], case["expected"]
        batch = given.get("cases") or given.get("batch")
        if batch is None:
            golds = given.get("golds") or [given["gold"]] * len(given.get("completions", [0]))
            texts = given.get("completions") or [given["completion"]] * len(golds)
        else:
            golds, texts = [one["gold"] for one in batch], [one["completion"] for one in batch]
        scores = math500_reward(None, texts, answer=golds)
        if "score" not in expected:  # the reference is refused
            assert scores == [None] * len(golds) and all(check_gold(golds)), case["id"]
        else:
            wanted = expected["score"]
            assert scores == (wanted if isinstance(wanted, list) else [wanted] * len(scores)), case["id"]
    assert list(tmp_path.iterdir()) == []


def test_scores_need_no_more_than_a_tenth_of_a_second(rows):
    """CPU time of this process and its workers, without memories; wall time depends on what else the machine does."""
    start()
    golds = [row["answer"] for row in rows]
    texts = [f"{row['solution']}\nThat is, \\boxed{{ {row['answer']} + 0}}" for row in rows]
    math500._verdicts.items.clear()
    math500._problems.items.clear()
    before = cpu_seconds()
    scores = math500_reward(None, texts, answer=golds)
    assert len(scores) / (cpu_seconds() - before) > 10  # hundreds where this was written


def cpu_seconds():
    total = time.process_time()
    for worker in math500.pool().workers:
        fields = Path(f"/proc/{worker.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total
