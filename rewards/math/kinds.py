"""The kinds of answers: plain records, with SymPy's expressions for what is a scalar."""

from __future__ import annotations

import re
from dataclasses import dataclass

from sympy import Expr


@dataclass(frozen=True)
class Scalar:
    """A number or an expression. `unit` is a known unit's name; `letters` what was written, if only letters were."""

    value: Expr
    percent: bool = False
    unit: str = ""
    letters: str = ""


@dataclass(frozen=True)
class Words:
    """Text in lower case; `value` is the product of its letters, where it could have been one."""

    words: str
    value: Expr | None = None


@dataclass(frozen=True)
class Based:
    """Digits with a base as their subscript, as they are written."""

    digits: str
    base: int


@dataclass(frozen=True)
class Clock:
    """A time of day, `5:15`, which may also be a ratio; `half` is am, pm or "" where it isn't said."""

    hours: int
    minutes: int
    half: str


@dataclass(frozen=True)
class Group:
    """Several answers: a `list` (unordered, nothing around it), a `set` (braces), a `tuple` or a `ratio` (ordered)."""

    kind: str
    items: tuple[Answer, ...]


@dataclass(frozen=True)
class Interval:
    """An interval, each end closed or not."""

    start: Expr
    end: Expr
    left_closed: bool
    right_closed: bool


@dataclass(frozen=True)
class Known:
    """A set with a name: Reals, Integers, Naturals, Rationals, Complexes, Empty."""

    name: str


@dataclass(frozen=True)
class Combined:
    """A union (`cup`), intersection (`cap`) or difference (`minus`) of sets, from left to right."""

    operator: str
    parts: tuple[Answer, ...]


@dataclass(frozen=True)
class Grid:
    """A matrix, row by row."""

    rows: tuple[tuple[Expr, ...], ...]


@dataclass(frozen=True)
class Named:
    """`name = value`, `name in set`, or an inequality solved for `name`."""

    name: str
    value: Answer


@dataclass(frozen=True)
class Relation:
    """An equation (`=`) or inequality (`<`, `<=`) with variables. `name`: what an equation's left side defines."""

    operator: str
    left: Expr
    right: Expr
    name: str = ""


Answer = Scalar | Words | Based | Clock | Group | Interval | Known | Combined | Grid | Named | Relation


def plain_words(text: str) -> str:
    """Text as it is compared: lower case, words and numbers only, one blank between."""
    return " ".join(re.findall(r"[^\W_]+", text.casefold()))
