"""When an output of MBPP+ is right: the rules of evalplus 0.3.1, on plain data.

An output equals the canonical solution's by Python's ==. Otherwise it may still be right:

- some tasks ask for a set, for a match that is only None or not, or have a second reading (below);
- where the data gives a tolerance, or once an expected output of the task is a float or all floats (then 1e-6, for that
  input and those behind it), numbers may differ by it and by 1e-7 of their size, in an output of the same type.

Stricter than evalplus in one thing: shapes must agree. numpy's broadcasting lets [[1.0], [1.0]] pass for [1.0, 1.0]
when one of the numbers is not exact.
"""

import math
from collections.abc import Callable
from typing import Any

_FLOAT_TOLERANCE = 1e-6
_RELATIVE = 1e-7
_SMALLEST, _LARGEST = -(1 << 63), (1 << 64) - 1  # numpy's integers; it has no tolerance for others, nor beside them

# By entry point, as evalplus names them.
_AS_SETS = frozenset(
    ("similar_elements", "find_char_long", "common_in_nested_lists", "extract_singly", "larg_nnum", "find_dissimilar")
    + ("Diff",)
)
NOT_NONE = frozenset(("check_str", "text_match_three", "text_starta_endb"))


def _surface_of_pyramid(base: float, height: float) -> int:
    """Mbpp/581 with the height taken from base to apex, where the canonical solution takes the slant height."""
    return round(base**2 + 2 * base * math.sqrt((base / 2) ** 2 + height**2))


def _distance_of_digits(first: int, second: int) -> int:
    """Mbpp/558 with the shorter number padded by zeros, where the canonical solution subtracts the numbers."""
    width = max(len(str(first)), len(str(second)))
    digits = zip(str(first).zfill(width), str(second).zfill(width), strict=True)
    return sum(abs(int(one) - int(other)) for one, other in digits)


_SECOND_READINGS: dict[str, Callable[..., int]] = {
    "surface_Area": _surface_of_pyramid,
    "digit_distance_nums": _distance_of_digits,
}


def tolerance(atol: float, expected: Any) -> float:
    """The absolute tolerance at an input: `atol` is the one at the input before it (at first the task's)."""
    return atol or (_FLOAT_TOLERANCE if _is_floats(expected) else 0.0)


def _is_floats(output: Any) -> bool:
    if isinstance(output, list | tuple) and output:
        return all(isinstance(item, float) for item in output)
    return isinstance(output, float)


def is_right(entry_point: str, arguments: Any, output: Any, expected: Any, atol: float) -> bool:
    """Whether an output is right.

    Args:
        arguments: what the entry point was called with.
        output, expected: plain data, or what `rewards.sandbox.wire` makes of the rest; never the program's objects.
        atol: the input's, by `tolerance`.
    """
    try:
        if _is_equal(entry_point, arguments, output, expected):
            return True
        return atol != 0 and type(output) is type(expected) and _is_close(output, expected, atol)
    except (TypeError, ValueError, ArithmeticError, RecursionError):
        return False  # what can't be compared is not equal


def _is_equal(entry_point: str, arguments: Any, output: Any, expected: Any) -> bool:
    if entry_point in _AS_SETS:
        return set(output) == set(expected)
    if entry_point in NOT_NONE:
        there = expected is not None
        return output == there if isinstance(output, bool) else (output is not None) == there
    if output == expected:
        return True
    second = _SECOND_READINGS.get(entry_point)
    return second is not None and output == second(*arguments)


def _is_close(output: Any, expected: Any, atol: float) -> bool:
    shape = _shape(expected)
    return shape is not None and shape == _shape(output) and _all_close(output, expected, atol)


def _shape(value: Any) -> tuple[int, ...] | None:
    """The shape of nested lists and tuples as an array; None where their lengths differ, or one stands by a number."""
    if not isinstance(value, list | tuple):
        return ()
    shapes = {_shape(item) for item in value}
    if len(shapes) > 1 or None in shapes:
        return None
    return (len(value), *(shapes.pop() if shapes else ()))


def _all_close(output: Any, expected: Any, atol: float) -> bool:
    if isinstance(expected, list | tuple):
        return all(_all_close(one, other, atol) for one, other in zip(output, expected, strict=True))
    if not all(isinstance(number, int | float | complex) for number in (output, expected)):
        return False
    if any(isinstance(number, int) and not _SMALLEST <= number <= _LARGEST for number in (output, expected)):
        return False
    difference = abs(output - expected)
    return output == expected or (math.isfinite(abs(expected)) and difference <= atol + _RELATIVE * abs(expected))
