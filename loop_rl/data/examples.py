"""What a data set is made of: rows as they were read, and examples as the model and the reward see them."""

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from loop_rl.errors import UserError

TEMPLATE = "Question: {question}\nAnswer:"
# What a reward function is called with besides the columns: a column of that name would be taken for it.
RESERVED = frozenset(
    {"prompts", "completions", "completion_ids", "log_extra", "log_metric", "trainer_state", "environments"}
)

_LABEL = re.compile(r"(?:^|\n)[ \t]*([^\s{}][^\n{}]{0,40}:)[ \t]*\n?\{question\}")
_PLACEHOLDER = re.compile(r"\{\{([A-Za-z_]\w*)\}\}|\{([A-Za-z_]\w*)\}")


class DataSettings(Protocol):
    """What is read of a recipe's `data` section."""

    @property
    def name(self) -> str: ...
    @property
    def folder(self) -> str | None: ...
    @property
    def seed(self) -> int: ...
    @property
    def train_size(self) -> int | None: ...
    @property
    def eval_size(self) -> int | None: ...
    @property
    def columns(self) -> Mapping[str, str]: ...
    @property
    def template(self) -> str | None: ...
    @property
    def config(self) -> str | None: ...


@dataclass(frozen=True)
class Example:
    """One question: the prompt as the model reads it, the reference answer, its row (from 0) in the source.

    `columns`: what else the row has, passed to the reward function by name.
    """

    prompt: str
    answer: str
    index: int
    columns: dict[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class Splits:
    """The questions to learn from and the held-out ones; disjoint."""

    train: list[Example]
    test: list[Example]


@dataclass(frozen=True)
class Row:
    """A row as it was read, with the words that name it in a refusal (`mine.jsonl, row 3`)."""

    place: str
    index: int
    values: dict[str, Any]


@dataclass(frozen=True)
class Fields:
    """What a row says: the question, the reference answer, and further columns."""

    question: str
    answer: str
    columns: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Placed:
    """An example, its bare question, and the row that it comes from in words."""

    place: str
    question: str
    example: Example


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name that is most like this one."""
    known = list(known)
    return difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0] if known else ""


def column_of(row: Row, column: str) -> Any:
    """A column of a row; UserError naming the row, the columns that it has and the nearest one."""
    if column not in row.values:
        there = ", ".join(map(repr, row.values)) or "none"
        hint = f"; the nearest is {nearest(column, row.values)!r}" if row.values else ""
        raise UserError(f"{row.place}: the field {column!r} is missing; it has {there}{hint}")
    return row.values[column]


def text_of(row: Row, column: str, called: str = "") -> str:
    """A column that has to be a text which isn't blank."""
    value = column_of(row, column)
    if not isinstance(value, str) or not value.strip():
        raise UserError(f"{row.place}: {called or column} must be a text that is not empty, got {str(value)[:40]!r}")
    return value


def answer_of(row: Row, column: str, called: str = "") -> str:
    """A reference answer: a text that isn't blank, or a number, as text."""
    value = column_of(row, column)
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or not value.strip():
        raise UserError(f"{row.place}: {called or column} must be a text or a number, got {str(value)[:40]!r}")
    return value


def fill_template(template: str, fields: Fields, place: str) -> str:
    r"""The template with `{question}` and `{column}` filled in; a list takes one line an item.

    Any other brace stands for itself, so `\boxed{}` needs no care; `{{name}}` is the text `{name}`. The answer is no
    placeholder: a prompt that holds it teaches nothing.
    """
    values = {**fields.columns, "question": fields.question}

    def fill(match: re.Match[str]) -> str:
        literal, name = match.groups()
        if literal:
            return f"{{{literal}}}"
        if name not in values:
            raise UserError(
                f"data.template: {place} has nothing for {{{name}}}; the nearest is {{{nearest(name, values)}}} "
                f"(write {{{{{name}}}}} for the text {{{name}}})"
            )
        value = values[name]
        return "\n".join(map(str, value)) if isinstance(value, list | tuple) else str(value)

    return _PLACEHOLDER.sub(fill, template)


def run_on(template: str) -> tuple[str, ...]:
    """What a model writes when it has answered and goes on with a question of its own: the template's label of one.

    `Question: {question}` gives a line break and `Question:`; a question without a label that ends in a colon, nothing.
    """
    label = _LABEL.search(template)
    return (f"\n{label[1]}",) if label else ()


def check_template(template: str) -> None:
    """UserError for a template that would show the model no question."""
    if not any(name == "question" for _, name in _PLACEHOLDER.findall(template)):
        raise UserError(f"data.template: no {{question}} in {template[:60]!r}; put it where the question goes")


def make_examples(rows: Sequence[tuple[Row, Fields]], template: str) -> list[Placed]:
    """Examples in the order of their rows."""
    return [
        Placed(
            row.place,
            fields.question,
            Example(fill_template(template, fields, row.place), fields.answer, row.index, fields.columns),
        )
        for row, fields in rows
    ]
