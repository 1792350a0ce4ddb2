"""Data sets by name: what is loaded, and what is refused with which words."""

import json
import socket
from collections import Counter

import pytest

from loop_rl.data import default_stop, load_dataset
from loop_rl.errors import UserError
from tests.data.helpers import settings, write


def rows(count, first=0):
    return [{"question": f"How much is {n} + 1?", "answer": f"{n} + 1 = {n + 1}\n#### {n + 1}"} for n in range(count)][
        first:
    ]


def refusal(*arguments, **keywords):
    with pytest.raises(UserError) as caught:
        load_dataset(settings(*arguments, **keywords))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_arithmetic():
    splits = load_dataset(settings("arithmetic", train_size=30, eval_size=20))
    assert (len(splits.train), len(splits.test)) == (30, 20)
    first = splits.train[0]
    assert first.prompt.startswith("Question: ") and first.prompt.endswith("?\nAnswer:")
    assert "\n#### " in first.answer
    assert not {e.prompt for e in splits.train} & {e.prompt for e in splits.test}
    assert splits == load_dataset(settings("arithmetic", train_size=30, eval_size=20))
    assert splits.train != load_dataset(settings("arithmetic", seed=1, train_size=30, eval_size=20)).train


def test_more_questions_than_can_be_made_in_time_are_refused():
    assert "data.eval_size: arithmetic is made on the fly" in refusal("arithmetic", eval_size=10**9)
    assert "data.train_size: reasoning_gym:chain_sum" in refusal("reasoning_gym:chain_sum", train_size=10**9)


@pytest.mark.parametrize("by", ["folder", "variable"])
def test_gsm8k_from_a_folder(tmp_path, monkeypatch, by):
    write(tmp_path / "gsm8k_train.jsonl", rows(8))
    write(tmp_path / "gsm8k_test.jsonl", rows(12, 8))
    monkeypatch.setenv("LOOP_RL_DATA", str(tmp_path / "nowhere" if by == "folder" else tmp_path))
    splits = load_dataset(settings("gsm8k", folder=str(tmp_path) if by == "folder" else None))
    assert sorted(e.index for e in splits.train) == list(range(8))
    assert len(splits.test) == 4
    for example in splits.train:
        assert example.prompt == f"Question: How much is {example.index} + 1?\nAnswer:"
        assert example.answer.endswith(f"#### {example.index + 1}")


def test_a_subset_is_seeded_and_grows(tmp_path):
    write(tmp_path / "gsm8k_train.jsonl", rows(50))
    write(tmp_path / "gsm8k_test.jsonl", rows(60, 50))

    def train(size, seed=0):
        return load_dataset(settings("gsm8k", str(tmp_path), seed=seed, train_size=size, eval_size=3)).train

    assert train(5) == train(20)[:5] == train(None)[:5]
    assert train(20) != train(20, seed=1)
    assert Counter(train(None)) == Counter(train(None, seed=1))
    assert "data.train_size" in refusal("gsm8k", str(tmp_path), train_size=51)
    assert "10 questions, 11" in refusal("gsm8k", str(tmp_path), eval_size=11)


def test_gsm8k_folder_without_the_files(tmp_path):
    message = refusal("gsm8k", folder=str(tmp_path))
    assert "data.folder" in message and str(tmp_path / "gsm8k_train.jsonl") in message


def test_gsm8k_without_folder_or_hub(monkeypatch):
    with socket.socket() as held:  # bound, not listening: a connection is refused at once
        held.bind(("127.0.0.1", 0))
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{held.getsockname()[1]}")
        for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "http_proxy", "HTTP_PROXY"):
            monkeypatch.delenv(name, raising=False)
        message = refusal("gsm8k")
    assert "LOOP_RL_DATA" in message and "gsm8k_test.jsonl" in message and "does not answer" in message


def test_gsm8k_from_the_hub(monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    asked = []
    answers = {"train": rows(5), "test": rows(7, 5)}
    monkeypatch.setattr(datasets, "load_dataset", lambda *arguments: asked.append(arguments) or answers)
    splits = load_dataset(settings("gsm8k"))
    assert asked == [("openai/gsm8k", "main")]
    assert (len(splits.train), len(splits.test)) == (5, 2)

    def fails(*arguments):
        raise ConnectionError("Couldn't reach it\nat all")

    monkeypatch.setattr(datasets, "load_dataset", fails)
    assert "Couldn't reach it at all" in refusal("gsm8k")


def test_own_file_holds_out_a_tenth_whatever_the_seed_and_order(tmp_path):
    path = write(tmp_path / "own.jsonl", [*rows(100), *rows(100), "", {"question": "Six?", "answer": 6, "level": 1}])
    splits = load_dataset(settings(path))
    held_out = {e.prompt for e in splits.test}
    assert len(held_out) == 10
    assert not held_out & {e.prompt for e in splits.train}
    assert len(splits.train) + len(splits.test) == 201
    turned = write(tmp_path / "turned.jsonl", [*rows(100)[::-1], {"question": "Six?", "answer": 6}])
    assert {e.prompt for e in load_dataset(settings(turned, seed=5)).test} == held_out


def test_own_test_file_beside_the_train_file(tmp_path):
    path = write(tmp_path / "own_train.jsonl", rows(5))
    write(tmp_path / "own_test.jsonl", rows(7, 5))
    splits = load_dataset(settings(path))
    assert (len(splits.train), len(splits.test)) == (5, 2)


def test_own_file_in_the_folder_of_data(tmp_path):
    write(tmp_path / "own.jsonl", rows(5))
    assert len(load_dataset(settings("own.jsonl", folder=str(tmp_path))).train) == 4


def test_line_separators_and_byte_order_mark_inside_a_row(tmp_path):
    question = "One\u2028two\u0085three\x0c?"
    text = "\ufeff" + "".join(
        json.dumps({"question": q, "answer": "3"}, ensure_ascii=False) + "\r\n" for q in (question, "Other?")
    )
    path = tmp_path / "own.jsonl"
    path.write_bytes(text.replace("\x0c", "\\f").encode())
    splits = load_dataset(settings(str(path)))
    assert f"Question: {question}\nAnswer:" in {e.prompt for e in splits.train + splits.test}


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"answer": "3"}, "'question' is missing"),
        ({"question": "How?", "reply": "3"}, "'answer' is missing; it has 'question', 'reply'"),
        ({"question": "How?", "answer": "three"}, "no number"),
        ({"question": "How?", "answer": "3\n#### "}, "no number"),
        ({"question": "How?", "answer": None}, "answer must be"),
        ({"question": "How?", "answer": True}, "answer must be"),
        ({"question": "  ", "answer": "3"}, "question must be"),
        ({"question": 3, "answer": "3"}, "question must be"),
        ([1, 2], "got list"),
        ("{'question': 1}", "not JSON"),
        ('{"question": "How \\ud83d?", "answer": "3"}', "half a character"),
        ('{"question": "How?", "answer": "3", "tags": ["\\uDC00"]}', "half a character"),
    ],
)
def test_a_bad_row_is_refused_by_file_and_number(tmp_path, row, words):
    path = write(tmp_path / "own.jsonl", [rows(1)[0], "", row])
    message = refusal(path)
    assert f"{path}, row 3" in message and words in message


def test_answers_that_are_no_numbers_for_another_reward(tmp_path):
    path = write(tmp_path / "own.jsonl", [{"question": f"{n}?", "answer": "\\sqrt{2}"} for n in range(3)])
    assert len(load_dataset(settings(path), reward="mine:reward").train) == 2


def test_files_that_hold_nothing_to_use(tmp_path):
    assert "no rows" in refusal(write(tmp_path / "empty.jsonl", [""]))
    assert "one question only" in refusal(write(tmp_path / "one.jsonl", rows(1)))
    (tmp_path / "latin.jsonl").write_bytes(b'{"question": "\xe9?", "answer": 3}')
    assert "UTF-8" in refusal(str(tmp_path / "latin.jsonl"))


def test_unknown_names_and_missing_files_get_the_nearest(tmp_path):
    assert "gsm8k" in refusal("gms8k").split("nearest is")[1].split()[0]
    path = write(tmp_path / "lessons.jsonl", rows(3))
    assert f"did you mean {path}?" in refusal(str(tmp_path / "lesons.jsonl"))
    assert "no file" in refusal("nowhere/at/all.jsonl")


@pytest.mark.parametrize(
    ("template", "stop"),
    [
        (None, ("\nQuestion:",)),
        ("Q: {question}\nA:", ("\nQ:",)),
        ("### Instruction:\n{question}\n### Response:\n", ("\n### Instruction:",)),
        ("Question: 1 + 1?\nAnswer: 2\n\nQuestion: {question}\nAnswer:", ("\nQuestion:",)),
        ("Problem:\t{question}", ("\nProblem:",)),
        ("<|user|>{question}<|end|>", ()),
        ("```python\n{question}\n```", ()),
        ("{question}", ()),
    ],
)
def test_completions_end_at_the_template_s_label_of_another_question(template, stop):
    assert default_stop(settings("arithmetic", template=template)) == stop


def test_every_known_set_has_the_stop_strings_of_its_template():
    for name in ("arithmetic", "gsm8k", "math500", "svamp", "aqua", "reasoning_gym:chain_sum"):
        assert default_stop(settings(name)) == ("\nQuestion:",)
    assert default_stop(settings("mbpp")) == default_stop(settings("mbpp_plus")) == ()
