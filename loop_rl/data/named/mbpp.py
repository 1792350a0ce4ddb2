"""MBPP: 974 short Python tasks with three assertions each, divided by task_id as their authors do.

601 to 974 are to learn from, 11 to 510 are held out; 1 to 10 (for few-shot prompts) and 511 to 600 (validation) are
left aside.
"""

from loop_rl.data.examples import Fields, Row, column_of, text_of
from loop_rl.data.named.description import Halves, Hub, NamedSet, Parts
from loop_rl.data.named.mbpp_plus import TEMPLATE
from loop_rl.errors import UserError

TRAIN = range(601, 975)
TEST = range(11, 511)


def _fields(row: Row) -> Fields:
    number, tests = column_of(row, "task_id"), column_of(row, "test_list")
    if not isinstance(number, int) or isinstance(number, bool):
        raise UserError(f"{row.place}: task_id must be an integer, got {str(number)[:40]!r}")
    if not isinstance(tests, list) or not tests or not all(isinstance(test, str) for test in tests):
        raise UserError(f"{row.place}: test_list must be a list of assertions, got {str(tests)[:40]!r}")
    question = f'"""\n{text_of(row, "text")}\n{tests[0]}\n"""'
    setup = row.values.get("test_setup_code") or ""
    columns = {"task_id": f"Mbpp/{number}", "test_list": tests, "test_setup_code": setup}
    return Fields(question, "\n".join(tests), columns)


def _by_task(parts: Parts) -> Halves:
    def within(numbers: range) -> list:
        return [one for one in parts["all"] if int(one.example.columns["task_id"].removeprefix("Mbpp/")) in numbers]

    return within(TRAIN), within(TEST)


SET = NamedSet(
    name="mbpp",
    reward="mbpp_plus",
    fields=_fields,
    layouts=({"all": "mbpp.jsonl"},),
    rows={"all": 974},
    sizes=(108, 224),  # with mbpp_plus as the reward
    sha256={"mbpp.jsonl": "ccf64ceae9c5403bf50a044cb6d505bfd2a2963ee58338ba268fd65beab92a9f"},
    # In this order the rows come by task_id, as in the file.
    hub=Hub("google-research-datasets/mbpp", {"all": ("prompt", "test", "validation", "train")}, config="full"),
    template=TEMPLATE,
    divide=_by_task,
)
