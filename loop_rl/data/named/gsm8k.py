"""GSM8K: grade-school word problems with worked answers that end in `#### N`."""

from loop_rl.data.examples import Fields, Row, answer_of, text_of
from loop_rl.data.named.description import Hub, NamedSet


def _fields(row: Row) -> Fields:
    return Fields(text_of(row, "question"), answer_of(row, "answer"))


SET = NamedSet(
    name="gsm8k",
    reward="gsm8k",
    fields=_fields,
    layouts=({"train": "gsm8k_train.jsonl", "test": "gsm8k_test.jsonl"},),
    rows={"train": 7473, "test": 1319},
    sizes=(7473, 1319),
    sha256={
        "gsm8k_train.jsonl": "17f347dc51477c50d4efb83959dbb7c56297aba886e5544ee2aaed3024813465",
        "gsm8k_test.jsonl": "3730d312f6e3440559ace48831e51066acaca737f6eabec99bccb9e4b3c39d14",
    },
    hub=Hub("openai/gsm8k", {"train": ("train",), "test": ("test",)}, config="main"),
)
