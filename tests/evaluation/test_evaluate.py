"""Evaluation on made-up rollouts: counts, seeds, rewards that are None, parts, and what is written."""

import dataclasses
import json

import pyarrow.parquet
import pytest

from loop_rl.evaluation import LocalScorer, RewardSpec, evaluate, record_evaluation
from loop_rl.evaluation.evaluate import question_seeds
from loop_rl.evaluation.record import PartFiles
from tests.evaluation.doubles import ANSWERS, EXAMPLES, Characters, Settings, completion, generator

GSM8K = RewardSpec((("gsm8k", 1.0),))
TOYS = "tests.reward.toy_rewards"


def run(generate, examples=EXAMPLES, samples=8, reward=GSM8K, **options):
    with LocalScorer([reward]) as scorer:
        return evaluate(generate, Characters(), examples, scorer, reward, Settings(samples), seed=0, **options)


def test_counts_by_hand():
    result = run(generator(ANSWERS), batch=2)
    found = result.metrics
    assert found.passes[1] == (pytest.approx((2 / 8 + 1 / 8) / 2), pytest.approx(1 / 16))  # s of (1/4, 1/8) over √2
    assert found.passes[8] == (1.0, 0.0)
    assert found.reward == pytest.approx(3 / 16)
    assert found.not_scored == 8  # the question without a number
    assert (found.questions, result.samples, found.truncated) == (3, 8, 1 / 24)
    assert [row["reward"] for row in result.rows if row["index"] == 5] == [None] * 8
    assert [row["index"] for row in result.rows] == [7] * 8 + [3] * 8 + [5] * 8  # the examples' order, not arrival's
    assert [row["sample"] for row in result.rows] == [*range(8)] * 3
    assert result.rows[0]["reason"] == "correct" and result.rows[2]["reason"] == "wrong"


def test_partial_credit_is_no_pass():
    result = run(generator({"one": [completion("x")] * 3 + [completion("")]}), EXAMPLES[:1], 4, spec("length"))
    assert result.metrics.passes[1][0] == 0.75 and result.metrics.reward == 0.75
    assert result.metrics.no_answer is None  # the function does not say
    half = run(generator(ANSWERS), EXAMPLES[:2], reward=RewardSpec((("gsm8k", 0.5),)))
    assert half.metrics.reward == pytest.approx(0.5 * 3 / 16)  # weights scale the reward
    assert half.metrics.passes[1][0] == pytest.approx(3 / 16)  # and not what is correct


def spec(*names):
    return RewardSpec(tuple((f"{TOYS}:{name}", 1.0) for name in names))


def test_a_question_is_sampled_alike_whatever_stands_beside_it():
    alone, together = [], []
    run(generator(ANSWERS, alone), EXAMPLES[1:2])
    run(generator(ANSWERS, together), batch=1)
    assert alone[0] == together[1]
    assert len({*question_seeds(0, range(500)), *question_seeds(1, range(500))}) == 1000


def test_batches_and_progress():
    done = []
    results = [run(generator(ANSWERS), batch=batch, on_batch=done.append) for batch in (2, 1, 3)]
    assert done == [2, 1, 1, 1, 1, 3]
    assert results[0] == results[1] == results[2]


def test_wrong_groups_are_no_result():
    with pytest.raises(ValueError, match="groups of 4"):
        run(generator(ANSWERS), samples=4)
    with pytest.raises(ValueError, match="no examples"):
        run(generator(ANSWERS), examples=[])


def test_kept_batches_are_not_sampled_again(tmp_path):
    whole, calls = run(generator(ANSWERS), batch=1), []
    parts = PartFiles(tmp_path / "parts")

    def stopping(prompts, sampling, seeds, on_group):
        if "".join(map(chr, prompts[0])) == "odd":
            raise KeyboardInterrupt
        return generator(ANSWERS)(prompts, sampling, seeds, on_group)

    with pytest.raises(KeyboardInterrupt):
        run(stopping, batch=1, parts=parts)
    assert len(list(parts.folder.iterdir())) == 1  # the second batch was being scored
    again = run(generator(ANSWERS, calls), batch=1, parts=parts)
    assert again == whole
    assert ["".join(map(chr, prompt)) for prompt, _ in calls] == ["two", "odd"]
    calls.clear()
    (parts.folder / "batch_00001.parquet").write_bytes(b"PAR1 cut off")
    assert run(generator(ANSWERS, calls), batch=1, parts=parts) == whole
    assert ["".join(map(chr, prompt)) for prompt, _ in calls] == ["two"]


def test_record(tmp_path):
    level = [
        dataclasses.replace(EXAMPLES[0], columns={"level": 3}),
        dataclasses.replace(EXAMPLES[1], columns={"level": 1}),
    ]
    result = run(generator(ANSWERS), level)
    record_evaluation(tmp_path, 0, "arithmetic", result)
    with (tmp_path / "evals.jsonl").open("a") as file:
        file.write('{"step": 3, "pa')  # a process that died while writing
    record_evaluation(tmp_path, 4, "some/where/mine.jsonl", result, {"by": "test"})
    lines = (tmp_path / "evals.jsonl").read_text().splitlines()
    assert len(lines) == 3
    first, last = json.loads(lines[0]), json.loads(lines[2])
    for k in (1, 2, 4, 8):
        assert first[f"pass@{k}"] == result.metrics.passes[k][0]
        assert first["stderr" if k == 1 else f"stderr@{k}"] == result.metrics.passes[k][1]
    assert (first["step"], first["questions"], first["samples"], first["temperature"]) == (0, 2, 8, 1.0)
    assert list(first["by_level"]) == ["1", "3"]
    assert first["by_level"]["3"]["pass@1"] == 0.25 and first["by_level"]["1"]["questions"] == 1
    assert (last["step"], last["data"], last["by"]) == (4, "some/where/mine.jsonl", "test")
    table = pyarrow.parquet.read_table(tmp_path / last["file"])
    assert last["file"] == "evals/step_4_mine.parquet"
    assert table.to_pylist() == result.rows
    assert {"index", "sample", "seed", "reason", "level"} <= set(table.column_names)


def test_a_column_that_only_some_questions_have(tmp_path):
    some = [
        dataclasses.replace(EXAMPLES[0], columns={"level": None}),
        dataclasses.replace(EXAMPLES[1], columns={"level": 1}),
    ]
    result = run(generator(ANSWERS), some)
    row = record_evaluation(tmp_path, 0, "x", result)
    assert row["by_level"]["1"]["questions"] == 1 and row["questions"] == 2
    kept = pyarrow.parquet.read_table(tmp_path / row["file"]).to_pylist()
    assert [one["level"] for one in kept] == [None] * 8 + ["1"] * 8


def test_fewer_than_eight_samples_give_no_pass_at_8(tmp_path):
    result = run(generator({"one": ANSWERS["one"][1:6]}), EXAMPLES[:1], 5)
    row = record_evaluation(tmp_path, 0, "x", result)
    assert (row["pass@1"], row["pass@8"], row["stderr"]) == (0.2, None, None)
    assert [key for key in row if key.startswith("pass@")] == ["pass@1", "pass@2", "pass@4", "pass@8"]
    assert "stderr@8" not in row
