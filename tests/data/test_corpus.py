"""Corpora: what a row holds, which tokens count, what resuming gives, what is refused."""

import json

import pytest
import torch

from loop_rl.data.corpus import IGNORED, Corpus, load_corpus
from loop_rl.errors import UserError
from loop_rl.training.text import data_tokenizer


@pytest.fixture(scope="module")
def tokenizer():
    return data_tokenizer("embedded")


def load(name, tokenizer, length=96, loss_on="all", problems=50):
    return load_corpus(str(name), tokenizer, length, problems, loss_on, seed=0)


def test_a_row_starts_with_a_question_and_is_full(tokenizer):
    ids, labels = load("arithmetic", tokenizer).next_rows(8)
    assert ids.shape == labels.shape == (8, 96) and ids.dtype == torch.int64
    assert torch.equal(ids, labels)
    for row in ids:
        text = tokenizer.decode(row)
        assert text.startswith("Question: ") and "\nAnswer: " in text and "#### " in text and "<eos>" in text


def test_loss_on_answers_counts_answers_and_their_end_only(tokenizer):
    ids, labels = load("arithmetic", tokenizer, length=64, loss_on="answer").next_rows(8)
    counted = labels != IGNORED
    assert torch.equal(ids[counted], labels[counted])
    for row, mask in zip(ids, counted, strict=True):
        text = tokenizer.decode(row[mask])
        assert "Question" not in text and "Answer:" not in text and "<eos>" in text


def test_an_epoch_visits_every_document_once_and_epochs_differ_in_order():
    documents = [[index] * 4 for index in range(10)]
    corpus = Corpus(documents, [0] * 10, 4, "all", seed=0)
    first, second = (corpus.next_rows(10)[0][:, 0].tolist() for _ in range(2))
    assert sorted(first) == sorted(second) == list(range(10))
    assert first != second


def test_resuming_goes_on_where_the_rows_stopped(tokenizer):
    corpus = load("arithmetic", tokenizer)
    corpus.next_rows(30)
    state = corpus.state_dict()
    expected = corpus.next_rows(30)[0]
    fresh = load("arithmetic", tokenizer)
    fresh.load_state_dict(state)
    assert torch.equal(fresh.next_rows(30)[0], expected)


def test_plain_text_is_cut_into_rows(tmp_path, tokenizer):
    file = tmp_path / "text.txt"
    file.write_text("Tom has 3 cups. " * 40)
    corpus = load(file, tokenizer, length=32)
    stream = tokenizer(file.read_text()).input_ids + [tokenizer.eos_token_id]
    rows = {tuple(row.tolist()) for row in corpus.next_rows(corpus.documents)[0]}
    assert rows == {tuple(stream[i : i + 32]) for i in range(0, len(stream) - 31, 32)}


def test_rows_of_questions_or_of_text(tmp_path, tokenizer):
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({"question": "1 + 1?", "answer": "1 + 1 = 2\u2028\n#### 2"}, ensure_ascii=False) + "\n")
    assert tokenizer.decode(load(file, tokenizer).next_rows(1)[0][0]).startswith("Question: 1 + 1?\nAnswer: 1 + 1 = 2")
    file.write_text("\n".join(json.dumps({"text": "Tom has 3 cups. " * 20}) for _ in range(3)))
    assert load(file, tokenizer).documents >= 1


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.csv", "x", "data.name"),
        ("absent.txt", None, "cannot read"),
        ("a.txt", "short", "fewer than data.length"),
        ("a.jsonl", "", "empty"),
        ("a.jsonl", "{", "line 1: not JSON"),
        ("a.jsonl", "[1]", "line 1"),
        ("a.jsonl", '{"question": "x"}', "row 1 lacks"),
        ("a.jsonl", '{"question": "x", "answer": "' + "12 " * 200 + '"}', "no document"),
    ],
)
def test_unusable_corpora_are_refused(tmp_path, tokenizer, name, content, said):
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=said):
        load(tmp_path / name, tokenizer)


def test_plain_text_has_no_answers(tmp_path, tokenizer):
    (tmp_path / "a.txt").write_text("words " * 500)
    with pytest.raises(UserError, match="loss_on"):
        load(tmp_path / "a.txt", tokenizer, loss_on="answer")
