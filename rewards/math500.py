r"""MATH500's reward: 1.0 when a completion's answer is the reference's, else 0.0.

Which text is the answer: the last balanced `\boxed{...}`, else what `math.extract` falls back to. A last box that is
never closed is a cut-off answer. Answers and references have at most `LONGEST_ANSWER` characters, numbers
`math.tokens.LONGEST_NUMBER`; a longer answer is wrong, unless it is the reference's text.

How it is compared: read by a strict grammar (`math.answer`, `math.expression`) that refuses what it doesn't know, and
evaluates nothing but mathematics. math-verify's own reader is not used, since it drops what it can't read, and its
comparison only where ours is undecided. Everything happens in worker processes (`math.pool`) that are killed after
`math.pool.TIME_LIMIT` seconds; what takes longer, or breaks its worker twice, is wrong. Without a healthy worker, or
where our own code fails, the score is None.

The choices, each the same for references and completions:

- Values are exact: 0.5 is 1/2, 0.333 is not 1/3, 0.1 is not 0.10000001, 3.14 is not \pi. `0.\overline{3}` is 1/3. No
  tolerance, however small or large the numbers are. 2^2 is 4 and (x-1)(x+1) is x^2-1: what is equal for all real values
  counts, simplified or not. An unevaluated sum, product, integral or limit is no answer.
- Units, degrees, money are left out at will, and not converted: 5 cm is 5, \$5 is 5; 5 cm is not 5 m and not 50 mm,
  90^\circ is not \pi/2. "million" and its like multiply; a word that changes the value ("or more") makes it no answer.
- A percent sign is left out at will: 28 is 28\%. A share counts for its percentage unless it is an integer: 0.28 is
  28\%, 5 is not 500\%.
- Thousands: 10,080 `10{,}080` `10\,080` `10,\!080` "10 080" are 10080; 1,234 is not 1.234. Inside brackets a bare comma
  separates: (1,234) is a pair.
- `1\frac{4}{5}` and `1 4/5` are mixed numbers. -(-5) is 5, --5 nothing. 1.5e3 is 1500. "1 2" is nothing.
- A base may be left out: 2516_8 is 2516, but not 2516_7, and not its value 1358.
- A ratio counts up to a factor: 2:4 is 1:2. An hour and two digits of minutes are a time, which 1:00 and 12:00 tell
  apart; a.m. and p.m. are left out at will. "For all x" behind a formula is left out, unless it restricts x.
- A name in front is dropped: x=5 is 5, x=2+3=5 is 5; x=5 is not y=5. An equation with variables is compared as an
  equation, up to a factor: y=2x+3 is 2x-y+3=0, and not 2x+3. Only a completion may name what it gives (S=2k+2 for 2k+2,
  a+b=10 for 10). Of a = b \approx c, the exact part counts.
- 1,2 and \{2,1\} have no order, (1,2) has; a list has each entry as often. \pm stands for two entries. x=5, y=6 is
  (5,6), and 1,2,3 is (1,2,3); but 1,2 isn't (1,2), which may be an interval.
- An interval, its inequality and x \in it are the same, either way round: (3,4] is 3<x\le4. (3,4) may be either. Unions
  are compared as sets.
- Matrices by entries, whatever their brackets; a row or column is the tuple of its entries.
- Text: letter case, punctuation and \text don't count, words and their order do: evelyn is \text{Evelyn}, seat isn't
  \text{east}. (C), \text{(C)} and C are one choice. Three letters and more without a sign between are a word.
- A variable's case counts. e and i are the constants. An odd root of a negative number is real. log is to the base 10.
- A reference must be readable, and text of at most `math.worker.MAX_WORDS` words, without control characters (what
  JSON makes of "\frac" written with one backslash); `check_gold` names the others. The reference's own text is right
  whatever its size: of one past the bounds, as 9^{9^9}, another form is not scored.
"""

import atexit
import re
from collections import OrderedDict
from collections.abc import Callable, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

from rewards.math.extract import extract_answer, last_box
from rewards.math.pool import PoolError, Verdict, pool
from rewards.math.tokens import CONTROL
from rewards.text import completion_text

LONGEST_ANSWER = 2000  # characters, of an answer and of a reference
REMEMBERED = 4096  # verdicts, and references

_PLAIN = re.compile(
    r"(?P<sign>-?) ?(?:(?P<decimal>\d{1,50}(?:\.\d{1,50})?)"
    r"|\\[dt]?frac ?\{ ?(?P<top>\d{1,50}) ?\} ?\{ ?(?P<bottom>\d{1,50}) ?\}|(?P<over>\d{1,50})/(?P<under>\d{1,50}))"
)
# a tab, line feed or carriage return of JSON's in place of \\t, \\n or \\r, and the rest of a command behind it
_UNESCAPED = re.compile(
    r"[\t\r](?=[A-Za-z])|\n(?=(?:u|e|i|ot|eq|eg|abla|mid|cong|sim|exists|subseteq|parallel|leq|geq|less|gtr|earrow|warrow"
    r"|atural|ewline|onumber)(?![A-Za-z]))"
)


class _Remembered:
    """The last few results, by what they are results of."""

    def __init__(self) -> None:
        self.items: OrderedDict[Any, Any] = OrderedDict()

    def get(self, key: Any) -> Any:
        return self.items.get(key)

    def put(self, key: Any, value: Any) -> None:
        self.items[key] = value
        while len(self.items) > REMEMBERED:
            self.items.popitem(last=False)


_verdicts = _Remembered()  # by (gold, answer)
_problems = _Remembered()  # by gold: why it can't be scored, or ""


def math500_reward(
    prompts: Sequence[Any],
    completions: Sequence[str | Sequence[dict[str, Any]]],
    completion_ids: Sequence[Sequence[int]] | None = None,
    *,
    answer: Sequence[Any],
    log_extra: Callable[[str, list], None] | None = None,
    **columns: Any,
) -> list[float | None]:
    """1.0 for the reference's answer, 0.0 for another or none, None (not scored) for an unusable reference.

    Args:
        prompts: not read; part of the signature.
        completions: strings, or lists of chat messages whose last one is scored.
        completion_ids: not read.
        answer: one reference each: an answer in LaTeX, a number, or a whole solution with a box.
        log_extra: called once with "reason" and a list of `correct`, `wrong`, `wrong: ...`, `no answer: ...` or
            `not scored: ...`.
        columns: the data set's other columns; not read.

    Raises:
        ValueError: not as many references as completions.
        TypeError: a completion that is neither text nor messages.
    """
    pairs = [(_gold(gold), completion_text(completion)) for gold, completion in zip(answer, completions, strict=True)]
    answers = [extract_answer(text) for _, text in pairs]
    golds = [gold for gold, _ in pairs]
    problems = _check(golds)
    asked = {
        (gold, given): None
        for gold, (given, _) in zip(golds, answers, strict=True)
        if not problems[gold] and given is not None and _quick(gold, given) is None
    }
    judged, failure = _judge(list(asked))
    results: list[tuple[float | None, str]] = []
    for gold, (given, missing) in zip(golds, answers, strict=True):
        verdict = None if given is None or _damaged(gold) else _quick(gold, given) or judged.get((gold, given))
        if problems[gold] and not (len(gold) > LONGEST_ANSWER and verdict and verdict.outcome == "correct"):
            results.append((None, f"not scored: {problems[gold]}"))
        elif given is None:
            results.append((0.0, f"no answer: {missing}"))
        elif verdict and verdict.outcome == "failed":
            results.append((None, f"not scored: {verdict.why}"))
        elif verdict:
            score, reason = float(verdict.outcome == "correct"), verdict.outcome
            results.append((score, f"{reason}: {verdict.why}" if verdict.why else reason))
        else:
            results.append((None, f"not scored: {failure}"))
    if log_extra is not None:
        log_extra("reason", [reason for _, reason in results])
    return [score for score, _ in results]


def check_gold(answers: Sequence[Any]) -> list[str | None]:
    """For each reference None if it can be scored, else why it can't, in a few words."""
    golds = [_gold(answer) for answer in answers]
    problems = _check(golds)
    return [problems[gold] or None for gold in golds]


def start() -> str:
    """Starts a worker and checks it on a known pair; "" for nothing to say.

    Raises:
        RuntimeError: it can't be started, or judges the pair wrongly.
    """
    pool().start()
    return ""


def close() -> None:
    """Ends the workers; a later call starts new ones."""
    pool().close()


atexit.register(close)


def _gold(answer: Any) -> str:
    """A reference's text: the last box of a worked solution, else all of it; "" for what is no text or number."""
    if isinstance(answer, bool) or not isinstance(answer, str | int | float | Decimal | Fraction):
        return ""
    text = str(answer)
    if CONTROL.search(text):
        return text
    if "\\boxed" in text or "\\fbox" in text:
        text = last_box(text)[0] or ""
    if _damaged(text):
        return text
    return "" if text in ("nan", "inf", "-inf", "NaN", "Infinity", "-Infinity") else text.strip()


def _damaged(gold: str) -> str:
    r"""The control character that JSON made of a command with one backslash, as in "\frac"; "" if there is none."""
    found = CONTROL.search(gold) or _UNESCAPED.search(gold)
    return found[0] if found else ""


def _check(golds: Sequence[str]) -> dict[str, str]:
    """For each reference "" or why it can't be scored: it must be undamaged, readable, and equal itself."""
    problems: dict[str, str] = {}
    for gold in golds:
        if damaged := _damaged(gold):
            command = {"\b": "b", "\t": "t", "\n": "n", "\f": "f", "\r": "r"}.get(damaged[0], "")
            cause = (
                f", the \\{command} of a LaTeX command written with one backslash in JSON; write two" if command else ""
            )
            problems[gold] = f"the reference holds the control character {damaged[0]!r}{cause}"
        elif not gold:
            problems[gold] = "the reference is empty, or no text or number"
        elif len(gold) > LONGEST_ANSWER:
            problems[gold] = "the reference is too long"
        elif _plain(gold) is not None:
            problems[gold] = ""
        elif (known := _problems.get(gold)) is not None:
            problems[gold] = known
    unknown = [gold for gold in dict.fromkeys(golds) if gold not in problems]
    judged, failure = _judge([(gold, gold) for gold in unknown])
    for gold in unknown:
        verdict = judged.get((gold, gold))
        if verdict is None:
            problems[gold] = failure
        else:
            problems[gold] = "" if verdict.outcome == "correct" else f"the reference can't be read ({verdict.why})"
            _problems.put(gold, problems[gold])
    return problems


def _quick(gold: str, answer: str) -> Verdict | None:
    """The verdict where no worker is needed: the same text, too long, two plain numbers, or one remembered."""
    if " ".join(gold.split()) == " ".join(answer.split()):
        return Verdict("correct", "")
    if len(answer) > LONGEST_ANSWER:
        return Verdict("wrong", f"longer than {LONGEST_ANSWER} characters")
    one, two = _plain(gold), _plain(answer)
    if one is not None and two is not None:
        return Verdict("correct" if one == two else "wrong", "")
    return _verdicts.get((gold, answer))


def _plain(text: str) -> Fraction | None:
    """The value of a number that needs no parser: digits with a sign, a point or one fraction bar."""
    match = _PLAIN.fullmatch(text)
    if match is None:
        return None
    top, bottom = match["decimal"] or match["top"] or match["over"], match["bottom"] or match["under"] or "1"
    if int(bottom) == 0:
        return None
    value = Fraction(top) / int(bottom)
    return -value if match["sign"] else value


def _judge(pairs: list[tuple[str, str]]) -> tuple[dict[tuple[str, str], Verdict], str]:
    """The workers' verdicts, remembered; and why there are none, if the workers fail."""
    if not pairs:
        return {}, ""
    try:
        judged = dict(zip(pairs, pool().judge(pairs), strict=True))
    except PoolError as error:
        return {}, str(error)
    for pair, verdict in judged.items():
        _verdicts.put(pair, verdict)
    return judged, ""
