"""The text of a completion, in both of TRL's forms."""

import pytest

from rewards.text import completion_text


@pytest.mark.parametrize(
    ("completion", "text"),
    [
        ("seven", "seven"),
        ("", ""),
        ([{"role": "assistant", "content": "seven"}], "seven"),
        ([{"role": "user", "content": "six"}, {"role": "assistant", "content": "seven"}], "seven"),
        (
            [{"role": "assistant", "content": [{"type": "text", "text": "sev"}, {"type": "text", "text": "en"}]}],
            "seven",
        ),
        ([{"role": "assistant", "content": [{"type": "image"}, {"type": "text", "text": None}]}], ""),
        ([{"role": "assistant", "content": None}], ""),
        ([{"role": "assistant"}], ""),
        ([], ""),
    ],
)
def test_the_last_message_is_the_text(completion, text):
    assert completion_text(completion) == text


@pytest.mark.parametrize("completion", [None, 7, b"seven", [b"seven"], {"content": "seven"}, ["seven"]])
def test_anything_else_is_the_callers_mistake(completion):
    with pytest.raises(TypeError, match="a string or a list of messages"):
        completion_text(completion)
