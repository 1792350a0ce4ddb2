"""data.max_prompt_length: longer questions are left out of both halves, counted, and said once."""

import pytest

from loop_rl.data import Example, Splits
from loop_rl.errors import UserError
from loop_rl.evaluation.task import Task, about_left_out, check_enough, short_enough
from loop_rl.recipe.rl import Recipe
from loop_rl.reward.reward import RewardSpec
from tests.evaluation.doubles import Characters


def task(train: list[int], test: list[int]) -> Task:
    """Questions of these lengths, one token a character."""
    halves = [[Example("x" * n, "1", index) for index, n in enumerate(lengths)] for lengths in (train, test)]
    return Task("mine", Splits(*halves), RewardSpec((("gsm8k", 1.0),)))


def test_longer_prompts_are_left_out_and_counted(caplog) -> None:
    kept = short_enough(task([3, 9, 4, 5], [5, 6, 1]), Characters(), 5)
    assert [len(one.prompt) for one in kept.splits.train] == [3, 4, 5]
    assert [one.index for one in kept.splits.test] == [0, 2]
    assert about_left_out(kept) == {"left_out": 1}
    (record,) = caplog.records
    assert record.getMessage() == (
        "data.max_prompt_length: questions of mine with more than 5 tokens are left out, 1 of 4 (train), 1 of 3 (test)"
    )


def test_without_a_limit_or_a_longer_prompt_nothing_is_said(caplog) -> None:
    every = task([3, 9], [5])
    assert short_enough(every, Characters(), None) is every and about_left_out(every) == {}
    assert about_left_out(short_enough(every, Characters(), 9)) == {"left_out": 0}
    assert not caplog.records


def test_a_limit_that_leaves_too_little_is_refused() -> None:
    with pytest.raises(UserError, match=r"max_prompt_length: all 2 prompts of mine \(test\) .* shortest 8; raise it"):
        short_enough(task([3], [9, 8]), Characters(), 7)
    held_out = short_enough(task([9], [3, 8]), Characters(), 7, ["test"])  # the others aren't asked
    assert len(held_out.splits.train) == len(held_out.splits.test) == 1 and held_out.left_out == 1
    with pytest.raises(UserError, match="prompts_per_step"):
        check_enough(short_enough(task([3, 9], [3]), Characters(), 7), Recipe(rollout={"prompts_per_step": 2}))
