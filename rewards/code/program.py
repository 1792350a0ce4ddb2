"""The program in a completion, by rule.

1. The fenced block that defines the entry point; of several, the last.
2. Without one, the text before the first fence (all of it, where there is none), when it defines the entry point: a
   completion that goes on from a prompt's open fence, or uses none. Sentences around the code are left out: lines that
   start at the margin with two words, a bullet or a quote, the first word being none of Python's, and what is indented
   below them.
3. Else the last block.

A question that the model makes up behind its program, on a line that begins with `Question:`, ends the text.

A fence is a line of three or more backticks or tildes, with any info string behind it; it closes at a line of at least
as many of the same and nothing else, or never (a cut-off completion), but not inside a triple-quoted string that ends
further below. A block may be all on one line, ```` ```python x = 1``` ````. Indentation that all of a block's lines
share is removed, and a quotation's marks where the fence has them; line ends may be CRLF. Defining is `def`, `class`,
an assignment or an import at the start of a line.
"""

import keyword
import re
import textwrap

from rewards.text import answered

_OPENING = re.compile(r"([ \t>]*)(`{3,}(?=[^`]*$)|~{3,})")
_ONE_LINE = re.compile(r"[ \t>]*(`{3,})(?:[Pp]y(?:thon)?3?[ \t]+)?([^`]*[^`\s][^`]*)\1[ \t]*")
_MARGIN = " \t>"  # what may stand before a fence: indentation, and a quotation's marks
_QUOTES = re.compile(r"\"{3}|'{3}")
_PROSE = re.compile(
    r"(?P<word>[A-Za-z][\w’'-]*)(?:[,:;!]?[ \t]+[\w\"'`“(*$]|[.:!][ \t]*$)|(?:[-*•>]+|\d+[.)])[ \t]+\S|\*\*|`|>>>"
)
_ANNOTATED = re.compile(r"\w+[ \t]*:[^=]*=")
_KEYWORDS = {*keyword.kwlist, *keyword.softkwlist, "print"} - {"_"}


def _blocks(lines: list[str]) -> tuple[list[str], list[str]]:
    """The lines before the first fence, and the content of each block."""
    before, blocks = lines, []
    block: list[str] | None = None  # the open one
    indent = fence = quote = ""  # quote: of the string that is open in the code
    ends = {mark: at for at, line in enumerate(lines) for mark in _QUOTES.findall(line)}  # its last, of each kind
    for number, line in enumerate(lines):
        in_string = quote and ends[quote] > number
        if block is None and not in_string and (one := _ONE_LINE.fullmatch(line)):
            before = before if blocks else lines[:number]
            blocks.append([one[2]])
        elif block is None and not in_string and (opening := _OPENING.match(line)):
            before = before if blocks else lines[:number]
            indent, fence = opening.groups()
            block, quote = [], ""
            blocks.append(block)
        elif block is None:
            quote = _open_quote(line, quote) if not blocks else ""
        elif not in_string and not line.strip(_MARGIN).strip(fence[0]) and line.count(fence[0]) >= len(fence):
            block, quote = None, ""
        else:
            block.append(line.removeprefix(indent.rstrip()).removeprefix(" ") if ">" in indent else line)
            quote = _open_quote(line, quote)
    return before, ["\n".join(block) for block in blocks]


def _open_quote(line: str, quote: str) -> str:
    """The mark of the triple-quoted string that is open behind a line, given that before it; "" for none."""
    for mark in _QUOTES.findall(line):
        quote = mark if not quote else "" if mark == quote else quote
    return quote


def _without_prose(lines: list[str]) -> str:
    """The code among lines that may also hold sentences."""
    kept: list[str] = []
    code, quote = True, ""
    for line in lines:
        if not quote and line[:1] not in ("", " ", "\t"):
            found = _PROSE.match(line)
            code = not found or found["word"] in _KEYWORDS or bool(found["word"] and _ANNOTATED.match(line))
        if code:
            kept.append(line)
            quote = _open_quote(line, quote)
    return "\n".join(kept)


def _defines(code: str, entry_point: str) -> bool:
    name = rf"{re.escape(entry_point)}\b"
    assigned = rf"{name}[ \t]*(?::[^=\n]+)?=(?!=)"
    ways = rf"(?:async[ \t]+)?def[ \t]+{name}|class[ \t]+{name}|{assigned}|(?:from|import)\b.*\b{name}"
    return re.search(rf"^[ \t]*(?:{ways})", code, re.M) is not None


def extract_program(text: str, entry_point: str) -> str | None:
    """The program, or None where there is none.

    Args:
        text: the completion.
        entry_point: the name that the program is to define.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    code = answered(text, lambda part: _defining(part, entry_point))
    if code is None:
        code = (_blocks(text.split("\n"))[1] or [""])[-1]
    if code.lstrip("\n")[:1] in (" ", "\t"):
        code = textwrap.dedent(code)
    return code if code.strip() else None


def _defining(text: str, entry_point: str) -> str | None:
    before, blocks = _blocks(text.split("\n"))
    chosen = [block for block in blocks if _defines(block, entry_point)]
    if chosen:
        return chosen[-1]
    head = _without_prose(before)
    return head if _defines(head, entry_point) else None
