"""The program in a completion, by rule.

1. The fenced block that defines the entry point; of several, the last.
2. Without one, the text before the first fence, when it defines the entry point: a completion that goes on from a
   prompt's open fence.
3. Else the last block; without blocks, the whole text, when it defines the entry point.

A fence is a line of three or more backticks or tildes, with any info string behind it; it closes at a line of at least
as many of the same and nothing else, or never (a cut-off completion). Indentation that all of a block's lines share is
removed, and a quotation's marks where the fence has them; line ends may be CRLF. Defining is `def`, `class`, an
assignment or an import at the start of a line.
"""

import re
import textwrap

_OPENING = re.compile(r"([ \t>]*)(`{3,}(?=[^`]*$)|~{3,})")
_MARGIN = " \t>"  # what may stand before a fence: indentation, and a quotation's marks


def _blocks(lines: list[str]) -> tuple[list[str], list[str]]:
    """The lines before the first fence, and the content of each block."""
    before, blocks = lines, []
    block: list[str] | None = None  # the open one
    indent = fence = ""
    for number, line in enumerate(lines):
        if block is None:
            if opening := _OPENING.match(line):
                before = before if blocks else lines[:number]
                indent, fence = opening.groups()
                block = []
                blocks.append(block)
        elif line.strip(_MARGIN).strip(fence[0]) == "" and line.count(fence[0]) >= len(fence):
            block = None
        else:
            block.append(line.removeprefix(indent.rstrip()).removeprefix(" ") if ">" in indent else line)
    return before, ["\n".join(block) for block in blocks]


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
    before, blocks = _blocks(text.replace("\r\n", "\n").replace("\r", "\n").split("\n"))
    head = "\n".join(before)
    chosen = [block for block in blocks if _defines(block, entry_point)]
    if not chosen and _defines(head, entry_point):
        chosen = [head]
    code = (chosen or blocks or [""])[-1]
    if code.lstrip("\n")[:1] in (" ", "\t"):
        code = textwrap.dedent(code)
    return code if code.strip() else None
