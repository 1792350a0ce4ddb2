"""A user's own questions: a .jsonl file, with the columns named by the recipe where they have other names."""

import difflib
from pathlib import Path

from loop_rl.data.examples import (
    RESERVED,
    TEMPLATE,
    DataSettings,
    Fields,
    Placed,
    Row,
    answer_of,
    make_examples,
    text_of,
    value_of,
)
from loop_rl.data.named.description import Halves
from loop_rl.data.reading import read_rows
from loop_rl.data.sources import local_folder
from loop_rl.data.subsets import hold_out
from loop_rl.errors import UserError

TEST_SHARE = 10  # one question in ten is held out of a set that isn't divided


def is_own_file(name: str) -> bool:
    """Whether a data set's name is the path of a file rather than a name."""
    return name.endswith((".jsonl", ".jsonl.gz"))


def own_file(settings: DataSettings) -> Halves:
    """A user's file: `x_test.jsonl` beside `x_train.jsonl` is the held-out half; otherwise a tenth of the file is.

    The tenth is chosen by a hash of the question, so neither the seed nor the order of the rows moves a question
    to the other half, and rows that repeat a question stay together.
    """
    path = _find(settings)
    examples = own_examples(read_rows(path), settings)
    plain = path.name.removesuffix(".gz")
    if plain.endswith("_train.jsonl"):
        name = f"{plain.removesuffix('train.jsonl')}test.jsonl"
        for beside in (path.with_name(name), path.with_name(f"{name}.gz")):
            if beside.is_file():
                return examples, own_examples(read_rows(beside), settings)
    return hold_out_a_tenth(examples, str(path))


def hold_out_a_tenth(examples: list[Placed], source: str) -> Halves:
    """A tenth of the questions, at least one, held out; UserError where there is only one."""
    count = len({one.question for one in examples})
    if count < 2:
        raise UserError(f"{source}: one question only; at least two are needed, to hold one out")
    return hold_out(examples, max(1, count // TEST_SHARE))


def own_examples(rows: list[Row], settings: DataSettings) -> list[Placed]:
    """Examples of a user's rows; what isn't question or answer is a column for the reward.

    `settings.columns` maps our names to the rows' own. A column whose name a reward function is called with anyway is
    refused; the mapping can give it another.
    """
    ours = dict(settings.columns)
    question, answer = ours.pop("question", "question"), ours.pop("answer", "answer")
    renamed = set(ours.values()) | {question, answer}
    names = dict.fromkeys(name for row in rows for name in row.values if name not in renamed)
    for name in names:
        if name in RESERVED:
            raise UserError(
                f"{rows[0].place.rpartition(',')[0]}: the column {name!r} has a name that reward functions use; give "
                f"it another with data.columns: {{my_{name}: {name}}}"
            )
    fields = []
    for row in rows:
        columns = {name: row.values.get(name) for name in names}
        columns.update({name: value_of(row, theirs) for name, theirs in ours.items()})
        fields.append((row, Fields(text_of(row, question, "question"), answer_of(row, answer, "answer"), columns)))
    return make_examples(fields, settings.template or TEMPLATE)


def _find(settings: DataSettings) -> Path:
    path = Path(settings.name).expanduser()
    folder = local_folder(settings.folder)
    if not path.is_file() and folder and (folder / settings.name).is_file():
        path = folder / settings.name
    if not path.is_file():
        there = [str(other) for other in sorted(path.parent.glob("*.jsonl*")) if other.is_file()]
        nearest = difflib.get_close_matches(str(path), there, n=1, cutoff=0.0)
        mend = f"did you mean {nearest[0]}?" if nearest else "give the path of a .jsonl file with question and answer"
        raise UserError(f"data.name: no file {settings.name}; {mend}")
    return path
