"""Which part of a completion is its program."""

import time

import pytest

from rewards.mbpp_program import extract_program

DEF = "def area(w, h):\n    return w * h"


@pytest.mark.parametrize(
    ("completion", "program"),
    [
        (DEF, DEF),
        (f"```python\n{DEF}\n```", DEF),
        (f"```\n{DEF}\n```", DEF),
        (f"```py3 title=x.py\n{DEF}\n```", DEF),
        (f"```Python\n{DEF}\n```", DEF),
        (f"~~~\n{DEF}\n~~~", DEF),
        (f"````python\n{DEF}\n# ```\n````", f"{DEF}\n# ```"),
        (f"Sure! Multiply them.\n\n```python\n{DEF}\n```\nThat is all.", DEF),
        (f"```python\n{DEF}", DEF),  # cut off
        (f"```python\n{DEF}\n`````", DEF),  # a longer fence closes
        (f"```python\n{DEF}\n~~~\n```", f"{DEF}\n~~~"),  # another kind does not
        # several blocks: the one that defines it, wherever it stands; of two, the last
        (f"```python\n{DEF}\n```\nUse it:\n```python\nprint(area(2, 3))\n```", DEF),
        (f"First:\n```\nw * h\n```\nSo:\n```python\n{DEF}\n```", DEF),
        (f"```python\ndef area(w, h):\n    pass\n```\nOr rather:\n```python\n{DEF}\n```", DEF),
        (f"```python\ndef areas(x): pass\n```\n```python\n{DEF}\n```\n```python\nmy_area = 1\n```", DEF),
        # none defines it: the last
        ("```python\nx = 1\n```\n```python\nglobals()['ar' + 'ea'] = max\n```", "globals()['ar' + 'ea'] = max"),
        # ways to define it
        ("```\narea = lambda w, h: w * h\n```\n```\n1\n```", "area = lambda w, h: w * h"),
        ("```\nasync def area(w, h): ...\n```\n```\n1\n```", "async def area(w, h): ..."),
        ("```\nfrom shapes import area\n```\n```\n1\n```", "from shapes import area"),
        ("```\nclass area: ...\n```\n```\narea == 1\n```", "class area: ..."),
        # indentation of the fence, of its content, and a quotation
        ("1. Do this:\n   ```python\n   def area(w, h):\n       return w * h\n   ```", DEF),
        ("```python\n    def area(w, h):\n        return w * h\n```", DEF),
        ("> ```python\n> def area(w, h):\n>     return w * h\n> ```", DEF),
        ("  ```python\ndef area(w, h):\n return w * h\n  ```", "def area(w, h):\n return w * h"),
        ("> ```python\n> def area(w, h):\n>\n>     return w * h", "def area(w, h):\n\n    return w * h"),
        # line ends
        (f"Yes:\r\n```python\r\n{DEF.replace(chr(10), chr(13) + chr(10))}\r\n```\r\n", DEF),
        # the prompt had opened the fence
        (f"{DEF}\n```\nIt multiplies.", f"{DEF}"),
        (f"{DEF}\n```\nFor example:\n```\n6\n```", f"{DEF}"),
        # a line of code inside backticks is no fence
        (f"```area(2, 3)``` is what you call.\n```python\n{DEF}\n```", DEF),
        # nothing there
        ("", None),
        ("The area is w * h; area(2, 3) gives 6.", None),
        ("```python\n```", None),
        ("```python\n\n   \n```", None),
        ("```", None),
    ],
)
def test_program(completion, program):
    assert extract_program(completion, "area") == program


def test_blank_lines_and_strings_stay():
    code = "\ndef area(w, h):\n    text = '''\n  a\n   \nb'''\n\n\n    return w * h\n"
    assert extract_program(f"```python\n{code}\n```", "area") == code


def test_long_completions_take_linear_time():
    began = time.monotonic()
    for piece in ("```\n", "~~~\n`", "> ", "`", "def area", " " * 50 + "area = = ", "from import x ", "\n\t"):
        extract_program(piece * 100_000, "area")
    assert time.monotonic() - began < 20
