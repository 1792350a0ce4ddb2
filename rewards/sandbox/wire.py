"""Reads outputs that a program's process wrote, as data: a strict subset of marshal's version 2, by our own reader.

`marshal.loads` would execute nothing, but it isn't made for hostile bytes; this reader bounds depth, counts and sizes,
and builds exact builtin values only.
"""

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

from rewards.sandbox.inside.encode import CHUNKED

_DEEPEST = 120  # levels; encode stops at 100


class Size(NamedTuple):
    """How much an output holds: values in all, elements of sets and dictionaries, and parts that are no plain data."""

    values: int
    hashed: int
    opaque: int = 1 << 62


UNBOUNDED = Size(1 << 62, 1 << 62)  # for outputs of trusted programs


class Malformed(ValueError):
    """The bytes are no output."""


class Opaque:
    """An output that is no plain data, such as a match object: not None, and equal to nothing."""

    def __init__(self, name: str):
        self.name = name


class Items(Opaque):
    """What an iterator, a range or a deque gives: equal to nothing, but it can be made a set."""

    def __init__(self, items: list[Any]):
        super().__init__("iterable")
        self.items = items

    def __iter__(self) -> Iterator[Any]:
        return iter(self.items)


class _Reader:
    def __init__(self, data: bytes, most: Size):
        self.data, self.at, self.most, self.values, self.hashed, self.opaque = data, 0, most, 0, 0, 0

    def take(self, count: int) -> bytes:
        if count < 0 or self.at + count > len(self.data):
            raise Malformed("cut short")
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self, form: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def count(self, each: int) -> int:
        """A length, which the bytes that are left must be able to hold."""
        count = self.number("<i")
        if not 0 <= count * each <= len(self.data) - self.at:
            raise Malformed("length")
        return count

    def value(self, depth: int = 0) -> Any:
        self.values += 1
        if depth > _DEEPEST or self.values > self.most.values:
            raise Malformed("too deep, or too much")
        code = self.take(1)
        if code == b"i":
            return self.number("<i")
        if code == b"u":
            return self.take(self.count(1)).decode("utf-8", "surrogatepass")
        if code in _CONSTANTS:
            return _CONSTANTS[code]
        if code == b"g":
            return self.number("<d")
        if code == b"y":
            return complex(self.number("<d"), self.number("<d"))
        if code == b"s":
            return self.take(self.count(1))
        if code == b"l":
            count = self.number("<i")
            digits = struct.unpack(f"<{abs(count)}H", self.take(2 * abs(count)))
            if any(digit >> 15 for digit in digits):
                raise Malformed("digit")
            return _integer(digits) if count >= 0 else -_integer(digits)
        if code == b"[":
            return [self.value(depth + 1) for _ in range(self.count(1))]
        if code == b"(":
            return self.tuple(depth)
        if code in (b"<", b">"):
            count = self.count(1)
            self.hash(count)
            items = [self.value(depth + 1) for _ in range(count)]
            return set(items) if code == b"<" else frozenset(items)
        if code == b"{":
            return dict(self.pairs(depth))
        raise Malformed("code")

    def chunks(self) -> Any:
        """A list or tuple that was written in parts."""
        self.at = 2
        items: list[Any] = []
        while self.at < len(self.data):
            chunk = self.value()
            if type(chunk) not in (list, tuple):
                raise Malformed("chunk")
            items += chunk
        return tuple(items) if self.data[1:2] == b"(" else items

    def hash(self, count: int) -> None:
        self.hashed += count
        if self.hashed > self.most.hashed:
            raise Malformed("too many elements")

    def pairs(self, depth: int) -> Iterator[tuple[Any, Any]]:
        while self.data[self.at : self.at + 1] != b"0":
            self.hash(1)
            yield self.value(depth + 1), self.value(depth + 1)
        self.at += 1

    def tuple(self, depth: int) -> Any:
        items = tuple(self.value(depth + 1) for _ in range(self.count(1)))
        if items[:1] == (StopIteration,):
            self.opaque += 1
            if len(items) == 3 and type(items[2]) is list:
                return Items(items[2])
            return Opaque(str(items[1])) if len(items) == 2 else Opaque("?")
        return items


_CONSTANTS = {b"N": None, b"T": True, b"F": False, b".": Ellipsis, b"S": StopIteration}


def _integer(digits: tuple[int, ...]) -> int:
    """The number of these 15-bit digits, lowest first; halving keeps a long one's cost near linear."""
    if len(digits) <= 64:
        return sum(digit << (15 * place) for place, digit in enumerate(digits))
    half = len(digits) // 2
    return _integer(digits[:half]) + (_integer(digits[half:]) << (15 * half))


def decode(data: bytes, most: Size) -> tuple[Any, Size]:
    """The output that `data`, a payload of kind VALUE, encodes, and its size.

    Args:
        most: more is not read. It bounds the time, which is linear in the values but not in the elements of sets and
            dictionaries: integers can be chosen to share a hash, and a set of n of those takes n² steps to build.

    Raises:
        Malformed: anything else than an output, or one past the bounds.
    """
    reader = _Reader(data, most)
    try:
        if data[:1] == CHUNKED:
            value = reader.chunks()
        else:
            value = reader.value()
    except (struct.error, TypeError, UnicodeDecodeError) as error:  # TypeError: an unhashable element
        raise Malformed(str(error)) from None
    if reader.at != len(data):
        raise Malformed("more than one")
    return value, Size(reader.values, reader.hashed, reader.opaque)
