"""Reward functions by name, and their scores checked: TRL's signature, `f(prompts, completions, completion_ids, ...)`.

A function that fails, or returns something else than one number or None a completion, is an error: taken for a
reward of 0 it would teach the model that its answers were wrong.
"""

from __future__ import annotations

import importlib
import math
import os
import sys
from collections.abc import Callable, Sequence

from loop_rl.data import Example
from loop_rl.errors import UserError
from loop_rl.recipe import REWARDS

RewardFunction = Callable[..., Sequence[float | None]]


def load_reward(name: str) -> RewardFunction:
    """`gsm8k`, or `module:function` importable from here or the current folder; UserError if it is neither."""
    if name in REWARDS:
        return getattr(importlib.import_module(f"rewards.{name}"), f"{name}_reward")
    module_name, colon, function_name = name.partition(":")
    if not colon:
        raise UserError(f"reward.name: unknown reward {name!r}; use {', '.join(REWARDS)}, or module:function")
    if os.getcwd() not in sys.path:  # an installed command doesn't look where it is called
        sys.path.append(os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # importing runs the user's module, which may fail in any way
        cause = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(f"reward.name: can't import {module_name} for {name} ({cause})") from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise UserError(f"reward.name: {module_name} has no function {function_name}")
    return function


def score(
    function: RewardFunction, examples: Sequence[Example], completions: Sequence[str], ids: Sequence[list[int]]
) -> list[float | None]:
    """One reward for each completion, with its example beside it; None: not scored.

    Raises UserError for a function that raises, or whose answer is not one finite number or None each.
    """
    name = getattr(function, "__name__", repr(function))
    try:
        rewards = function(
            prompts=[example.prompt for example in examples],
            completions=list(completions),
            completion_ids=list(ids),
            answer=[example.answer for example in examples],
        )
    except Exception as error:
        cause = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(f"the reward function {name} failed ({cause}); no reward was made up for it") from error
    try:
        rewards = [None if reward is None else float(reward) for reward in rewards]
    except (TypeError, ValueError) as error:
        raise UserError(f"the reward function {name} must return numbers or None ({error})") from error
    if len(rewards) != len(completions):
        raise UserError(
            f"the reward function {name} returned {len(rewards)} rewards for {len(completions)} completions"
        )
    for reward in rewards:
        if reward is not None and not math.isfinite(reward):
            raise UserError(f"the reward function {name} returned {reward}; use None for what can't be scored")
    return rewards
