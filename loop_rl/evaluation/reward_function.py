"""Reward functions by name, and their scores checked: TRL's signature, `f(prompts, completions, completion_ids, ...)`.

A function that fails, or returns something else than one number or None a completion, is an error: taken for a
reward of 0 it would teach the model that its answers were wrong.
"""

from __future__ import annotations

import importlib
import inspect
import math
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from loop_rl.data import Example
from loop_rl.errors import UserError
from loop_rl.recipe import REWARDS

RewardFunction = Callable[..., Sequence[float | None]]

# Known rewards that share a module with another.
_MODULES = {"gsm8k_strict": "gsm8k", "mbpp_plus_share": "mbpp_plus"}
_ALWAYS = ("prompts", "completions", "completion_ids")


def load_reward(name: str) -> RewardFunction:
    """`gsm8k` and the like, or `module:function` importable from here or the current folder; UserError if neither."""
    if name in REWARDS:
        return getattr(importlib.import_module(f"rewards.{_MODULES.get(name, name)}"), f"{name}_reward")
    module_name, colon, function_name = name.partition(":")
    if not colon:
        raise UserError(f"reward.name: unknown reward {name!r}; use {', '.join(REWARDS)}, or module:function")
    if os.getcwd() not in sys.path:  # an installed command doesn't look where it is called
        sys.path.append(os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # importing runs the user's module, which may fail in any way
        raise UserError(f"reward.name: can't import {module_name} for {name} ({cause_of(error)})") from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise UserError(f"reward.name: {module_name} has no function {function_name}")
    return function


def check_columns(name: str, function: RewardFunction, example: Example) -> None:
    """UserError where the function can't be called without a column that the data set does not have."""
    parameters, _ = _parameters(function)
    given = {*_ALWAYS, "answer", "log_extra", "log_metric", *example.columns}
    for parameter in parameters.values():
        if parameter.default is parameter.empty and parameter.name not in given:
            raise UserError(
                f"the reward {name} needs the column {parameter.name!r}, which the data does not have; "
                f"it has {', '.join(sorted(('answer', *example.columns)))}"
            )


def score(
    function: RewardFunction, examples: Sequence[Example], completions: Sequence[str], ids: Sequence[list[int]]
) -> tuple[list[float | None], list[str] | None]:
    """One reward for each completion, with its example beside it, and the function's reasons; None: not scored.

    The function gets the answers and the examples' columns by name, and log_extra, of which the column `reason` is
    read (None where it says nothing). What it has no parameter for is left out.

    Raises:
        UserError: a function that raises, or whose answer is not one finite number or None each.
    """
    name = getattr(function, "__name__", repr(function))
    extra: dict[str, list[Any]] = {}
    names = dict.fromkeys(key for example in examples for key in example.columns)
    columns = {key: [example.columns.get(key) for example in examples] for key in names}
    given = {
        **columns,
        "answer": [example.answer for example in examples],
        "log_extra": lambda column, values: extra.setdefault(column, []).extend(values),
        "log_metric": lambda name, value: None,  # TRL's functions may call it
    }
    parameters, takes_all = _parameters(function)
    given = {key: value for key, value in given.items() if takes_all or key in parameters}
    try:
        rewards = function(
            prompts=[example.prompt for example in examples],
            completions=list(completions),
            completion_ids=list(ids),
            **given,
        )
    except (Exception, SystemExit) as error:
        message = f"the reward function {name} failed ({cause_of(error)}); no reward was made up for it"
        raise UserError(message) from error
    try:
        rewards = [None if reward is None else float(reward) for reward in rewards]
    except (TypeError, ValueError, OverflowError) as error:
        raise UserError(f"the reward function {name} must return numbers or None ({error})") from error
    reasons = [str(reason) for reason in extra["reason"]] if "reason" in extra else None
    for what, values in (("rewards", rewards), ("reasons", reasons)):
        if values is not None and len(values) != len(completions):
            raise UserError(
                f"the reward function {name} returned {len(values)} {what} for {len(completions)} completions"
            )
    for reward in rewards:
        if reward is not None and not math.isfinite(reward):
            raise UserError(f"the reward function {name} returned {reward}; use None for what can't be scored")
    return rewards, reasons


def cause_of(error: BaseException) -> str:
    """An error's type and message in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def _parameters(function: RewardFunction) -> tuple[dict[str, inspect.Parameter], bool]:
    """The named parameters of a function, and whether it takes any others too."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a callable that does not say
        return {}, True
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    named = {name: one for name, one in signature.parameters.items() if one.kind not in kinds}
    return named, any(one.kind is inspect.Parameter.VAR_KEYWORD for one in signature.parameters.values())
