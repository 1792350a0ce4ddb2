"""Prompts as token ids, whatever the tokenizer puts around a text."""

import logging

import pytest
from tokenizers.processors import TemplateProcessing

from loop_rl.data import prompts
from loop_rl.data.prompts import all_prompt_ids, prompt_ids
from tests.families import tokenizer as characters

PLAIN = [3 + place for place in (1, 2)]  # "12", a token a character


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch):
    monkeypatch.setattr(prompts, "_said", set())


def adding(template: str):
    """The characters' tokenizer with a post-processor such as `<bos> $A <eos>`."""
    made = characters()
    made.backend_tokenizer.post_processor = TemplateProcessing(
        single=template, special_tokens=[("<bos>", 1), ("<eos>", 2)]
    )
    return made


@pytest.mark.parametrize(
    "template, text, expected, warned",
    [
        ("$A", "12", PLAIN, ""),
        ("$A", "<bos>12", [1, *PLAIN], ""),
        ("<bos> $A", "12", [1, *PLAIN], ""),
        ("<bos> $A", "<bos>12", [1, *PLAIN], "begin with <bos>"),
        ("<bos> <bos> $A", "12", [1, *PLAIN], ""),
        ("<bos> $A <eos>", "12", [1, *PLAIN], "ends every text with <eos>"),
        ("$A <eos>", "12", PLAIN, "ends every text with <eos>"),
        ("<bos> $A", "12<eos>", [1, *PLAIN], "prompts end with <eos>"),
        ("<bos> $A", "1<bos>", [1, 4, 1], ""),
        ("<bos> $A", "", [1], ""),
    ],
)
def test_one_beginning_and_no_end(template, text, expected, warned, caplog):
    with caplog.at_level(logging.WARNING, logger="loop_rl"):
        for _ in range(2):
            assert prompt_ids(adding(template), text) == expected
    assert len(caplog.records) == bool(warned) and warned in caplog.text


def test_a_tokenizer_whose_beginning_is_its_end():
    """As GPT-2's: the token in front is not taken for an end."""
    made = adding("<eos> $A")
    made.bos_token = made.eos_token
    assert all_prompt_ids(made, ["12", "<eos>12", "1"]) == [[2, *PLAIN], [2, *PLAIN], [2, 4]]
    assert all_prompt_ids(made, []) == []
