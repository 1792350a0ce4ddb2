"""SVAMP: 1,000 word problems with small changes that mislead whoever doesn't read them.

The hub's copy has 700 to learn from and 300 held out. The authors' single file isn't divided; of it the 300 whose
questions have the smallest hashes are held out, whatever the seed.
"""

from loop_rl.data.examples import Fields, Row, answer_of, text_of
from loop_rl.data.named.description import Halves, Hub, NamedSet, Parts, as_published
from loop_rl.data.subsets import hold_out

HELD_OUT = 300


def _fields(row: Row) -> Fields:
    body = text_of(row, "Body").strip()
    stop = "" if body[-1] in ".?!" else "."
    columns = {"id": text_of(row, "ID"), "type": text_of(row, "Type")}
    return Fields(f"{body}{stop} {text_of(row, 'Question').strip()}", _whole(answer_of(row, "Answer")), columns)


def _whole(answer: str) -> str:
    """51.0, as the files have it, as 51."""
    return answer.removesuffix(".0")


def _divide(parts: Parts) -> Halves:
    return hold_out(parts["all"], HELD_OUT) if "all" in parts else as_published(parts)


SET = NamedSet(
    name="svamp",
    reward="gsm8k",
    fields=_fields,
    layouts=({"all": "svamp.json"}, {"train": "svamp_train.jsonl", "test": "svamp_test.jsonl"}),
    rows={"train": 700, "test": 300, "all": 1000},
    sizes=(700, 300),
    sha256={"svamp.json": "5be77703a6d891ae476d7c082787ad361392aa02453b132516cdd5f4e7934e3e"},
    hub=Hub("ChilleD/SVAMP", {"train": ("train",), "test": ("test",)}),
    divide=_divide,
)
