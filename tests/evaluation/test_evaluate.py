"""Evaluation on made-up rollouts: counts, seeds, rewards that are None, and what is written."""

import dataclasses
import json
from types import SimpleNamespace

import pyarrow.parquet
import pytest

from loop_rl.data import Example
from loop_rl.errors import UserError
from loop_rl.evaluation import evaluate, load_reward, record_evaluation, score
from loop_rl.evaluation.evaluate import question_seeds
from rewards.gsm8k import gsm8k_reward


class Characters:
    """A tokenizer of one id a character."""

    def __call__(self, text):
        return SimpleNamespace(input_ids=[ord(character) for character in text])

    def batch_decode(self, rows, skip_special_tokens):
        assert skip_special_tokens
        return ["".join(map(chr, row)) for row in rows]


@dataclasses.dataclass(frozen=True)
class Settings:
    num_generations: int
    temperature: float = 1.0
    save_states: bool = True


def completion(text, reason="stop"):
    return SimpleNamespace(token_ids=[ord(character) for character in text], finish_reason=reason)


def generator(answers, calls=None):
    """Generates `answers[prompt]`: a list of completions each."""

    def generate(prompts, sampling, seeds):
        assert not sampling.save_states
        assert len(prompts) == len(seeds)
        if calls is not None:
            calls.extend(zip(prompts, seeds, strict=True))
        return [SimpleNamespace(completions=answers["".join(map(chr, prompt))]) for prompt in prompts]

    return generate


EXAMPLES = [Example("one", "#### 1", 7), Example("two", "#### 2", 3), Example("odd", "no number", 5)]
ANSWERS = {
    "one": [completion(" #### 1")] * 2 + [completion(" #### 9")] * 6,
    "two": [completion(" #### 5")] * 7 + [completion(" 2", "length")],
    "odd": [completion(" #### 3")] * 8,
}


def test_counts_by_hand():
    result = evaluate(generator(ANSWERS), Characters(), EXAMPLES, gsm8k_reward, Settings(8), seed=0, batch=2)
    assert result.pass_1 == pytest.approx((2 / 8 + 1 / 8) / 2)
    assert result.pass_8 == 1.0
    assert result.stderr == pytest.approx(1 / 16)  # s of (1/4, 1/8) is 1/(8√2), over √2
    assert result.mean_reward == pytest.approx(3 / 16)
    assert result.not_scored == 8  # the question without a number
    assert (result.questions, result.samples, result.truncated) == (3, 8, 1 / 24)
    assert [row["reward"] for row in result.rows if row["index"] == 5] == [None] * 8


def test_fewer_than_eight_samples_give_no_pass_at_8():
    answers = {"one": ANSWERS["one"][1:5]}
    result = evaluate(generator(answers), Characters(), EXAMPLES[:1], gsm8k_reward, Settings(4), seed=0)
    assert (result.pass_1, result.pass_8, result.stderr) == (0.25, None, None)


def test_partial_credit_is_no_pass():
    def half(completions, **columns):
        return [0.5] * len(completions)

    result = evaluate(generator(ANSWERS), Characters(), EXAMPLES, half, Settings(8), seed=0)
    assert (result.pass_1, result.mean_reward) == (0.0, 0.5)


def test_a_question_is_sampled_alike_whatever_stands_beside_it():
    alone, together = [], []
    evaluate(generator(ANSWERS, alone), Characters(), EXAMPLES[1:2], gsm8k_reward, Settings(8), seed=4)
    evaluate(generator(ANSWERS, together), Characters(), EXAMPLES, gsm8k_reward, Settings(8), seed=4, batch=1)
    assert alone[0] == together[1]
    assert len({*question_seeds(0, range(500)), *question_seeds(1, range(500))}) == 1000


def test_batches_and_progress():
    done = []
    evaluate(
        generator(ANSWERS), Characters(), EXAMPLES, gsm8k_reward, Settings(8), seed=0, batch=2, on_batch=done.append
    )
    assert done == [2, 1]


def test_wrong_groups_are_no_result():
    with pytest.raises(ValueError, match="groups of 4"):
        evaluate(generator(ANSWERS), Characters(), EXAMPLES, gsm8k_reward, Settings(4), seed=0)
    with pytest.raises(ValueError, match="no examples"):
        evaluate(generator(ANSWERS), Characters(), [], gsm8k_reward, Settings(4), seed=0)


@pytest.mark.parametrize(
    ("returned", "message"),
    [([1.0], "1 rewards for 2"), ([1.0, float("nan")], "None for what"), (["x", 1], "numbers"), (None, "numbers")],
)
def test_bad_rewards_are_errors_and_not_zeros(returned, message):
    with pytest.raises(UserError, match=message):
        score(lambda **columns: returned, EXAMPLES[:2], ["a", "b"], [[1], [2]])


def test_a_failing_reward_function_is_named():
    def broken(**columns):
        raise KeyError("solution")

    with pytest.raises(UserError, match=r"broken failed \(KeyError: 'solution'\)"):
        score(broken, EXAMPLES[:1], ["a"], [[1]])


def test_rewards_by_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_reward_of_test.py").write_text("def f(completions, **columns): return [1.0] * len(completions)\n")
    assert load_reward("gsm8k") is gsm8k_reward
    assert load_reward("own_reward_of_test:f")(completions=["a"]) == [1.0]
    for name, message in [
        ("own_reward_of_test:g", "no function g"),
        ("no_such_module_here:f", "can't import no_such_module_here"),
        ("gsm9k", "unknown reward"),
    ]:
        with pytest.raises(UserError, match=message):
            load_reward(name)


def test_record(tmp_path):
    result = evaluate(generator(ANSWERS), Characters(), EXAMPLES, gsm8k_reward, Settings(8), seed=0)
    record_evaluation(tmp_path, 0, "arithmetic", result)
    with (tmp_path / "evals.jsonl").open("a") as file:
        file.write('{"step": 3, "pa')  # a process that died while writing
    record_evaluation(tmp_path, 4, "some/where/mine.jsonl", result, {"by": "test"})
    lines = (tmp_path / "evals.jsonl").read_text().splitlines()
    assert len(lines) == 3
    first, last = json.loads(lines[0]), json.loads(lines[2])
    assert first["pass@1"] == result.pass_1
    assert first["pass@8"] == 1.0
    assert (first["step"], first["questions"], first["samples"], first["temperature"]) == (0, 3, 8, 1.0)
    assert (last["step"], last["data"], last["by"]) == (4, "some/where/mine.jsonl", "test")
    table = pyarrow.parquet.read_table(tmp_path / "evals" / "step_4_mine.parquet")
    assert table.to_pylist() == result.rows
