"""Which part of a completion is its program."""

import time

import pytest

from rewards.code.program import extract_program

DEF = "def area(w, h):\n    return w * h"

FENCED = 'def area(w, h):\n    """The area.\n\n    ```\n    area(2, 3)\n    ```\n    """\n    return w * h'
CODE = """#!/usr/bin/env python
from math import prod
scale: int = 1
SIDES = [
1, 2,
3]
TEXT = '''
Here is a text.
'''
@staticmethod
def area(w, h):
    # Here is the product
    return prod((w, h))
if __name__ == "__main__":
    print(area(2, 3))
else:
    pass
assert area(2, 3) == 6
print (area(2, 3))
area.doc = "Here it is"
for side in SIDES: area(side, side)
"""


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
        # a whole block on one line
        ("```python def area(w, h): return w * h```", "def area(w, h): return w * h"),
        ("Here:\n```def area(w, h): return w * h```\nDone.", "def area(w, h): return w * h"),
        (f"```python\n{DEF}\n```\nor\n```area = lambda *a: 0```", "area = lambda *a: 0"),
        (f"```python\n{DEF}\n```\nCall\n```area(2, 3)```", DEF),
        # a fence inside a docstring is none
        (f"```python\n{FENCED}\n```\nThat is all.", FENCED),
        (f"```python\n{FENCED}\n```\n```python\nprint(area(2, 3))\n```", FENCED),
        (FENCED, FENCED),
        (f"{FENCED}\n```\nThat is all.", FENCED),
        ('```python\ndef area(w, h):\n    """Cut off\n```\nIt is w * h.', 'def area(w, h):\n    """Cut off'),
        ("```python\n    def area(w, h):\n        return w * h\n    ```\nIt multiplies.", DEF),
        # sentences around code without a fence
        (f"Here is the function:\n\n{DEF}\n\nIt multiplies w and h.", f"{DEF}\n"),
        (f"Sure! This works:\n{DEF}\nExplanation:\n- it multiplies\n    - w by h\n1. Done", DEF),
        (f"Note that w = 2 is fine.\nimport math\n{DEF}\n\n**Output**\n`6`\n>>> area(2, 3)", f"import math\n{DEF}\n"),
        (f"{DEF}\n\nprint(area(2, 3))\nOutput: 6", f"{DEF}\n\nprint(area(2, 3))"),
        (CODE, CODE),
        # a question that the model makes up
        (f"{DEF}\n\nQuestion: Add them.\nAnswer:\ndef area(w, h):\n    return w + h", f"{DEF}"),
        (f"```python\n{DEF}\n```\nQuestion: Add them.\n```python\ndef area(w, h): return w + h\n```", DEF),
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
    for piece in (
        "```\n",
        "~~~\n`",
        "> ",
        "`",
        "def area",
        " " * 50 + "area = = ",
        "from import x ",
        "\n\t",
        "Here it is\n",
        "```a```\n",
        '"""\n```\n',
        "\nQuestion:",
    ):
        extract_program(piece * 20_000, "area")
    assert time.monotonic() - began < 20
