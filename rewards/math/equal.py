"""Whether two answers are the same: by structure first, scalars exactly. See math500.py for the choices.

Two scalars are equal when both are rational and the same, and otherwise when their difference is zero to
`DIGITS` digits (with variables: at `POINTS` points where both are real). Nothing is rounded on the way: SymPy
raises the working precision until the difference is told from zero, and numbers are bounded when they are read.
"""

import random
import zlib
from collections.abc import Iterator, Sequence

import sympy
from sympy import Expr, Float, Integer, Rational, Set, Symbol, oo

from rewards.math.kinds import (
    Answer,
    Based,
    Clock,
    Combined,
    Grid,
    Group,
    Interval,
    Known,
    Named,
    Relation,
    Scalar,
    Words,
    plain_words,
)

DIGITS = 3000
POINTS = 7
TRIES = 40  # random points drawn to find POINTS where both sides have values

_SETS = {
    "Reals": sympy.S.Reals,
    "Integers": sympy.S.Integers,
    "Naturals": sympy.S.Naturals,
    "Rationals": sympy.S.Rationals,
    "Complexes": sympy.S.Complexes,
    "Empty": sympy.S.EmptySet,
}


def equal(gold: Answer, answer: Answer) -> bool:
    """Whether the answer is the gold. Symmetric, but for one thing: only an answer may name an expression it gives."""
    if gold == answer:
        return True
    if isinstance(answer, Relation) and answer.name and not isinstance(gold, Relation | Named):
        return equal(gold, Scalar(answer.right))
    if isinstance(gold, Named) or isinstance(answer, Named):
        if isinstance(gold, Named) and isinstance(answer, Named):
            return gold.name == answer.name and equal(gold.value, answer.value)
        if isinstance(gold, Relation) or isinstance(answer, Relation):
            return False
        return equal(gold.value, answer) if isinstance(gold, Named) else equal(gold, answer.value)
    if isinstance(gold, Relation) or isinstance(answer, Relation):
        return isinstance(gold, Relation) and isinstance(answer, Relation) and _same_relation(gold, answer)
    if isinstance(gold, Words) or isinstance(answer, Words):
        return _same_words(gold, answer)
    if isinstance(gold, Based) or isinstance(answer, Based):
        return _same_digits(gold, answer)
    if isinstance(gold, Clock) or isinstance(answer, Clock):
        return _same_clock(gold, answer)
    if isinstance(gold, Scalar) and isinstance(answer, Scalar):
        return _same_scalar(gold, answer)
    if isinstance(gold, Grid) or isinstance(answer, Grid):
        return _same_grid(gold, answer)
    if isinstance(gold, Group) and isinstance(answer, Group):
        return _same_group(gold, answer)
    if isinstance(gold, Scalar) or isinstance(answer, Scalar):
        scalar, other = (gold, answer) if isinstance(gold, Scalar) else (answer, gold)
        if isinstance(other, Group) and other.kind == "ratio" and len(other.items) == 2:
            return _same_ratio(other, Group("ratio", (scalar, Scalar(Integer(1)))))
        # one element with or without its braces
        single = isinstance(other, Group) and other.kind != "tuple" and len(other.items) == 1
        return single and equal(scalar, other.items[0])
    return _same_set(gold, answer)


def _same_words(gold: Answer, answer: Answer) -> bool:
    if isinstance(gold, Words) and isinstance(answer, Words):
        return bool(gold.words) and gold.words == answer.words
    words, other = (gold, answer) if isinstance(gold, Words) else (answer, gold)
    if not isinstance(words, Words) or not isinstance(other, Scalar):
        return False
    if other.letters:
        return words.words == plain_words(other.letters)
    return words.value is not None and same_value(words.value, other.value)


def _same_digits(gold: Answer, answer: Answer) -> bool:
    if isinstance(gold, Based) and isinstance(answer, Based):
        return gold == answer
    based, other = (gold, answer) if isinstance(gold, Based) else (answer, gold)
    if not isinstance(based, Based) or not isinstance(other, Scalar):
        return False
    plain = other.value.is_Integer and not other.percent and not other.unit
    return bool(plain) and str(other.value) == based.digits


def _same_clock(gold: Answer, answer: Answer) -> bool:
    """Two times are the same hour and minute, a half of the day left out at will; against another kind, a ratio."""
    if isinstance(gold, Clock) and isinstance(answer, Clock):
        halves = {gold.half, answer.half} - {""}
        return (gold.hours, gold.minutes) == (answer.hours, answer.minutes) and len(halves) < 2
    clock, other = (gold, answer) if isinstance(gold, Clock) else (answer, gold)
    if not isinstance(clock, Clock):
        return False
    if clock.half:  # 2 p.m. is 2:00 p.m.
        hour = isinstance(other, Scalar) and other.unit == clock.half and other.value == clock.hours
        return hour and not clock.minutes
    ratio = Group("ratio", (Scalar(Integer(clock.hours)), Scalar(Integer(clock.minutes))))
    return clock.minutes >= 10 and clock.hours > 0 and equal(ratio, other)  # no ratio is written 1:02


def _same_scalar(gold: Scalar, answer: Scalar) -> bool:
    if gold.unit and answer.unit and gold.unit != answer.unit:
        return False
    if same_value(gold.value, answer.value):
        return True
    if gold.percent == answer.percent:
        return False
    share, percentage = (answer.value, gold.value) if gold.percent else (gold.value, answer.value)
    return bool(share.is_number) and not share.is_Integer and same_value(share * 100, percentage)


def _same_grid(gold: Answer, answer: Answer) -> bool:
    if isinstance(gold, Grid) and isinstance(answer, Grid):
        return _all_equal(_flat(gold), _flat(answer)) and len(gold.rows) == len(answer.rows)
    grid, other = (gold, answer) if isinstance(gold, Grid) else (answer, gold)
    if not isinstance(grid, Grid):
        return False
    if isinstance(other, Scalar):
        return len(_flat(grid)) == 1 and same_value(_flat(grid)[0], other.value)
    if not isinstance(other, Group) or other.kind != "tuple" or min(len(grid.rows), len(grid.rows[0])) != 1:
        return False
    values = [item.value for item in other.items if isinstance(item, Scalar)]
    return len(values) == len(other.items) and _all_equal(_flat(grid), values)


def _flat(grid: Grid) -> list[Expr]:
    return [entry for row in grid.rows for entry in row]


def _all_equal(golds: Sequence[Expr], values: Sequence[Expr]) -> bool:
    return len(golds) == len(values) and all(map(same_value, golds, values))


def _same_group(gold: Group, answer: Group) -> bool:
    kinds = {gold.kind, answer.kind}
    golds, answers = list(gold.items), list(answer.items)
    if kinds == {"list", "tuple"}:  # x = 1, y = 2 is the point (1, 2); and 1, 2, 3 is (1, 2, 3), in this order
        golds, answers = _by_name(golds), _by_name(answers)
        if len(golds) == 2 and golds == list(gold.items) and answers == list(answer.items):
            return False  # a pair may be an interval, which 1, 2 is not
    if "set" in kinds:
        golds, answers = _distinct(golds), _distinct(answers)
    if len(golds) != len(answers):
        return False
    if kinds == {"ratio"}:
        return _same_ratio(gold, answer)
    if kinds in ({"tuple"}, {"list", "tuple"}):
        return all(map(equal, golds, answers))
    return kinds <= {"list", "set"} and _matches(golds, answers)


def _same_ratio(gold: Group, answer: Group) -> bool:
    """Whether two ratios are the same but for a factor: 6:8 is 3:4. With one part that isn't 0 there is no factor."""
    if len(gold.items) != len(answer.items):
        return False
    if sum(not (isinstance(item, Scalar) and _is_zero(item.value)) for item in gold.items) < 2:
        return all(map(equal, gold.items, answer.items))
    pairs = [
        (one, two)
        for one, two in zip(gold.items, answer.items, strict=True)
        if isinstance(one, Scalar) and isinstance(two, Scalar) and not (one.unit and two.unit and one.unit != two.unit)
    ]
    first = next(((one.value, two.value) for one, two in pairs if _is_zero(one.value) is False), None)
    if len(pairs) < len(gold.items) or first is None or _is_zero(first[1]) is not False:
        return False
    return all(same_value(first[0] * two.value, first[1] * one.value) for one, two in pairs)


def _by_name(items: list[Answer]) -> list[Answer]:
    """The values in the order of their names, where all have names that differ."""
    names = {item.name: item.value for item in items if isinstance(item, Named)}
    return [names[name] for name in sorted(names)] if len(names) == len(items) else items


def _distinct(items: list[Answer]) -> list[Answer]:
    kept: list[Answer] = []
    for item in items:
        if not any(equal(other, item) for other in kept):
            kept.append(item)
    return kept


def _matches(golds: list[Answer], answers: list[Answer]) -> bool:
    """Whether the answers are the golds in some order, each as often."""
    left = list(answers)
    for gold in golds:
        found = next((at for at, answer in enumerate(left) if equal(gold, answer)), None)
        if found is None:
            return False
        left.pop(found)
    return not left


def _same_set(gold: Answer, answer: Answer) -> bool:
    """Of intervals, sets and what is combined of them; a pair in parentheses is an open interval here."""
    gold, answer = _as_interval(gold), _as_interval(answer)
    if isinstance(gold, Interval) and isinstance(answer, Interval):
        closed = gold.left_closed == answer.left_closed and gold.right_closed == answer.right_closed
        return closed and same_value(gold.start, answer.start) and same_value(gold.end, answer.end)
    sets = _real_set(gold), _real_set(answer)
    if None in sets:
        return False
    return sets[0] == sets[1] or _same_pieces(*map(_pieces, sets))


def _as_interval(answer: Answer) -> Answer:
    if isinstance(answer, Group) and answer.kind == "tuple" and len(answer.items) == 2:
        start, end = answer.items
        if isinstance(start, Scalar) and isinstance(end, Scalar):
            return Interval(start.value, end.value, False, False)
    return answer


def _real_set(answer: Answer) -> Set | None:
    """SymPy's set; None for what is none, or has ends that aren't numbers in order."""
    answer = _as_interval(answer)
    if isinstance(answer, Known):
        return _SETS[answer.name]
    if isinstance(answer, Interval):
        if not all(end.is_extended_real and end.is_number for end in (answer.start, answer.end)):
            return None
        return sympy.Interval(answer.start, answer.end, not answer.left_closed, not answer.right_closed)
    if isinstance(answer, Group) and answer.kind == "set":
        values = [item.value for item in answer.items if isinstance(item, Scalar) and item.value.is_number]
        return sympy.FiniteSet(*values) if len(values) == len(answer.items) else None
    if isinstance(answer, Combined):
        parts = [_real_set(part.value if isinstance(part, Named) else part) for part in answer.parts]
        if any(part is None for part in parts):
            return None
        if answer.operator == "cup":
            return sympy.Union(*parts)
        if answer.operator == "cap":
            return sympy.Intersection(*parts)
        rest = sympy.Union(*parts[1:])
        return sympy.Complement(parts[0], rest)
    return None


def _pieces(value: Set) -> list[tuple[Expr, Expr, bool, bool]] | None:
    """The disjoint intervals and points of a real set in their order; None for other sets."""
    found: list[tuple[Expr, Expr, bool, bool]] = []
    for part in value.args if isinstance(value, sympy.Union) else (value,):
        if part == sympy.S.Reals:
            part = sympy.Interval(-oo, oo)
        if isinstance(part, sympy.FiniteSet):
            found.extend((point, point, False, False) for point in part.args)
        elif isinstance(part, sympy.Interval):
            found.append((part.start, part.end, bool(part.left_open), bool(part.right_open)))
        elif part != sympy.S.EmptySet:
            return None
    if not all(end.is_extended_real for piece in found for end in piece[:2]):
        return None
    return sorted(found, key=lambda piece: (float(piece[0]), float(piece[1])))


def _same_pieces(golds: list | None, answers: list | None) -> bool:
    if golds is None or answers is None or len(golds) != len(answers):
        return False
    return all(
        one[2:] == two[2:] and same_value(one[0], two[0]) and same_value(one[1], two[1])
        for one, two in zip(golds, answers, strict=True)
    )


def _same_relation(gold: Relation, answer: Relation) -> bool:
    """Whether one is the other times a constant (a positive one, in an inequality)."""
    if gold.operator != answer.operator:
        return False
    one, two = gold.left - gold.right, answer.left - answer.right
    if gold.operator == "=":
        one, two = (sympy.fraction(sympy.together(side))[0] for side in (one, two))
    for point in _points(one, two):
        at_one, at_two = one.xreplace(point), two.xreplace(point)
        if _is_zero(at_one) is False and _is_zero(at_two) is False:
            ratio = at_one / at_two
            sign = gold.operator == "=" or bool(ratio.is_extended_positive)
            return sign and same_value(one, two * ratio)
    return False


def same_value(one: Expr, two: Expr) -> bool:
    """Whether two scalars are equal, for all real values of their variables where both are real."""
    if one == two:
        return True
    if (one.is_Rational and two.is_Rational) or one.has(oo) or two.has(oo):
        return False
    difference = one - two
    if not difference.free_symbols:
        return bool(_is_zero(difference))
    imaginary = one.has(sympy.I) or two.has(sympy.I)
    agreed = 0
    for point in _points(one, two):
        values = one.xreplace(point), two.xreplace(point)
        if not imaginary and not (_is_real_at(one, point) and _is_real_at(two, point)):
            continue
        zero = _is_zero(values[0] - values[1])
        if zero is False:
            return False
        agreed += zero is True
        if agreed == POINTS:
            return True
    return agreed > 1 or _verified(one, two)


def _is_real_at(value: Expr, point: dict[Symbol, Expr]) -> bool:
    """Whether an expression and all roots, powers and logarithms in it are real at a point."""
    parts = value.atoms(sympy.Pow, sympy.log, sympy.asin, sympy.acos) | {value}
    return all(part.xreplace(point).is_extended_real for part in parts)


def _points(one: Expr, two: Expr) -> Iterator[dict[Symbol, Expr]]:
    """Zero, small integers, and random values of either sign: the same for the same two, and not to be known before."""
    source = random.Random(zlib.crc32(f"{one} {two}".encode(errors="replace")))
    symbols = sorted(one.free_symbols | two.free_symbols, key=str)
    natural = any(side.has(sympy.factorial, sympy.binomial) for side in (one, two))
    for attempt in range(TRIES):
        scale, signs = (2, 8, 1, 64)[attempt % 4], ((1,), (-1,), (0,))[attempt] if attempt < 3 else (-1, 1)
        if natural:
            yield {symbol: Integer(source.randint(1, 30)) for symbol in symbols}
        elif attempt == 3:
            yield {symbol: Integer(source.randint(-4, 4)) for symbol in symbols}
        else:
            yield {
                symbol: source.choice(signs) * (source.randrange(scale) + Rational(source.randint(1, 16), 17))
                for symbol in symbols
            }


def _is_zero(value: Expr) -> bool | None:
    """Whether a number is zero; None if it has no value."""
    if value.is_Rational:
        return bool(value == 0)
    for digits in (60, DIGITS):
        number = value.evalf(10, maxn=digits)
        if not number.is_number or number.has(sympy.nan, sympy.zoo, oo):
            return None
        parts = number.as_real_imag()
        if not all(part.is_Float or part.is_Rational for part in parts):
            return None
        if any(abs(part) > Float(10) ** -(digits - 10) for part in parts):
            return False
    return True


def _verified(one: Expr, two: Expr) -> bool:
    """math-verify's own comparison, for expressions that have a common value at none of the points."""
    import math_verify

    return all(math_verify.verify(*pair, timeout_seconds=None) for pair in ((one, two), (two, one)))
