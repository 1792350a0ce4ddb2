r"""GSM8K's reward: 1.0 when a completion's final number equals the reference's, else 0.0. Standard library only.

What is read, in this order:

1. The last `#### N` of the whole text decides, whatever follows it. `####` before words (a heading) is passed over, and
   so is a numbered heading: `#### 2. Total` or `#### 2 - Total`, a number up to 99, a point, colon, parenthesis or
   spaced dash, and words that end their line without a full stop; behind a dash they begin with a capital, for
   `17 - all pens` is an answer. Before a malformed number `####` decides, and the completion is wrong.
2. Without one (lenient, the default; `gsm8k_strict_reward` stops here with 0.0): the last `\boxed{N}`, `answer is N`,
   `answer: N` or `answer = N`; a box that is never closed is a cut-off answer, and wrong.
3. Without that, the last number in the text.

A question that the model makes up behind its answer, on a line that begins with `Question:`, ends the text
(`rewards.text.answered`).

What a number is:

- Signs count: -6 is not 6, +6 is 6; the typographic minus and dash are minus signs. A minus behind a space in `10 - 3`
  is an operator, in the text as in step 3.
- Thousands are separated by commas (also the Indian way, 1,25,000), LaTeX `{,}` `\,` `\!`, or a no-break or thin space.
- Currency, bold, quotes, math delimiters, a trailing period and text after the number are ignored. So is a percent
  sign: 28% is 28, and not 0.28. A unit or a magnitude word ("2 million") is such text and doesn't scale the number.
- Fractions are exact: 1/2, 1 1/2, \frac{1}{2} and ½ equal 0.5. So is 1.5e3.
- An equation counts by what follows its last `=`: `#### 3 + 4 = 7` is 7, with units too: `3 cm + 4 cm = 7 cm`. An
  expression without `=` is no answer; behind a unit only a sum or product is one: `7 pens - 3 of them red` is 7.
- In step 3 a number that is the last operand of an expression or range (`so 15 - 20`) is no answer either.
- No answer, rather than a guess: 10-15 with any dash, 6:30, 3.1.4, 12,50, 1,2,3, two numbers side by side, more than
  100 characters.

Values are compared exactly, as fractions: 0.1 + 0.2 rounding and tolerances do not exist here.
"""

import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import Any

from rewards.text import answered, completion_text

LONGEST_NUMBER = 100  # characters; bounds the arithmetic, since converting digits is quadratic in their count

# Every quantifier below is bounded, possessive or in an atomic group, and a failed match costs O(1) steps beyond what
# it consumed, so that a search is linear in the length of the text. Groups are atomic, (?>(...)*), and not possessive,
# (...)*+, which Python before 3.11.5 matches wrongly.
_SIGN = r"[-+\u2212\u2013]"
_SPACE = r"[\s\u200b]{1,40}+"
_CURRENCY = r"\\?[$£€¥₹]|USD|EUR|GBP|US(?=\$)|Rs\.?"
_LATEX = r"\\[(\[,;! ]|\\(?:boxed|text|mathbf|textbf)\{"
_DECORATION = rf"(?:{_SPACE}|{_CURRENCY}|{_LATEX}|[*_`'\"“”:=~≈(\[{{]|[A-Za-z]\s?=)"
_DIGITS = r"[0-9]|[,.\u00a0\u202f\u2009](?=[0-9])|\{,\}(?=[0-9])|\\[,!](?=[0-9])"
_TOKEN = rf"(?:[0-9]|\.(?=[0-9]))(?>(?:{_DIGITS})*)(?>(?:[eE][-+]?[0-9]{{1,3}}(?![0-9A-Za-z]))?)"
_FRACTION = rf"\\[dt]?frac\{{\s?(?P<over>{_SIGN}?{_TOKEN})\s?\}}\{{\s?(?P<under>{_TOKEN})\s?\}}"
_MIXED = _FRACTION.replace("over", "over2").replace("under", "under2")
_PREFIX = rf"(?>{_DECORATION}{{0,24}})(?:(?i:(?:the )?(?:final )?answer(?: is)?)(?>{_DECORATION}{{0,8}}))?"
_NUMBER = (
    rf"(?P<sign>{_SIGN})?(?>(?:{_SPACE}|{_CURRENCY}){{0,3}})(?:{_FRACTION}"
    rf"|(?P<whole>{_TOKEN})(?:[ ]?(?P<vulgar>[½⅓⅔¼¾])|[ ]?{_MIXED}"
    rf"|[ ](?P<over3>[0-9]{{1,9}}+)/(?P<under3>[0-9]{{1,9}}+)|[ ]?/[ ]?(?P<divisor>{_TOKEN}))?|(?P<only>[½⅓⅔¼¾]))"
)
_ANCHORED = re.compile(_PREFIX + _NUMBER)
_MARKED = re.compile(rf"####(?!#){_PREFIX}{_NUMBER}")
_PHRASE = re.compile(rf"(?:\\boxed\{{|(?i:\banswer\s{{0,8}}+(?:is|:|=))){_PREFIX}{_NUMBER}")
_LAST = re.compile(rf"(?<![0-9])(?:(?<![\w)\]}}%])(?={_SIGN}\\?[$£€¥₹]?[0-9.])|(?=[0-9.½⅓⅔¼¾\\])){_NUMBER}")

_PLAIN = re.compile(r"(?:[0-9]+|[0-9]{1,3}(?:,[0-9]{3})+|[0-9]{1,2}(?:,[0-9]{2})+,[0-9]{3})?(?:\.[0-9]+)?")
_SEPARATOR = re.compile(r"\{,\}|\\[,!]|[\u00a0\u202f\u2009]")
_BROKEN = re.compile(
    rf"[,.:/^][0-9]|[eE][-+]?[0-9]|[ ]?{_SIGN}{_SIGN}|[ ](?:{_CURRENCY})?[0-9]"
    r"|[½⅓⅔¼¾]|\\[dt]?frac|[ \t]{0,4}[\u2010-\u2015][ \t]{0,4}[0-9]"
)
_OPERATOR = re.compile(
    rf"[ \t%]{{0,4}}(?:{_SIGN}|[*/×÷x^=]|\\(?:times|cdot|div)\b)[ \t]{{0,4}}{_SIGN}?(?:{_CURRENCY})?[0-9.(\\]"
)
# An operator behind a number's unit, which is up to three words that don't begin a clause.
_UNIT = (
    r"(?!(?:where|when|if|since|because|as|so|which|that|and|or|for|with|is|are|x)\b)"
    r"[A-Za-z°%$](?:[A-Za-z²³°%$./]|-(?=[A-Za-z])){0,20}"
)
_UNIT_OPERATOR = re.compile(
    rf"(?>(?:[ \t]?\\text\{{[^{{}}\n]{{1,30}}\}}|[ \t-]?{_UNIT}){{1,3}})[ \t]{{1,4}}"
    rf"(?P<operator>{_SIGN}|[*/×÷x]|\\(?:times|cdot|div)\b)[ \t]{{1,4}}{_SIGN}?(?:{_CURRENCY})?[0-9.]"
)
_HEADING = re.compile(
    r"(?:[.:)][*_]{0,3}[ \t]{1,4}[*_]{0,3}[A-Za-z]|[*_]{0,3}[ \t]{1,4}[-\u2010-\u2015][ \t]{1,4}[*_]{0,3}[A-Z])"
    r"[^\n]{0,200}?(?<![.!?*_ \t])[*_ \t]{0,8}(?=\n|\Z)"
)
_OPERAND = re.compile(
    rf"[0-9)][ \t]{{0,2}}(?:{_SIGN}|[*/×÷x^:])[ \t]{{0,2}}\Z"
)  # what precedes an expression's last operand
_SMALL = re.compile(r"[0-9]{1,2}")
_VULGAR = {"½": (1, 2), "⅓": (1, 3), "⅔": (2, 3), "¼": (1, 4), "¾": (3, 4)}


def _plain(token: str) -> Fraction | None:
    """An unsigned number's value; None when it is too long or its separators are misplaced."""
    if len(token) > LONGEST_NUMBER:
        return None
    mantissa, _, exponent = token.replace("E", "e").partition("e")
    mantissa = _SEPARATOR.sub(",", mantissa)
    if not _PLAIN.fullmatch(mantissa):
        return None
    return Fraction(mantissa.replace(",", "")) * Fraction(10) ** int(exponent or 0)


def _signed(token: str) -> Fraction | None:
    """`_plain` with an optional sign in front."""
    value = _plain(token.lstrip("-+\u2212\u2013"))
    return -value if value is not None and token[0] in "-\u2212\u2013" else value


def _value(match: re.Match[str]) -> Fraction | None:
    """The value of a matched number, seen with what follows it; None when the two together are no single number."""
    text, end = match.string, match.end()
    bare = _OPERATOR.match(text, end)
    if behind_unit := None if bare else _UNIT_OPERATOR.match(text, end):
        end = behind_unit.end()
    if bare or behind_unit:
        # An equation's value is its right side; the rest of the line is looked at, no further.
        stop = text.find("\n", end)
        equals = text.rfind("=", end, stop if stop >= 0 else len(text))
        if right := _ANCHORED.match(text, equals + 1) if equals >= 0 else None:
            return _value(right)
        if bare or equals >= 0 or behind_unit["operator"] not in "-\u2212\u2013":
            return None
        end = match.end()
    if _BROKEN.match(text, end):
        return None
    part = match.groupdict()
    value = _plain(part["whole"]) if part["whole"] else Fraction(0)
    over = part["over"] or part["over2"] or part["over3"]
    under = part["under"] or part["under2"] or part["under3"]
    if value is None:
        return None
    if over:
        top, bottom = _signed(over), _plain(under)
        if top is None or not bottom:
            return None
        value += top / bottom
    elif part["divisor"]:
        bottom = _plain(part["divisor"])
        if not bottom:
            return None
        value /= bottom
    elif vulgar := part["vulgar"] or part["only"]:
        value += Fraction(*_VULGAR[vulgar])
    return -value if part["sign"] and part["sign"] != "+" else value


def _last_match(pattern: re.Pattern[str], text: str, start: int = 0) -> re.Match[str] | None:
    last = None
    for match in pattern.finditer(text, start):
        last = match
    return last


def _last_marked(text: str) -> re.Match[str] | None:
    """The last number behind a marker that isn't a heading's."""
    last = None
    for match in _MARKED.finditer(text):
        if not (_SMALL.fullmatch(match["whole"] or "") and _HEADING.match(text, match.end())):
            last = match
    return last


def _last_number(text: str) -> Fraction | None:
    # The end of the text first, for speed; a match near the cut could be the rest of a longer number: then all of it.
    cut = max(0, len(text) - 4 * LONGEST_NUMBER)
    match = _last_match(_LAST, text, cut)
    if cut and (match is None or match.start() < cut + 2 * LONGEST_NUMBER):
        match = _last_match(_LAST, text)
    if match is None or _OPERAND.search(text, max(0, match.start() - 6), match.start()):
        return None
    return _value(match)


def extract_answer(text: str, lenient: bool = True) -> Fraction | None:
    """The number that a completion gives as its answer, or None.

    Args:
        text: the completion, of any length; time is linear in it.
        lenient: without a `#### N`, fall back as the module's docstring says.
    """
    return answered(text, partial(_answer, lenient=lenient))


def _answer(text: str, lenient: bool) -> Fraction | None:
    if "####" in text and (match := _last_marked(text)):
        return _value(match)
    if not lenient:
        return None
    box = text.rfind("\\boxed{")
    if box >= 0 and text.find("}", box) < 0:
        return None
    if (box >= 0 or "answer" in text.lower()) and (match := _last_match(_PHRASE, text)):
        return _value(match)
    return _last_number(text)


def parse_gold(answer: Any) -> Fraction | None:
    """The reference's value: a number, a text that starts with one, or a worked text with `#### N`; else None."""
    if isinstance(answer, str):
        if "####" in answer:
            return extract_answer(answer, lenient=False)
        match = _ANCHORED.match(answer)
        return _value(match) if match else None
    if isinstance(answer, bool) or not isinstance(answer, int | float | Decimal | Fraction):
        return None
    try:
        return Fraction(str(answer))  # through the digits: 0.1 is a tenth, as it was written
    except (ValueError, OverflowError):
        return None  # not finite, or past Python's limit on digits


def _rewards(
    completions: Sequence[Any], answers: Sequence[Any], log_extra: Callable[[str, list], None] | None, lenient: bool
) -> list[float | None]:
    rewards: list[float | None] = []
    reasons: list[str] = []
    for completion, answer in zip(completions, answers, strict=True):
        gold, text = parse_gold(answer), completion_text(completion)
        if gold is None:
            reward, reason = None, "not scored: the reference has no number"
        elif (value := extract_answer(text, lenient)) is None:
            reward, reason = 0.0, "no answer"
        else:
            reward, reason = (1.0, "correct") if value == gold else (0.0, "wrong")
        rewards.append(reward)
        reasons.append(reason)
    if log_extra is not None:
        log_extra("reason", reasons)
    return rewards


def gsm8k_reward(
    prompts: Sequence[Any],
    completions: Sequence[str | Sequence[dict[str, Any]]],
    completion_ids: Sequence[Sequence[int]] | None = None,
    *,
    answer: Sequence[Any],
    log_extra: Callable[[str, list], None] | None = None,
    **columns: Any,
) -> list[float | None]:
    """1.0 for the reference's number, 0.0 for another or none, None (not scored) when the reference has no number.

    Args:
        prompts: not read; part of the signature.
        completions: strings, or lists of chat messages whose last one is scored.
        completion_ids: not read.
        answer: one reference each: GSM8K's worked text, or a bare number.
        log_extra: called once with "reason" and a list of `correct`, `wrong`, `no answer` or `not scored: ...`.
        columns: the data set's other columns; not read.

    Raises:
        ValueError: not as many references as completions.
        TypeError: a completion that is neither text nor messages.
    """
    return _rewards(completions, answer, log_extra, lenient=True)


def gsm8k_strict_reward(
    prompts: Sequence[Any],
    completions: Sequence[str | Sequence[dict[str, Any]]],
    completion_ids: Sequence[Sequence[int]] | None = None,
    *,
    answer: Sequence[Any],
    log_extra: Callable[[str, list], None] | None = None,
    **columns: Any,
) -> list[float | None]:
    """`gsm8k_reward` without the fallback: a completion that has no `#### N` scores 0.0."""
    return _rewards(completions, answer, log_extra, lenient=False)
