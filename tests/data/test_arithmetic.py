"""The arithmetic problems and the tokenizer made for them."""

import re
from pathlib import Path

import pytest

from loop_rl.data.arithmetic import problems, split_of
from rewards.gsm8k import gsm8k_reward

EMBEDDED = Path(__file__).parents[2] / "loop_rl" / "embedded"
SAMPLE = problems(2000, 0) + problems(2000, 1, "test")


def test_same_seed_same_problems_and_a_longer_list_begins_with_the_shorter():
    assert problems(50, 3) == problems(50, 3) == problems(80, 3)[:50]
    assert problems(50, 3) != problems(50, 4)
    assert problems(0, 3) == []


def test_splits_are_disjoint_whatever_the_seed():
    train = {p["question"] for seed in range(3) for p in problems(1000, seed)}
    test = {p["question"] for seed in range(3) for p in problems(1000, seed, "test")}
    assert len({p["question"] for p in problems(1000, 0)}) == 1000
    assert not train & test
    assert all(split_of(question) == "test" for question in test)


def test_every_step_is_right_by_pythons_own_arithmetic():
    for problem in SAMPLE:
        *steps, last = problem["answer"].split("\n")
        assert 2 <= len(steps) <= 3
        values = []
        for step in steps:
            left, right = step.split(" = ")
            assert re.fullmatch(r"\d+ [-+*] \d{1,2}", left)
            assert eval(left) == int(right)  # digits and one operator: checked on the line above
            assert 0 <= int(right) < 200
            assert not values or left.split()[0] == values[-1]
            values.append(right)
        assert last == f"#### {values[-1]}"
        assert len(problem["question"].split()) <= 25
        numbers = re.findall(r"\d+", problem["question"])
        assert numbers == [steps[0].split()[0], *(step.split()[2] for step in steps)]


def test_the_reward_accepts_every_answer():
    answers = [problem["answer"] for problem in SAMPLE]
    assert gsm8k_reward(answers, answers, answers, answer=answers) == [1.0] * len(answers)


@pytest.mark.parametrize("arguments", [(-1, 0), (1, 0, "valid")])
def test_bad_arguments_are_refused(arguments):
    with pytest.raises(ValueError):
        problems(*arguments)


@pytest.fixture(scope="module")
def tokenizer():
    transformers = pytest.importorskip("transformers")
    return transformers.AutoTokenizer.from_pretrained(EMBEDDED)


def test_tokenizer_ids_and_sides(tokenizer):
    assert len(tokenizer) == 512
    assert (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, 1, 2)
    assert tokenizer.padding_side == "left"
    assert not set(tokenizer("Question: 12")["input_ids"]) & {0, 1, 2}


@pytest.mark.parametrize("text", ["a  b\r\n\t c ", "e\u0301 \ufb01 é 漢字 \U0001f600 \u200b", "don't , . ! 12  34", ""])
def test_tokenizer_is_lossless(tokenizer, text):
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    every = "".join(chr(code) for code in range(0x20, 0x3000))
    assert tokenizer.decode(tokenizer(every)["input_ids"]) == every


def test_tokenizer_never_merges_digits(tokenizer):
    assert not [token for token in tokenizer.get_vocab() if len(token) > 1 and re.search(r"\d", token)]


def test_a_problem_fits_in_eighty_tokens(tokenizer):
    texts = [f"Question: {p['question']}\nAnswer:\n{p['answer']}" for p in SAMPLE]
    assert max(len(ids) for ids in tokenizer(texts)["input_ids"]) < 80
