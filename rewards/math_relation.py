"""What a chain of relations gives: a named value, a solved inequality as an interval, an equation or an inequality."""

from collections.abc import Sequence

from sympy import Expr, Symbol, oo

from rewards.latex_tokens import Token, Unreadable
from rewards.math_kinds import Answer, Combined, Grid, Group, Interval, Known, Named, Relation, Scalar

_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


def spelled(tokens: Sequence[Token]) -> str:
    """How a side is written, to tell names apart: without braces and case-preserving."""
    return "".join(token.text for token in tokens if token.text not in ("{", "}", "mark", "overline"))


def read_relation(parts: Sequence[Sequence[Token]], marks: Sequence[str], sides: Sequence[Answer | None]) -> Answer:
    """The answer of the sides (None: one that can't be read, good only as a name) with relation marks between them.

    Raises:
        Unreadable: a chain that gives neither a value nor an equation or inequality.
    """
    names = [spelled(part) for part in parts]
    if "~" in marks:
        # an approximation adds nothing to an exact value; behind a mere name it is the value
        cut = marks.index("~")
        kept = cut + 1 if any(_constant(side) for side in sides[: cut + 1]) else cut + 2
        parts, sides, names = parts[:kept], sides[:kept], names[:kept]
        marks = [mark if mark != "~" else "=" for mark in marks[: kept - 1]]
        if not marks:
            return _value(sides[0])
    if all(mark == "=" for mark in marks):
        return _equation(names, sides)
    if marks[-1] == "in" and all(mark == "=" for mark in marks[:-1]):
        return Named(names[0], _value(sides[-1]))
    if list(marks) == ["!="]:
        name, value = _name_and_value(names, sides)
        return Named(name, Combined("minus", (Known("Reals"), Group("set", (value,)))))
    return _inequality(names, list(marks), sides)


def _value(side: Answer | None) -> Answer:
    if side is None:
        raise Unreadable("one side of a relation")
    return side


def _constant(side: Answer | None) -> bool:
    """Whether a side has a value of its own: no variables, or a kind that is no expression."""
    if isinstance(side, Scalar):
        return not side.value.free_symbols and not side.letters
    if isinstance(side, Group):
        return all(_constant(item) for item in side.items)
    if isinstance(side, Grid):
        return not any(entry.free_symbols for row in side.rows for entry in row)
    return side is not None


def _name_and_value(names: Sequence[str], sides: Sequence[Answer | None]) -> tuple[str, Answer]:
    if _constant(sides[-1]):
        return names[0], _value(sides[-1])
    if _constant(sides[0]):
        return names[-1], _value(sides[0])
    raise Unreadable("a relation without a value")


def _equation(names: Sequence[str], sides: Sequence[Answer | None]) -> Answer:
    left, right = sides[0], sides[-1]
    if _constant(right):
        # 2 + 3 = 5 is 5; x = 5 and x = 2 + 3 = 5 are 5 by the name x
        return _value(right) if _constant(left) else Named(names[0], _value(right))
    if _constant(left) and isinstance(right, Scalar):
        return Named(names[-1], _value(left))
    if not isinstance(right, Scalar):
        raise Unreadable("an equation of things that aren't expressions")
    if not isinstance(left, Scalar):
        return Relation("=", Symbol(names[0], real=True), right.value, names[0])
    defines = left.value.is_Symbol or _is_application(names[0])
    return Relation("=", left.value, right.value, names[0] if defines and not _shares(left, right) else "")


def _is_application(name: str) -> bool:
    """f(x), P(x, y), f^-1(x), ..."""
    head, bracket, inside = name.partition("(")
    return bool(bracket) and len(head) <= 5 and head[:1].isalpha() and name.endswith(")") and "(" not in inside


def _shares(left: Scalar, right: Scalar) -> bool:
    """Whether a lone variable on the left is on the right too; a function's argument is, and may be."""
    return bool(left.value.is_Symbol and left.value in right.value.free_symbols)


def _inequality(names: Sequence[str], marks: list[str], sides: Sequence[Answer | None]) -> Answer:
    if not all(mark in _FLIPPED for mark in marks) or not all(isinstance(side, Scalar) for side in sides):
        raise Unreadable("a chain of relations")
    values = [side.value for side in sides if isinstance(side, Scalar)]
    if marks[0].startswith(">"):
        values, marks, names = values[::-1], [_FLIPPED[mark] for mark in marks[::-1]], names[::-1]
    if any(mark.startswith(">") for mark in marks) or len(values) > 3:
        raise Unreadable("a chain of relations")
    variables = [at for at, value in enumerate(values) if value.free_symbols]
    if len(variables) == 1 and _is_name(values[variables[0]], names[variables[0]]):
        at = variables[0]
        if len(values) == 2 or at == 1:
            start = values[at - 1] if at else -oo
            end = values[at + 1] if at + 1 < len(values) else oo
            left_closed = at > 0 and marks[at - 1] == "<="
            right_closed = at < len(marks) and marks[at] == "<="
            return Named(names[at], Interval(start, end, left_closed and start != -oo, right_closed and end != oo))
    if len(values) == 2:
        return Relation(marks[0], values[0], values[1])
    raise Unreadable("a chain of relations")


def _is_name(value: Expr, name: str) -> bool:
    return bool(value.is_Symbol) or _is_application(name)
