"""What a chain of relations gives: a named value, a solved inequality as an interval, an equation or an inequality."""

from collections.abc import Sequence

from sympy import Symbol, oo

from rewards.math.kinds import Answer, Combined, Grid, Group, Interval, Known, Named, Relation, Scalar
from rewards.math.tokens import Token, Unreadable

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
        if _constant(left):
            return _value(right)  # 2 + 3 = 5
        if isinstance(left, Scalar) and isinstance(right, Scalar) and not _is_name(left, names[0]):
            # a + b = 5 is an equation, and a name for 5; but 2x + y = 0 doesn't name 0
            return Relation("=", left.value, right.value, names[0] if right.value != 0 else "")
        return Named(names[0], _value(right))  # x = 5, x = 2 + 3 = 5
    if _constant(left) and isinstance(right, Scalar) and _is_name(right, names[-1]):
        return Named(names[-1], _value(left))
    if not isinstance(right, Scalar):
        raise Unreadable("an equation of things that aren't expressions")
    if not isinstance(left, Scalar):
        return Relation("=", Symbol(names[0], real=True), right.value, names[0])
    defines = _is_name(left, names[0])
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
    scalars = [side for side in sides if isinstance(side, Scalar)]
    if marks[0].startswith(">"):
        scalars, marks, names = scalars[::-1], [_FLIPPED[mark] for mark in marks[::-1]], names[::-1]
    if any(mark.startswith(">") for mark in marks) or len(scalars) > 3:
        raise Unreadable("a chain of relations")
    values = [scalar.value for scalar in scalars]
    variables = [at for at, value in enumerate(values) if value.free_symbols]
    middle = (
        len(values) == 3
        and values[1].is_Symbol
        and not values[1].free_symbols & (values[0].free_symbols | values[2].free_symbols)
    )
    if middle or (len(variables) == 1 and _is_name(scalars[variables[0]], names[variables[0]])):
        at = 1 if middle else variables[0]
        if len(values) == 2 or at == 1:
            start = values[at - 1] if at else -oo
            end = values[at + 1] if at + 1 < len(values) else oo
            left_closed = at > 0 and marks[at - 1] == "<="
            right_closed = at < len(marks) and marks[at] == "<="
            return Named(names[at], Interval(start, end, left_closed and start != -oo, right_closed and end != oo))
    if len(values) == 2:
        return Relation(marks[0], values[0], values[1])
    raise Unreadable("a chain of relations")


def _is_name(side: Scalar, name: str) -> bool:
    """A lone variable, capitals (AB, the segment), or a function of something."""
    return bool(side.value.is_Symbol) or side.letters.isupper() or _is_application(name)
