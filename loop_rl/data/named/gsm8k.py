"""GSM8K: grade-school word problems with worked answers that end in `#### N`."""

from loop_rl.data.examples import Fields, Row, answer_of, text_of
from loop_rl.data.named.description import Hub, NamedSet


def _fields(row: Row) -> Fields:
    return Fields(text_of(row, "question"), answer_of(row, "answer"))


SET = NamedSet(
    name="gsm8k",
    reward="gsm8k",
    fields=_fields,
    files={"train": "gsm8k_train.jsonl", "test": "gsm8k_test.jsonl"},
    hub=Hub("openai/gsm8k", {"train": ("train",), "test": ("test",)}, config="main"),
)
