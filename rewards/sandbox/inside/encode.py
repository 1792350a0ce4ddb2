"""Outputs as plain data: marshal's version 2, which is written at the speed of C and read by `rewards.sandbox.wire`.

Equal outputs of exact builtin types give equal bytes (dictionaries and sets in their own order). Subclasses become the
builtin they hold; what is no data becomes a marker, a tuple that begins with the class StopIteration.
"""

import marshal
import sys
from itertools import islice

VALUE, DIGEST = b"V", b"D"
LARGEST_VALUE = 16 << 20  # bytes; a longer output is sent as its digest
CHUNK = 4096  # elements of a long list or tuple that are written at a time, so that it isn't held twice
CHUNKED = b"C"  # first byte of an output written so; no code of marshal's
_LONGEST_ITERATOR = 100_000  # items
_DEEPEST = 100


def encode(value: object) -> tuple[bytes, bytes]:
    """The kind (VALUE or DIGEST) and the payload of an output."""
    if type(value) in (list, tuple) and len(value) > CHUNK:
        head = CHUNKED + (b"[" if type(value) is list else b"(")
        parts = [head]
        size, chunks = len(head), (_dumps(value[start : start + CHUNK]) for start in range(0, len(value), CHUNK))
        for chunk in chunks:
            parts.append(chunk)
            size += len(chunk)
            if size > LARGEST_VALUE:
                return DIGEST, _digest(parts, chunks)
        return VALUE, b"".join(parts)
    payload = _dumps(value)
    return (VALUE, payload) if len(payload) <= LARGEST_VALUE else (DIGEST, _digest([payload], ()))


def _digest(parts: list[bytes], rest: object) -> bytes:
    from hashlib import blake2b  # expensive to import, seldom needed

    digest = blake2b(digest_size=32)
    while parts:
        digest.update(parts.pop(0))
    for part in rest:
        digest.update(part)
    return digest.digest()


def _dumps(value: object) -> bytes:
    if "numpy" in sys.modules:  # marshal takes numpy's scalars and arrays for bytes
        return marshal.dumps(_plain(value), 2)
    try:
        return marshal.dumps(value, 2)
    except ValueError:  # something in it is no exact builtin, or it is nested too deeply
        return marshal.dumps(_plain(value), 2)


def _plain(value: object, depth: int = 0) -> object:
    """The value in exact builtin types, with markers for what is no data."""
    kind = type(value)
    if value is None or value is Ellipsis or kind in (bool, int, float, complex, str, bytes):
        return value
    if depth > _DEEPEST:
        return _marker("deep")
    depth += 1
    for base in (int, float, complex):
        if issubclass(kind, base):
            return base.__pos__(value)
    if issubclass(kind, str):
        return str.__str__(value)
    for base in (list, tuple):
        if issubclass(kind, base):
            return base(_plain(item, depth) for item in base.__iter__(value))
    for base in (set, frozenset):
        if issubclass(kind, base):
            return base(_plain(item, depth) for item in base.__iter__(value))
    if issubclass(kind, dict):
        return {_plain(key, depth): _plain(item, depth) for key, item in dict.items(value)}
    from collections.abc import ItemsView, Iterator, KeysView, ValuesView  # expensive to import, seldom needed

    if isinstance(value, KeysView | ItemsView):  # they equal sets
        return {_plain(item, depth) for item in value}
    if isinstance(value, Iterator | ValuesView | range) or kind.__name__ == "deque":
        return _marker("iterable", [_plain(item, depth) for item in islice(value, _LONGEST_ITERATOR)])
    return _number(value, kind)


def _number(value: object, kind: type) -> object:
    """Numbers of the libraries, which equal the builtin ones of the same value; else a marker."""
    if kind.__module__ == "numpy" and hasattr(value, "item") and getattr(value, "shape", None) == ():
        return value.item()
    if (kind.__module__, kind.__name__) in (("fractions", "Fraction"), ("decimal", "Decimal")):
        for convert in (int, float):
            if convert(value) == value:
                return convert(value)
    return _marker(kind.__name__)


def _marker(name: str, *content: object) -> tuple:
    return (StopIteration, name, *content)
