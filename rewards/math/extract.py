r"""Which part of a completion is its answer. Linear in the length of the text; standard library only.

1. The last `\boxed` (or `\fbox`) decides, whatever surrounds it. Its braces must balance: a box that is never closed is
   a cut-off answer, and there is none. A box inside closed boxes is widened to the outermost, and the commands dropped;
   inside one that is never closed it is cut off too, unless a line, a sentence or a formula ended in between.
   Without braces, `\boxed 5`, it reaches to the end of the formula, the line or the sentence. A box that is empty or
   only says what belongs there (`\boxed{...}`, `\boxed{answer}`, "in \boxed form") is a mention, and no box.
2. Without any box, the last `answer is`, `answer:`, `answer =` or `<answer>`: the formula that follows at once
   (several, where they are joined by commas, "and" or "or"), else the words up to the end of the sentence, line or
   tag, or a "because".
3. Without that, the last formula, `$...$`, `$$...$$`, `\(...\)` or `\[...\]`; a display that is never closed is a
   cut-off answer. Inside `$`, TeX's neighbours decide, so that `costs $5` opens no formula: an opening dollar stands
   before something, a closing one behind something and not before a digit.
4. Without that, the whole text if it is one short line, and holds no box at all.

A question that the model makes up behind its answer ends the text (`rewards.text.answered`).
"""

import re

from rewards.text import answered

NO_BOX = "no box, formula or short line"
CUT_OFF = "the box is cut off"
LONGEST_LINE = 200  # characters of rule 4
LONGEST_SENTENCE = 2000  # characters looked at behind "answer is"

# Every pattern is bounded, or consumes what it scans, so that no search is worse than linear.
_BOX = r"\\{1,2}(?:boxed|fbox)(?![A-Za-z])"
_BRACES = re.compile(rf"(?P<box>{_BOX}\s{{0,40}}+)|\\.|(?P<brace>[{{}}])", re.DOTALL)
_UNBRACED_END = re.compile(r"\$|\\[)\]]|\n|[.](?=\s|\Z)")
_BREAK = re.compile(r"\n|\$|\\[()\[\]]|[.!?]\s")
_INNER_BOX = re.compile(_BOX)
_SPACING = (
    r"(?:[\s{}~.…?_*:-]|\\(?:[\s,;:!_]|q?quad\b|[lc]?dots\b|dotsc\b|phantom\{[^{}]{0,20}\}|hspace\{[^{}]{0,20}\}))"
)
_MENTION = re.compile(  # what stands in a box, between braces, when a format is explained
    rf"(?>{_SPACING}*)(?>\\(?:text|textbf|textit|mathrm|mbox)\{{)?(?>{_SPACING}*)[<\[(]?"
    r"(?i:(?:(?:put|write|your|the|my|a|final|correct|numerical|simplified|letter of the) )*(?:answer|result|solution)"
    rf"(?:[ _]here)?)?[>\])]?(?>{_SPACING}*)\}}?(?>{_SPACING}*)"
)
_WORDS = re.compile(r"[A-Za-z][A-Za-z ,'’-]*[A-Za-z][\s:,]*")  # of a mention without braces
_SENTENCE = re.compile(r"(?:[!?:]|[A-Za-z]{2}[.,])\s*\Z")
_PHRASE = re.compile(r"(?i:\banswers?)[*_]{0,3}\s{0,8}+(?:(?i:is|are)\b|[:=])[*_]{0,3}|<answer>")
_FILLER = re.compile(
    r"(?>(?:[\s:*_]|(?i:therefore|thus|hence|then|simply|just|exactly|indeed|clearly|given by|equal to)\b){0,40})"
)
_JOINT = re.compile(r"\s{0,8}+(?:,?\s{0,8}+(?:and|or)\b|,)\s{0,8}+")
_SENTENCE_END = re.compile(
    r"\n|</answer>|[.!?](?=\s|\Z)|[,;]?\s+(?:because|since|which|where|when|as|so|if|for|hence|thus|after|given)\b"
)
_DELIMITER = re.compile(r"\\[()\[\]]|\\.|\$\$?", re.DOTALL)
_CLOSING = {"$": "$", "$$": "$$", "\\(": "\\)", "\\[": "\\]"}


def extract_answer(text: str) -> tuple[str | None, str]:
    """The answer of a completion and "", or None and why there is none."""
    return answered(text, lambda part: _decided(part, whole=part is text)) or _extract(text)


def _decided(text: str, whole: bool) -> tuple[str | None, str] | None:
    """What a text says of its answer; None where it has none, so that what follows it may be looked at."""
    answer, why = _extract(text)
    if not whole and answer is not None and answer == text.strip() and _SENTENCE.search(answer):
        return None  # "Sure!" before the question that it repeats
    return (answer, why) if answer is not None or why == CUT_OFF else None


def _extract(text: str) -> tuple[str | None, str]:
    answer, why = last_box(text)
    if why != NO_BOX:
        return (answer.strip(), "") if answer is not None else (None, why)
    if phrase := _last(_PHRASE, text):
        answer, why = _after_phrase(text, phrase.end())
    else:
        answer, why = _last_formula(text)
        if answer is None and not why and "\\boxed" not in text and "\\fbox" not in text:
            answer = text if len(text) <= LONGEST_LINE and "\n" not in text.strip() else None
    if answer is not None and not answer.strip():
        return None, "it is empty"
    return (
        (answer.strip(), "")
        if answer is not None
        else (None, why or ("it is empty" if _INNER_BOX.search(text) else NO_BOX))
    )


def last_box(text: str) -> tuple[str | None, str]:
    """The content of the last box, widened to the outermost closed box around it, and "".

    None and why there is none: NO_BOX where there are at most mentions, CUT_OFF where it isn't closed.
    """
    opened: list[tuple[int, int] | None] = []  # for each open brace: where its box and its content start
    closed: dict[int, tuple[int, int]] = {}  # by where a box starts, its content
    boxes: list[tuple[int, int]] = []  # where each starts, and where what follows the command does
    if "\\boxed" not in text and "\\fbox" not in text:
        return None, NO_BOX
    for match in _BRACES.finditer(text, max(0, text.find("box") - 4)):
        if match["box"]:
            boxes.append(match.span())
        elif match["brace"] == "{":
            opened.append((boxes[-1][0], match.end()) if boxes and match.start() == boxes[-1][1] else None)
        elif match["brace"] and opened and (box := opened.pop()):
            closed[box[0]] = box[1], match.start()
    for last, box_end in reversed(boxes):
        if text[box_end : box_end + 1] != "{":
            end = _UNBRACED_END.search(text, box_end)
            content = text[box_end : end.start() if end else len(text)]
            if not (_WORDS.fullmatch(content) or (end and not content.strip())):
                return (content, "") if content else (None, CUT_OFF)
        elif last not in closed:
            return None, CUT_OFF
        elif not _is_mention(text, *closed[last]):
            return _widened(text, last, closed, [box for box in opened if box])
    return None, NO_BOX


def _is_mention(text: str, begin: int, end: int) -> bool:
    return end - begin <= 80 and _MENTION.fullmatch(_INNER_BOX.sub("", text[begin:end])) is not None


def _widened(
    text: str, last: int, closed: dict[int, tuple[int, int]], opened: list[tuple[int, int]]
) -> tuple[str | None, str]:
    """The content of the outermost closed box around the box that starts at `last`."""
    open_before = [begin for start, begin in opened if start < last]
    if open_before and not _BREAK.search(text, open_before[-1], last):
        return None, CUT_OFF
    begin, end = min(content for start, content in closed.items() if start <= last < content[1])
    return _INNER_BOX.sub("", text[begin:end]), ""


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    last = None
    for match in pattern.finditer(text):
        last = match
    return last


def _formula(text: str, start: int) -> tuple[str, int] | None:
    """The formula that opens at `start`, and where it ends; None if none opens there, or it isn't closed in time."""
    opening = next((mark for mark in ("$$", "$", "\\(", "\\[") if text.startswith(mark, start)), None)
    if opening is None:
        return None
    begin = start + len(opening)
    for match in _DELIMITER.finditer(text, begin, begin + LONGEST_SENTENCE):
        if match[0] == _CLOSING[opening]:
            return text[begin : match.start()], match.end()
    return None


def _after_phrase(text: str, start: int) -> tuple[str | None, str]:
    start = _FILLER.match(text, start).end()  # type: ignore[union-attr]
    found = _formula(text, start)
    if found is None and text.startswith(("\\(", "\\[", "$$"), start):
        return None, "the formula is cut off"
    if found is None:
        end = _SENTENCE_END.search(text, start, start + LONGEST_SENTENCE)
        return text[start : end.start() if end else start + LONGEST_SENTENCE].strip("*_` "), ""
    answers, end = [found[0]], found[1]
    while (joint := _JOINT.match(text, end)) and (found := _formula(text, joint.end())):
        answers.append(found[0])
        end = found[1]
    return " , ".join(answers), ""


def _last_formula(text: str) -> tuple[str | None, str]:
    opening, begin, answer = "", 0, None
    for match in _DELIMITER.finditer(text):
        mark, before, after = match[0], text[match.start() - 1 : match.start()], text[match.end() : match.end() + 1]
        if opening and mark == _CLOSING[opening]:
            if mark != "$" or (not before.isspace() and not after.isdigit()):
                answer, opening = text[begin : match.start()], ""
                continue
        if mark in _CLOSING and (mark != "$" or not after.isspace()):
            opening, begin = mark, match.end()
    if opening and opening != "$":
        return None, "the formula is cut off"
    return answer, ""
