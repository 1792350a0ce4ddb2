"""MBPP+: 378 Python tasks with thorough tests, from EvalPlus' own file.

The copy on the hub holds the tests as one program a task, without the inputs that the reward checks one by one, so
only the file will do. A task's prompt holds one assertion, which tells the function's name and its arguments.
"""

from loop_rl.data.examples import Fields, Row, text_of
from loop_rl.data.named.description import Halves, NamedSet, Parts

FILE = "MbppPlus-v0.2.0.jsonl"
TEMPLATE = (
    "Please provide a self-contained Python script that solves the following problem in a markdown code block:\n"
    "```python\n{question}\n```\nAnswer:\n"
)


def _fields(row: Row) -> Fields:
    columns = {"task_id": text_of(row, "task_id"), "entry_point": text_of(row, "entry_point")}
    return Fields(text_of(row, "prompt").strip(), text_of(row, "assertion").strip(), columns)


def _pool(parts: Parts) -> Halves:
    return list(parts["all"]), []


SET = NamedSet(
    name="mbpp_plus",
    reward="mbpp_plus",
    fields=_fields,
    layouts=({"all": FILE},),
    rows={"all": 378},
    sizes=(278, 100),
    sha256={FILE: "b54e762755248ca411b523c917fa9f93c07b5ff2966bf60b3917b853926a3dad"},
    url="https://github.com/evalplus/mbppplus_release/releases/download/v0.2.0/MbppPlus.jsonl.gz",
    template=TEMPLATE,
    divide=_pool,
    held_out=100,
)
