"""Reward functions by name, and their scores checked: TRL's signature, `f(prompts, completions, completion_ids, ...)`.

A function that fails, or returns something else than one number or None a completion, is an error: taken for a
reward of 0 it would teach the model that its answers were wrong.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import io
import itertools
import math
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from loop_rl.data import Example
from loop_rl.errors import UserError, type_and_message
from loop_rl.recipe.reward import REWARDS
from loop_rl.reward.undisturbed import undisturbed

RewardFunction = Callable[..., Sequence[float | None]]

# Known rewards that share a module with another.
_MODULES = {"gsm8k_strict": "gsm8k", "mbpp_plus_share": "mbpp_plus"}


class RewardError(UserError):
    """A reward function that raised; `details` are lines for who wrote it: traceback, row, what it printed."""

    def __init__(self, message: str, details: str) -> None:
        super().__init__(message)
        self.details = details


_MAX_TRACE = 20_000  # characters
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
        with undisturbed():
            module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # importing runs the user's module, which may fail in any way
        raise UserError(f"reward.name: can't import {module_name} for {name} ({type_and_message(error)})") from error
    function = getattr(module, function_name, None)
    if not callable(function):
        file = getattr(module, "__file__", None) or "built in"
        raise UserError(
            f"reward.name: {module_name} ({file}) has no function {function_name}; if yours is another, rename it"
        )
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


def call_reward(
    function: RewardFunction, examples: Sequence[Example], completions: Sequence[str], ids: Sequence[list[int]]
) -> tuple[list[float | None], list[str] | None]:
    """One reward for each completion, with its example beside it, and the function's reasons; None: not scored.

    The function gets the answers and the examples' columns by name, and log_extra, of which the column `reason` is
    read (None where it says nothing). What it has no parameter for is left out.

    Raises:
        RewardError: a function that raises anything but KeyboardInterrupt (which is the user's).
        UserError: one whose answer is not one finite number or None each.
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

    def call(rows: Sequence[int]) -> list[Any]:
        """The function's answer for some of the rows; a generator that goes on for ever is read no further than due."""
        with undisturbed():
            answer = function(
                prompts=[examples[row].prompt for row in rows],
                completions=[completions[row] for row in rows],
                completion_ids=[ids[row] for row in rows],
                **{
                    key: [value[row] for row in rows] if key in columns or key == "answer" else value
                    for key, value in given.items()
                },
            )
            if inspect.iscoroutine(answer):
                answer.close()  # or Python warns of it later
                raise UserError(f"the reward function {name} is async, and nothing awaits it; make it a plain def")
            if isinstance(answer, str | bytes | Mapping) or not isinstance(answer, Iterable):
                raise UserError(
                    f"the reward function {name} must return a list of numbers or None; it returned {_brief(answer)}"
                )
            return list(itertools.islice(answer, len(rows) + 1))

    try:
        returned = call(range(len(completions)))
    except (UserError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise _failure(name, error, call, examples, completions) from error
    rewards = [_number(name, reward) for reward in returned]
    reasons = [_storable(reason) for reason in extra["reason"]] if "reason" in extra else None
    for what, values in (("rewards", rewards), ("reasons", reasons)):
        if values is not None and len(values) != len(completions):
            more = "more than " if what == "rewards" and len(values) > len(completions) else ""
            count = len(completions) if more else len(values)
            raise UserError(
                f"the reward function {name} returned {more}{count} {what} for {len(completions)} completions"
            )
    return rewards, reasons


def _number(name: str, reward: Any) -> float | None:
    if reward is None:
        return None
    try:
        if isinstance(reward, str | bytes):
            raise TypeError("text is no number")
        number = float(reward)
    except Exception as error:  # arrays, tensors and the user's own classes fail in any way
        raise UserError(
            f"the reward function {name} must return numbers or None, one for each completion; one of them is "
            f"{_brief(reward)} ({type_and_message(error)})"
        ) from error
    if not math.isfinite(number):
        raise UserError(f"the reward function {name} returned {number}; use None for what can't be scored")
    return number


def _failure(
    name: str,
    error: BaseException,
    call: Callable[[Sequence[int]], Any],
    examples: Sequence[Example],
    completions: Sequence[str],
) -> RewardError:
    """The error of a function that raised: its line, and the traceback from the user's code and the row beside it."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
        frames = frames.tb_next
    trace = "".join(traceback.format_exception(type(error), error, frames))
    last = traceback.extract_tb(frames)[-1:]
    row = _failing_row(error, call, len(completions))
    about = "no row fails alone; the first one" if row is None else "the row"
    shown = examples[row or 0], completions[row or 0]
    if len(trace) > _MAX_TRACE:
        trace = f"{trace[: _MAX_TRACE // 2]}\n[...]\n{trace[-_MAX_TRACE // 2 :]}"
    details = f"{trace}{about}: question {shown[0].prompt!r}, completion {shown[1]!r}, answer {shown[0].answer!r}"
    place = f" at {last[0].filename}:{last[0].lineno}" if last else ""
    return RewardError(
        f"the reward function {name} failed{place} ({type_and_message(error)}); no reward was made up for it", details
    )


def _failing_row(error: BaseException, call: Callable[[Sequence[int]], Any], rows: int) -> int | None:
    """The first row on which the function fails alike when it is called with that row alone."""
    for row in range(rows):
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                call([row])
        except KeyboardInterrupt:
            raise
        except BaseException as other:
            if type(other) is type(error):
                return row
    return None


def _storable(reason: Any) -> str:
    """A reason as text that UTF-8 can hold: half a character, which Python's texts may have, is written as its code."""
    return str(reason).encode("utf-8", "backslashreplace").decode("utf-8")


def _brief(value: Any) -> str:
    try:
        text = " ".join(repr(value).split())
    except Exception:  # a huge integer has no text; a user's class may have none either
        text = ""
    return f"{type(value).__name__} {text[:60]}".strip()


def _parameters(function: RewardFunction) -> tuple[dict[str, inspect.Parameter], bool]:
    """The named parameters of a function, and whether it takes any others too."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a callable that does not say
        return {}, True
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    named = {name: one for name, one in signature.parameters.items() if one.kind not in kinds}
    return named, any(one.kind is inspect.Parameter.VAR_KEYWORD for one in signature.parameters.values())
