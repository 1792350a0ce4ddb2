"""Choices of questions: disjoint, seeded, and each within the next larger one, whatever the numbers."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loop_rl.data.examples import Example, Placed
from loop_rl.data.subsets import divide_pool, hold_out, subset
from loop_rl.errors import UserError


def examples(count):
    return [Example(f"{n}?", str(n), n) for n in range(count)]


def placed(questions):
    return [Placed(f"row {at}", question, Example("", "", at)) for at, question in enumerate(questions)]


def rows(chosen):
    return [example.index for example in chosen]


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 60), st.data(), st.integers(0, 2**40))
def test_a_subset_begins_the_larger_one(count, data, seed):
    small = data.draw(st.integers(0, count))
    large = data.draw(st.integers(small, count))
    pool = examples(count)
    whole = subset(pool, None, seed, "")
    assert subset(pool, small, seed, "") == subset(pool, large, seed, "")[:small] == whole[:small]
    assert sorted(rows(whole)) == list(range(count))
    assert pool == examples(count)  # the source keeps its order
    with pytest.raises(UserError, match=f"{count} questions, {count + 1} were"):
        subset(pool, count + 1, seed, "data.train_size: x")


@settings(max_examples=50, deadline=None)
@given(st.integers(2, 60), st.data(), st.integers(0, 2**40))
def test_a_pool_is_divided_without_overlap(count, data, seed):
    held_out = data.draw(st.integers(1, count))
    train = data.draw(st.integers(0, count))
    test = data.draw(st.integers(0, count - train))
    pool = examples(count)
    learn, hold = divide_pool(pool, train, test, held_out, seed, "x")
    assert (len(learn), len(hold)) == (train, test)
    assert not set(rows(learn)) & set(rows(hold))
    # Each half begins the larger ones, whatever the size of the other.
    most, none = divide_pool(pool, count, 0, held_out, seed, "x")
    nothing, all_held = divide_pool(pool, 0, count, held_out, seed, "x")
    assert (learn, hold) == (most[:train], all_held[:test]) and none == nothing == []
    with pytest.raises(UserError, match=f"{train} \\+ {count - train + 1} "):
        divide_pool(pool, train, count - train + 1, held_out, seed, "x")


@settings(max_examples=50, deadline=None)
@given(st.integers(2, 60), st.data(), st.integers(0, 2**40))
def test_an_open_size_of_a_pool_leaves_the_held_out_ones_alone(count, data, seed):
    held_out = data.draw(st.integers(1, count - 1))
    pool = examples(count)
    learn, hold = divide_pool(pool, None, None, held_out, seed, "x")
    assert (len(learn), len(hold)) == (count - held_out, held_out)
    assert sorted(rows(learn + hold)) == list(range(count))
    # What was trained on with an open size can't be asked for as held out later.
    with pytest.raises(UserError, match="one pool"):
        divide_pool(pool, None, held_out + 1, held_out, seed, "x")


@settings(max_examples=50, deadline=None)
@given(st.lists(st.text(max_size=3), max_size=40), st.integers(0, 40), st.randoms())
def test_what_is_held_out_depends_on_the_questions_alone(questions, count, rng):
    rest, held = hold_out(placed(questions), count)
    asked = {one.question for one in held}
    assert not asked & {one.question for one in rest}
    assert len(asked) == min(count, len(set(questions)))
    assert sorted(rows([one.example for one in rest + held])) == list(range(len(questions)))
    shuffled = questions[:]
    rng.shuffle(shuffled)
    assert {one.question for one in hold_out(placed(shuffled), count)[1]} == asked
    assert asked <= {one.question for one in hold_out(placed(questions), count + 1)[1]}
