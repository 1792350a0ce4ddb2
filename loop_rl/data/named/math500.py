"""MATH500: 500 competition problems with LaTeX answers. All of them are held out; there is nothing to train on."""

from loop_rl.data.examples import Fields, Row, answer_of, column_of, text_of
from loop_rl.data.named.description import Hub, NamedSet
from loop_rl.errors import UserError


def _fields(row: Row) -> Fields:
    level = column_of(row, "level")
    if not isinstance(level, int) or isinstance(level, bool):
        raise UserError(f"{row.place}: level must be an integer, got {str(level)[:40]!r}")
    columns = {"level": level, "subject": text_of(row, "subject"), "unique_id": text_of(row, "unique_id")}
    return Fields(text_of(row, "problem"), answer_of(row, "answer"), columns)


SET = NamedSet(
    name="math500",
    reward="math500",
    fields=_fields,
    layouts=({"test": "math500_test.jsonl"},),
    rows={"test": 500},
    sizes=(0, 500),
    sha256={"math500_test.jsonl": "35dc41080a3680858b27fa7e0533d2d547825316fc5dafe5d316f4ccc5a06132"},
    hub=Hub("HuggingFaceH4/MATH-500", {"test": ("test",)}),
    template="Question: {question}\nPut the final answer in \\boxed{}.\nAnswer:",
)
