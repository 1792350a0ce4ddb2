r"""The reward for multiple choice, as in AQuA: 1.0 for the reference's letter, A to E, else 0.0. Standard library only.

What is read, in this order:

1. The last `\boxed{...}` decides alone: it must hold the letter, bare or dressed (`(C)`, `\text{C}`, `C) 12`). A box
   that is never closed is a cut-off answer; an empty one, or a format's mention (`\boxed{...}`), is no box.
2. Without a box, the last `#### C`, `<answer>C`, `answer is C`, `answer: C`, `answer = C`, `correct choice is C` or
   `C is the answer`.
3. Without that, a letter at the text's end, else the last that stands in parentheses, `(C)`, alone on its line, or
   behind `option` or `choice`.

A letter is a capital on its own; in parentheses a small one counts too. An `A` before a word is an article. Two letters
that "or", "and", a comma or a slash join are no answer, and no letter is: nothing is guessed from the options' values.
A question that the model makes up behind its answer ends the text (`rewards.text.answered`).
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

from rewards.math.extract import NO_BOX, last_box
from rewards.text import answered, completion_text

_DRESS = r"(?>(?:[\s*_$`:\[\"“]|\\[(\[]|\\(?:text|textbf|mathrm|mathbf)\{|(?:the|option|choice|letter)\b){0,12})"
# exactly one group of a match holds its letter, which is no part of a word or an expression
_LETTER = r"(?:\(([A-Ea-e])\)|\(?([A-E]))(?![A-Za-z0-9'’^_=+])(?!\s{0,3}[-+*/=<>^]\s{0,3}[A-Za-z0-9(])"
_NO_ARTICLE = r"(?<!A)|(?<=A)(?=\s*(?:[).,:;*$}\]!_`\\]|\Z)|[^\S\n]*\n)"
_ONE = rf"{_LETTER}(?:{_NO_ARTICLE})"
_BOXED = re.compile(rf"{_DRESS}{_ONE}\s*(?:[).:}}*$\\].*)?", re.DOTALL)
_CORRECT = r"(?i:\b(?:correct|right|best) (?:option|choice)(?: is\b|[*_]{0,3}:))"
_MARK = rf"####(?!#)|<answer>|{_CORRECT}|" + r"(?i:\banswers?)[*_]{0,3}\s{0,8}+(?:(?i:is|are)\b|[-:=–])"
_VERDICT = r"\s(?i:is (?:the )?(?:correct |right )?(?:answer|choice|option)|is correct)\b"
_MARKED = re.compile(rf"(?:{_MARK})(?i:{_DRESS}){_ONE}|(?<![^\s(])\(?([A-E])\)?(?={_VERDICT})")
_ALONE = re.compile(
    rf"(?:(?<=\n)|\A)[ \t*_$]{{0,8}}+{_ONE}[ \t*_$.)]{{0,8}}+(?=\n|\Z)|(?<![\w)])\(([A-E])\)(?![\w(])"
    rf"|\b(?i:option|choice)(?i:{_DRESS}){_ONE}"
)
_AT_END = re.compile(rf"(?<![\w\\'’^_=+*/-])(?<![=+*/-]\s){_ONE}[\s*_$.)}}]{{0,8}}+\Z")
_JOINT = r"(?:,?[ \t]?\b(?:or|and)\b|[,/&])\s{0,3}"
_JOINED = re.compile(rf"\)?[*_$`}}]{{0,3}}[ \t]{{0,3}}{_JOINT}(?:(?:or|and)\s)?\(?[A-Ea-e]\b(?!')")
_JOINS = re.compile(rf"\b[A-Ea-e]\)?[ \t]{{0,3}}{_JOINT}(?:(?:or|and)\s)?\(?\Z")


def extract_choice(text: str) -> str | None:
    """The letter that a completion chooses, a capital, or None. Linear in the length of the text."""
    return answered(text, _choice)


def _choice(text: str) -> str | None:
    content, why = last_box(text)
    if why != NO_BOX:
        return _letter(_BOXED.fullmatch(content.strip()) if content is not None else None)
    last = None
    for match in _MARKED.finditer(text):
        last = match
    if last is None:
        for match in _ALONE.finditer(text):
            last = match
        last = _AT_END.search(text, max(0, len(text) - 40)) or last
    return _letter(last)


def _letter(match: re.Match[str] | None) -> str | None:
    """A match's letter, unless it is one of several."""
    if match is None or match.lastindex is None:
        return None
    text, start = match.string, match.start(match.lastindex)
    if _JOINED.match(text, start + 1) or _JOINS.search(text, max(0, start - 16), start):
        return None
    return text[start].upper()


def choice_reward(
    prompts: Sequence[Any],
    completions: Sequence[str | Sequence[dict[str, Any]]],
    completion_ids: Sequence[Sequence[int]] | None = None,
    *,
    answer: Sequence[Any],
    log_extra: Callable[[str, list], None] | None = None,
    **columns: Any,
) -> list[float | None]:
    """1.0 for the reference's letter, 0.0 for another or none, None (not scored) for a reference that is no letter.

    Args:
        prompts: not read; part of the signature.
        completions: strings, or lists of chat messages whose last one is scored.
        completion_ids: not read.
        answer: one letter each, A to E.
        log_extra: called once with "reason" and a list of `correct`, `wrong`, `no answer` or `not scored: ...`.
        columns: the data set's other columns; not read.

    Raises:
        ValueError: not as many references as completions.
        TypeError: a completion that is neither text nor messages.
    """
    results: list[tuple[float | None, str]] = []
    for completion, gold in zip(completions, answer, strict=True):
        letter = extract_choice(completion_text(completion))
        if not isinstance(gold, str) or not re.fullmatch(r"\s*\(?[A-Ea-e]\)?\.?\s*", gold):
            results.append((None, "not scored: the reference is no letter from A to E"))
        elif letter is None:
            results.append((0.0, "no answer"))
        elif letter == gold.strip(" ().\n\t").upper():
            results.append((1.0, "correct"))
        else:
            results.append((0.0, "wrong"))
    if log_extra is not None:
        log_extra("reason", [reason for _, reason in results])
    return [score for score, _ in results]
