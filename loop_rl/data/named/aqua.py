"""AQuA: algebra questions with five options; the answer is a letter. A folder needs only the held-out part."""

from loop_rl.data.examples import Fields, Row, column_of, text_of
from loop_rl.data.named.description import Hub, NamedSet
from loop_rl.errors import UserError


def _fields(row: Row) -> Fields:
    options = column_of(row, "options")
    if not isinstance(options, list) or not options or not all(isinstance(option, str) for option in options):
        raise UserError(f"{row.place}: options must be a list of texts, got {str(options)[:40]!r}")
    return Fields(text_of(row, "question").strip(), text_of(row, "correct").strip(), {"options": options})


SET = NamedSet(
    name="aqua",
    reward="choice",
    fields=_fields,
    layouts=({"train": "aqua_train.jsonl", "test": "aqua_test.jsonl"},),
    rows={"train": 97467, "test": 254},
    sizes=(97467, 254),
    sha256={"aqua_test.jsonl": "de41581881ef95c5588c44ddc701c77fd480839241dd422a0d181262af24520c"},
    optional=frozenset({"train"}),
    hub=Hub("deepmind/aqua_rat", {"train": ("train",), "test": ("test",)}, config="raw"),
    template="Question: {question}\nOptions:\n{options}\nAnswer with the letter of one option.\nAnswer:",
)
