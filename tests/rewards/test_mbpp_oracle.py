"""What counts as right, against evalplus itself where it is installed, and by hand."""

import math
import os
import random

import pytest

from rewards.code.oracle import is_right, tolerance
from rewards.sandbox.wire import Items, Opaque


def right(output, expected, entry_point="f", arguments=(), atol=0.0):
    return is_right(entry_point, arguments, output, expected, tolerance(atol, expected))


@pytest.mark.parametrize(
    ("output", "expected", "verdict"),
    [
        (3, 3, True),
        (3, 4, False),
        (True, 1, True),  # as Python has it
        (3.0, 3, True),
        ([1, 2], (1, 2), False),
        ((1, 2), (1, 2), True),
        ("3", 3, False),
        (None, 0, False),
        ({1: 2}, {1: 2}, True),
        ({2, 1}, {1, 2}, True),
        # floats: 1e-6 and 1e-7 of the size
        (2.0000005, 2.0, True),
        (2.000002, 2.0, False),
        (1e9 + 50, 1e9, True),
        (1e9 + 200, 1e9, False),
        ([1.0000001, 2.0], [1.0, 2.0], True),
        ((1.0000001, 2.0), [1.0, 2.0], False),
        ([1.0000001], [1.0, 2.0], False),
        ([1.0000001, 2], [1.0, 2.0], True),
        ([1.0000001, "x"], [1.0, "x"], False),  # not all floats: exact
        ([1.0000001], [1.0, 2], False),
        (2, 2.0000001, False),  # of another type
        (math.nan, 1.0, False),
        (math.nan, math.nan, False),
        (math.inf, math.inf, True),
        (-math.inf, math.inf, False),
        (1.0, math.inf, False),
        (math.inf, 1.0, False),
        (10**400, 1.0, False),
        ([[1.0, 2.0]], [1.0, 2.0], False),
        ([[1.0], [1.0]], [1.0, 1.0000001], False),  # numpy would stretch it
        (Opaque("x"), 3, False),
        (Opaque("x"), None, False),
    ],
)
def test_outputs(output, expected, verdict):
    assert right(output, expected) is verdict


def test_the_datas_tolerance_reaches_inside_and_needs_the_same_shape():
    assert right([(1.00005, 2)], [(1.0, 2)], atol=1e-4)
    assert not right([(1.0005, 2)], [(1.0, 2)], atol=1e-4)
    assert not right([(1.00005,)], [(1.0, 2)], atol=1e-4)
    assert not right([1.00005, 2], [(1.0, 2)], atol=1e-4)
    assert right(complex(1, 1.00005), complex(1, 1), atol=1e-4)
    assert not right("a", "b", atol=1e-4)
    assert not right({1: 1.00005}, {1: 1.0}, atol=1e-4)


def test_large_integers_have_no_tolerance():
    assert right(10**17 + 1, 10**17, atol=1e-6)  # numpy's own comparison of 64-bit integers
    assert not right(10**20 + 1, 10**20, atol=1e-6)


def test_a_float_among_the_expected_outputs_sets_the_tolerance_behind_it():
    atol, found = 0, []
    for expected in (3, "x", [0.5, 1.5], 4):
        atol = tolerance(atol, expected)
        found.append(atol)
    assert found == [0, 0, 1e-6, 1e-6]
    assert tolerance(1e-4, 0.5) == 1e-4
    assert tolerance(0, []) == tolerance(0, [0.5, 1]) == tolerance(0, {0.5: 1}) == 0


def test_sets_are_compared_where_the_task_asks_for_one():
    assert right([2, 1, 1], (1, 2), "similar_elements")
    assert right(Items([2, 1]), (1, 2), "Diff")
    assert not right([2], (1, 2), "Diff")
    assert not right(3, (1, 2), "Diff")
    assert not right([[1], 2], [1, 2], "Diff")


@pytest.mark.parametrize(
    ("output", "expected", "verdict"),
    [
        (Opaque("Match"), Opaque("Match"), True),
        ("Found a match!", Opaque("Match"), True),
        (True, Opaque("Match"), True),
        (False, Opaque("Match"), False),
        (None, Opaque("Match"), False),
        (None, None, True),
        (False, None, True),
        (True, None, False),
        (0, None, False),
    ],
)
def test_a_match_is_only_one_or_none(output, expected, verdict):
    assert right(output, expected, "check_str") is verdict


def test_second_readings():
    # a base of 6 and a height of 4: slant height 5, so 36 + 2 * 6 * 5
    assert right(96, 84, "surface_Area", (6, 4)) and right(84, 84, "surface_Area", (6, 4))
    assert not right(95, 84, "surface_Area", (6, 4))
    # 1000 and 999: |1 - 0| + 3 * |0 - 9| by digits, 1 by the difference's digits
    assert right(28, 1, "digit_distance_nums", (1000, 999))
    assert not right(27, 1, "digit_distance_nums", (1000, 999))


def _value(random_: random.Random, depth: int = 0):
    kind = random_.choice(["int", "float", "float", "near", "text", "bool", "none", "list", "list", "tuple"])
    if kind in ("list", "tuple") and depth < 2:
        items = [_value(random_, depth + 1) for _ in range(random_.randrange(3))]
        return items if kind == "list" else tuple(items)
    choices = {"int": [0, 1, 10**17, 10**20], "float": [0.5, 1.0, 1e9, math.inf], "bool": [True, False]}
    choices |= {"near": [1.0000005, 1.00001, 1e9 + 50, 10**17 + 1, 1.0000005 + 0j], "text": ["a", "b"], "none": [None]}
    return random_.choice(choices.get(kind, [1.5]))


def _near(value, random_: random.Random):
    if isinstance(value, list | tuple):
        kind = random_.choice([list, tuple]) if random_.random() < 0.2 else type(value)
        return kind(_near(item, random_) for item in value)
    if isinstance(value, int | float) and random_.random() < 0.5:
        return value + random_.choice([1e-7, 5e-7, 1e-5, 1, 0])
    return value


@pytest.mark.parametrize(("entry_point", "atol"), [("f", 0), ("f", 1e-4), ("Diff", 0), ("check_str", 0)])
def test_evalplus_says_the_same(entry_point, atol, monkeypatch):
    pytest.importorskip("evalplus", reason="evalplus is not installed")
    monkeypatch.setenv("EVALPLUS_MAX_MEMORY_BYTES", "-1")
    from evalplus.eval import untrusted_check

    random_ = random.Random(7)
    expected = [_value(random_) for _ in range(300)]
    outputs = [_near(value, random_) if random_.random() < 0.8 else _value(random_) for value in expected]
    if entry_point == "check_str":
        expected = [value is not None for value in expected]
    code = f"from math import inf\nfrom cmath import *\nOUTPUTS = {outputs!r}\ndef {entry_point}(n): return OUTPUTS[n]"
    details, at = [], 0
    inputs = [[place] for place in range(len(expected))]
    _, details = untrusted_check("mbpp", code, inputs, entry_point, expected, atol, [0.1] * len(inputs))
    ours, tolerance_now = [], atol
    for at, (output, value) in enumerate(zip(outputs, expected, strict=True)):
        tolerance_now = tolerance(tolerance_now, value)
        gold = (Opaque("Match") if value else None) if entry_point == "check_str" else value
        ours.append(is_right(entry_point, (at,), output, gold, tolerance_now))
    assert len(details) == len(ours) and 20 < sum(ours) < 290
    different = [(outputs[at], expected[at], ours[at]) for at in range(len(ours)) if bool(details[at]) != ours[at]]
    assert different == [], os.linesep.join(map(str, different))
