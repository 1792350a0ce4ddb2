r"""The structure of an answer: which kind of object it is, and of what parts. See math500.py for the choices."""

import re
from collections.abc import Iterator, Sequence

from sympy import Expr, Integer, nan, oo, zoo

from rewards.math.expression import parse_expression
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
    Scalar,
    Words,
    plain_words,
)
from rewards.math.relation import read_relation
from rewards.math.tokens import Token, TooLarge, Unreadable, tokenize
from rewards.math.units import strip_units

MAX_PARTS = 200
DEEPEST = 40

Tokens = Sequence[Token]

_OPENING = frozenset(["(", "[", "{", "\\{", "<("])
_CLOSING = frozenset([")", "]", "}", "\\}", ")>"])
_RELATIONS = frozenset(["=", "<", ">", "<=", ">=", "!=", "~", "in"])
_SETS = Interval | Combined | Known
_MATRICES = frozenset(["pmatrix", "bmatrix", "matrix", "smallmatrix", "array"])

_HALF_OF_DAY = re.compile(r"(\d:[0-5]\d)[\s~]{0,4}([AaPp])\.?\s?[Mm]\b\.?(?!\w)")
# "for all x" behind a formula, where it restricts nothing
_GAP = r"(?:[\s~,]|\\[,;:! ]|\\q?quad(?![A-Za-z]))"
_NUMBERS = r"(?:all|any|every|each|real|integer|complex|natural|numbers?|integers|reals|values?|of)"
_VARIABLES = (
    r"(?:\$?\\?[A-Za-z](?:_\{?\w\}?)?(?![A-Za-z])\$?|\\(?:alpha|beta|theta|lambda)(?![A-Za-z])|,|and\b"
    r"|\\in(?![A-Za-z])|in\b|\\mathbb\s?\{?[RNZQC]\}?|[ℝℤ])"
)
_FOR_ALL = re.compile(
    rf"(?<=\S)(?>{_GAP}{{0,20}})\(?(?:\\(?:text|mbox|textrm|mathrm)\s?\{{[\s~,(]{{0,8}}for\s+(?=[ae])|for\s+(?=[ae])|\\forall(?![A-Za-z]))"
    rf"(?>(?:{_GAP}|{_NUMBERS}\b|{_VARIABLES}|\\text\s?\{{|\}}){{0,40}})[).\s]*\Z"
)


def read(text: str) -> Answer:
    """The answer that a formula gives.

    Raises:
        Unreadable: none, or one of a kind that isn't read.
    """
    # an even number of dollars delimits formulas, a lone one is money
    dollars = len(re.findall(r"(?<!\\)\$", text)) % 2 == 0
    text = re.sub(r"(?<!\\)\\[()\[\]]" + (r"|(?<!\\)\$" if dollars else ""), " ", text)
    text = re.sub(r"\A\s*\*\*|\*\*\s*\Z", "", text)  # Markdown's bold
    text = _HALF_OF_DAY.sub(r"\1\\text{ \2m}", text)
    text = _FOR_ALL.sub("", text)
    try:
        return _read(_trim(tokenize(text)), 0)
    except RecursionError:
        raise TooLarge("too deeply nested") from None


def _is(token: Token, *texts: str) -> bool:
    return token.kind == "op" and token.text in texts


def _trim(tokens: Tokens) -> Tokens:
    """Without the punctuation at the end, an `=` in front, and a choice's label before its value."""
    tokens = list(tokens)
    while tokens and _is(tokens[-1], ".", ",", ";", ":", "\\\\"):
        tokens.pop()
    while tokens and _is(tokens[0], "=", "~", ":"):
        tokens.pop(0)
    if len(tokens) > 1 and tokens[0].kind == "text" and re.fullmatch(r"\(?[A-J]\)|[A-J][.:]", tokens[0].text):
        tokens.pop(0)
    return tokens


def _depths(tokens: Tokens) -> Iterator[tuple[int, Token, int]]:
    """Each token with its place and the number of brackets open around it (a bracket itself is outside of itself)."""
    depth = 0
    for at, token in enumerate(tokens):
        if _is(token, *_CLOSING) or (token.kind == "env" and token.text.startswith("end")):
            depth -= 1
        yield at, token, depth
        if _is(token, *_OPENING) or (token.kind == "env" and token.text.startswith("begin")):
            depth += 1


def _split(tokens: Tokens, *marks: str) -> tuple[list[Tokens], list[str]]:
    """The parts between the marks outside all brackets, and the marks."""
    parts: list[Tokens] = []
    found: list[str] = []
    start = 0
    for at, token, depth in _depths(tokens):
        if depth == 0 and _is(token, *marks):
            parts.append(tokens[start:at])
            found.append(token.text)
            start = at + 1
    return [*parts, tokens[start:]], found


def _enclosed(tokens: Tokens) -> bool:
    """Whether the first token is a bracket that the last one closes."""
    if len(tokens) < 2 or not _is(tokens[0], *_OPENING) or not _is(tokens[-1], *_CLOSING):
        return False
    return all(depth > 0 for at, _, depth in _depths(tokens) if 0 < at < len(tokens) - 1)


def _unwrapped(tokens: Tokens) -> Tokens:
    """Without brackets around the whole, where they only group: no comma inside. Linear, however many there are."""
    layers, last = 0, len(tokens) - 1
    while layers < last - layers and (
        (_is(tokens[layers], "{") and _is(tokens[last - layers], "}"))
        or (_is(tokens[layers], "(") and _is(tokens[last - layers], ")"))
    ):
        layers += 1
    inside = list(_depths(tokens))[layers : len(tokens) - layers]
    if not inside:
        return tokens
    kept = min(layers, min(depth for _, _, depth in inside))
    if _split(tokens[kept : len(tokens) - kept], ",", ";")[1] and kept:
        kept -= not _is(tokens[kept - 1], "{")
    return tokens[kept : len(tokens) - kept]


def _read(tokens: Tokens, depth: int) -> Answer:
    """An answer, or several that commas, "or" or "and" separate."""
    if depth > DEEPEST:
        raise TooLarge("too deeply nested")
    tokens = _unwrapped(tokens)
    if not tokens:
        raise Unreadable("nothing")
    if words := _words(tokens):
        return words
    parts, marks = _split(tokens, ",", ";", "or", "and")
    if len(parts) == 1:
        return _single(tokens, depth)
    if len(parts) > MAX_PARTS:
        raise TooLarge("too many parts")
    # an "and" or "or" may follow a comma
    parts = [part for at, part in enumerate(parts) if part or at == 0 or marks[at - 1] not in (",", ";")]
    read_parts = [_read(part, depth + 1) for part in parts]
    named = [part for part in read_parts if isinstance(part, Named) and isinstance(part.value, _SETS)]
    joint = {"or": "cup", "and": "cap"}.get(marks[-1], "")
    if not joint and any(isinstance(part.value, Known | Combined) for part in named):
        joint = "cap"  # x > 1, x \ne 2
    if joint and len(named) == len(parts) and len({part.name for part in named}) == 1:
        return Named(named[0].name, Combined(joint, tuple(part.value for part in named)))
    return _group("list", read_parts)


def _group(kind: str, items: Sequence[Answer]) -> Group:
    """A group; a list inside (what a plus-minus gives) joins the list or set around it."""
    flat: list[Answer] = []
    for item in items:
        if isinstance(item, Group) and item.kind == "list" and kind in ("list", "set"):
            flat.extend(item.items)
        elif isinstance(item, Group) and item.kind == "list":
            raise Unreadable("a list inside a tuple")
        else:
            flat.append(item)
    return Group(kind, tuple(flat))


def _words(tokens: Tokens) -> Answer | None:
    r"""Text, where there is nothing else: `\text{...}`, or bare words of which one has three letters or more."""
    spelled = [token for token in tokens if token.kind in ("text", "word")]
    named = ("fn",) if len(spelled) > 1 else ()  # "one floor down" is text, "log abc" isn't
    if not spelled or any(token.kind not in ("text", "word", *named) and not _is(token, "-", "'") for token in tokens):
        return None
    wrapped = any(token.kind == "text" for token in tokens)
    lengths = [len(token.text) for token in spelled]
    if not wrapped and (max(lengths) < 3 or (len(lengths) < len(tokens) and min(lengths) < 3)):
        return None
    words = plain_words(" ".join(token.text for token in tokens))
    if words in ("all real numbers", "all reals", "real numbers"):
        return Known("Reals")
    return Words(words, None if wrapped or len(tokens) > 1 else parse_expression(tokens))


def _single(tokens: Tokens, depth: int) -> Answer:
    parts, marks = _split(tokens, *_RELATIONS)
    whole_set = _enclosed(tokens) and _is(tokens[0], "\\{")
    if not whole_set and any(_is(token, "+-", "-+") for token in tokens):
        return _group("list", [_single(signs, depth) for signs in _signs(tokens)])
    if marks:
        return read_relation(parts, marks, [_side(part, depth + 1) for part in parts])
    for operator in ("minus", "cup", "cap"):
        parts, marks = _split(tokens, operator)
        if marks:
            return Combined(operator, tuple(_read(part, depth + 1) for part in parts))
    if len(tokens) == 1 and tokens[0].kind == "set":
        return Known(tokens[0].text)
    if tokens[-1].kind == "env":
        return _grid(tokens)
    if _enclosed(tokens) and not _is(tokens[0], "{"):
        return _bracketed(tokens, depth)
    if _split(tokens, ":")[1]:
        parts = _split(tokens, ":")[0]
        items = tuple(_scalar(part) for part in parts)
        return _clock(parts, items) or Group("ratio", items)
    return _scalar(tokens)


def _clock(parts: Sequence[Tokens], items: Sequence[Scalar | Based]) -> Clock | None:
    """The time of day that two parts may be: an hour to 24 and minutes of two digits, 00 to 59."""
    digits = [part[0].text if part and part[0].kind == "num" else "" for part in parts]
    if len(parts) != 2 or not re.fullmatch(r"\d{1,2}:[0-5]\d", ":".join(digits)) or int(digits[0]) > 24:
        return None
    hours, minutes = items
    plain = isinstance(hours, Scalar) and isinstance(minutes, Scalar) and len(parts[0]) == 1
    if not plain or minutes.percent or minutes.value != int(digits[1]) or minutes.unit not in ("", "am", "pm"):
        return None
    return Clock(int(digits[0]), int(digits[1]), minutes.unit)


def _side(tokens: Tokens, depth: int) -> Answer | None:
    """One side of a relation; None if it can be no more than a name."""
    try:
        return _read(tokens, depth)
    except Unreadable:
        return None


def _signs(tokens: Tokens) -> Iterator[Tokens]:
    """The two readings of a plus-minus; several and minus-plus go together."""
    for sign in ("+", "-"):
        other = "-" if sign == "+" else "+"
        signs = {"+-": Token("op", sign), "-+": Token("op", other)}
        yield [signs.get(token.text, token) if token.kind == "op" else token for token in tokens]


def _bracketed(tokens: Tokens, depth: int) -> Answer:
    """A set, tuple or interval."""
    opening, closing = tokens[0].text, tokens[-1].text
    inside = tokens[1:-1]
    parts, marks = _split(inside, ",", ";")
    if opening == "\\{" and closing == "\\}":
        if not inside:
            return Known("Empty")
        read_inside = _read(inside, depth + 1)
        return _group("set", [read_inside])
    if len(parts) > MAX_PARTS:
        raise TooLarge("too many parts")
    if opening not in ("(", "[", "<(") or closing not in (")", "]", ")>"):
        raise Unreadable("brackets that don't match")
    if (opening == "[" or closing == "]") and len(parts) == 2:
        start, end = (_scalar(part).value for part in parts)
        return Interval(start, end, opening == "[" and start != -oo, closing == "]" and end != oo)
    if len(parts) == 1:
        return _read(inside, depth + 1)
    if (opening == "[") != (closing == "]"):
        raise Unreadable("brackets that don't match")
    return _group("tuple", [_read(part, depth + 1) for part in parts])


def _grid(tokens: Tokens) -> Grid:
    start = next(at for at, token in enumerate(tokens) if token.kind == "env")
    name = tokens[start].text.removeprefix("begin ")
    if name not in _MATRICES or [token.text for token in tokens[start + 1 :] if token.kind == "env"] != [f"end {name}"]:
        raise Unreadable("an environment")
    scale = _factor(tokens[:start])
    rows = [_split(row, "&")[0] for row in _split(tokens[start + 1 : -1], "\\\\")[0] if row]
    if not rows or len({len(row) for row in rows}) != 1 or len(rows) * len(rows[0]) > MAX_PARTS:
        raise Unreadable("a matrix with uneven rows")
    return Grid(tuple(tuple(_scalar(entry).value * scale for entry in row) for row in rows))


def _factor(tokens: Tokens) -> Expr:
    """What stands before a matrix and multiplies it: nothing, a sign, or a scalar."""
    tokens = [*tokens]
    if tokens and _is(tokens[-1], "*"):
        tokens.pop()
    if not tokens or (len(tokens) == 1 and _is(tokens[0], "-")):
        return Integer(-1 if tokens else 1)
    return parse_expression(tokens)


def _scalar(tokens: Tokens) -> Scalar | Based:
    """One value with its units; digits with a base are kept as digits."""
    if based := _based(tokens):
        return based
    tokens, percent, unit, scale = strip_units(tokens)
    value = parse_expression(tokens) * scale
    if value.has(nan, zoo):
        raise Unreadable("an undefined value")
    letters = "".join(token.text for token in tokens if token.kind == "word")
    return Scalar(value, percent, unit, letters if all(token.kind == "word" for token in tokens) else "")


def _based(tokens: Tokens) -> Based | None:
    marks = [at for at, token in enumerate(tokens) if _is(token, "_")]
    if len(marks) == 1 and marks[0] > 2 and _enclosed(tokens[: marks[0]]):
        tokens = [*tokens[1 : marks[0] - 1], *tokens[marks[0] :]]
        marks[0] -= 2
    if (
        len(marks) != 1
        or not marks[0]
        or any(token.kind not in ("num", "word", "text") for token in tokens[: marks[0]])
    ):
        return None
    if tokens[0].kind != "num":
        return None
    base = [token for token in tokens[marks[0] + 1 :] if not _is(token, "{", "}")]
    digits = "".join(token.text for token in tokens[: marks[0]]).replace(" ", "").upper()
    if len(base) != 1 or base[0].kind != "num" or not base[0].text.isdigit() or not digits.isalnum():
        raise Unreadable("a number's subscript")
    return Based(digits.lstrip("0") or "0", int(base[0].text))
