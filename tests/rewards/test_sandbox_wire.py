"""Outputs as data: what is written and read again, against marshal's own reading and against hostile bytes."""

import marshal
import math
import random
import struct
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from decimal import Decimal
from enum import IntEnum
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rewards.sandbox.inside import encode as inside
from rewards.sandbox.wire import UNBOUNDED, Items, Malformed, Opaque, Size, decode

ATOMS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(2**500), 2**500),
    st.floats(allow_nan=False),
    st.complex_numbers(allow_nan=False),
    st.text(st.characters(exclude_categories=())),
    st.binary(),
    st.just(...),
)
HASHABLE = st.recursive(ATOMS, lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3), max_leaves=6)
DATA = st.recursive(
    ATOMS | HASHABLE | st.sets(HASHABLE, max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(HASHABLE, inner, max_size=4) | st.tuples(inner),
    max_leaves=12,
)


def sent(value):
    kind, payload = inside.encode(value)
    assert kind == inside.VALUE
    return decode(payload, UNBOUNDED)[0]


def same(one, other):
    """Equal, and of the same types all through."""
    if type(one) is not type(other):
        return False
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return same([*one.items()], [*other.items()])
    if isinstance(one, float):
        return struct.pack("<d", one) == struct.pack("<d", other)
    return one == other


@given(DATA)
def test_data_arrives_as_it_was_sent(value):
    assert same(sent(value), value)
    assert same(sent(value), marshal.loads(inside.encode(value)[1]))


@given(st.recursive(ATOMS, lambda inner: st.lists(inner, max_size=4) | st.tuples(inner, inner), max_leaves=12))
def test_equal_data_gives_equal_bytes(value):
    copy, again = (marshal.loads(marshal.dumps(value)) for _ in range(2))
    assert inside.encode([value, value]) == inside.encode([copy, again])  # whether parts are shared or not


@given(st.binary(max_size=60))
@settings(max_examples=400)
def test_any_bytes_are_read_or_refused(data):
    try:
        decode(data, Size(100, 10))
    except Malformed:
        pass


@given(DATA, st.randoms())
def test_damaged_outputs_are_read_or_refused(value, random_: random.Random):
    payload = bytearray(inside.encode(value)[1])
    payload[random_.randrange(len(payload))] = random_.randrange(256)
    try:
        decode(bytes(payload), Size(1000, 100))
    except Malformed:
        pass


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"[\xff\xff\xff\x7f",  # a list of 2**31 - 1
        b"[\xff\xff\xff\xff",
        b"[\x01\x00\x00\x00" * 500 + b"N",
        b"l\x00\x00\x00\x80",
        b"l\x01\x00\x00\x00\xff\xff",  # a digit of 16 bits
        b"u\x01\x00\x00\x00\xff",
        b"<\x01\x00\x00\x00[\x00\x00\x00\x00",  # a set of a list
        b"{[\x00\x00\x00\x00N0",
        b"{N",
        b"NN",
        b"C",
        b"C[N",
        b"r\x00\x00\x00\x00",
        marshal.dumps(compile("0", "x", "eval"), 2),
        marshal.dumps("text", 4),
    ],
)
def test_what_is_no_output_is_refused(payload):
    with pytest.raises(Malformed):
        decode(payload, UNBOUNDED)


def test_more_than_expected_is_not_read():
    ones = inside.encode([1] * 50)[1]
    assert decode(ones, Size(51, 0)) == ([1] * 50, Size(51, 0, 0))
    with pytest.raises(Malformed):
        decode(ones, Size(50, 0))
    colliding = inside.encode({place * (2**61 - 1) for place in range(20)})[1]
    assert decode(colliding, Size(100, 20))[1] == Size(21, 20, 0)
    with pytest.raises(Malformed):
        decode(colliding, Size(100, 19))


def test_long_integers_are_read_in_bounded_time():
    value = 7**100_000
    assert sent(value) == value and sent(-value) == -value


def test_subclasses_become_the_builtin_they_hold():
    class Lying(int):
        def __eq__(self, other):
            return True

        def __int__(self):
            return 5

        def __index__(self):
            return 5

        __hash__ = int.__hash__

    class Loop(list):
        def __iter__(self):
            raise RuntimeError

    pair = namedtuple("pair", "a b")
    enumeration = IntEnum("enumeration", {"one": 1})
    values = [
        Lying(3),
        Loop([1]),
        pair(1, "x"),
        enumeration.one,
        Counter("aab"),
        OrderedDict(x=1),
        defaultdict(int, a=2),
    ]
    plain = [3, [1], (1, "x"), 1, {"a": 2, "b": 1}, {"x": 1}, {"a": 2}]
    assert same(sent(values), plain)
    assert same(sent([Fraction(6, 3), Fraction(1, 2), Decimal("0.5"), Decimal(7)]), [2, 0.5, 0.5, 7])
    assert same(sent({1: 2}.keys()), {1})


def test_numpys_scalars_become_numbers():
    numpy = pytest.importorskip("numpy")
    assert same(sent([numpy.float64(0.5), numpy.int64(3), numpy.bool_(True)]), [0.5, 3, True])
    assert isinstance(sent(numpy.array([1, 2])), Opaque)


def test_what_is_no_data_equals_nothing():
    for value in (object(), print, Fraction(1, 3), open, type, bytearray):
        output = sent(value)
        assert isinstance(output, Opaque) and output != value and output is not None
    for value in (range(3), iter([0, 1, 2]), deque([0, 1, 2]), {0: 0, 1: 1, 2: 2}.values(), (x for x in range(3))):
        output = sent(value)
        assert isinstance(output, Items) and list(output) == [0, 1, 2] and output != [0, 1, 2]


def test_an_output_that_holds_itself_ends():
    value = []
    value.append(value)
    assert isinstance(sent(value), list)


def test_long_lists_are_written_in_parts_and_longer_ones_as_digests():
    for value in (list(range(10_000)), tuple(map(str, range(10_000)))):
        assert same(sent(value), value)
    value = [str(place) * 20 for place in range(200_000)]
    kind, digest = inside.encode(value)
    assert kind == inside.DIGEST and len(digest) == 32
    assert inside.encode(list(value)) == (kind, digest)
    assert inside.encode(value[:-1] + ["x"]) != (kind, digest)
    assert inside.encode(tuple(value)) != (kind, digest)
    assert inside.encode("x" * (17 << 20))[0] == inside.DIGEST


def test_not_a_number_is_sent():
    assert math.isnan(sent(math.nan)) and sent(-0.0) == 0 and math.copysign(1, sent(-0.0)) == -1
