"""Reference answers that the reward can't use, refused when they are loaded: no run should meet one later."""

import re
from collections.abc import Container, Sequence
from pathlib import Path

from loop_rl.data.examples import Placed
from loop_rl.data.named.mbpp_plus import FILE
from loop_rl.errors import UserError

MBPP_PLUS = ("mbpp_plus", "mbpp_plus_share")  # the rewards that score by MBPP+'s tests


def check_golds(examples: Sequence[Placed], reward: str, tests: Path | None) -> None:
    """Refuses the first example whose answer the reward can't use.

    Args:
        examples: what was loaded.
        reward: the name of a known reward; anything else (a user's function) takes whatever it gets.
        tests: the file that MBPP+'s rewards take their tests from.

    Raises:
        UserError: naming the row, what it has, and what is wanted.
    """
    if not examples:
        return
    if reward in ("gsm8k", "gsm8k_strict"):
        _numbers(examples)
    elif reward == "math500":
        _mathematics(examples)
    elif reward == "choice":
        _letters(examples)
    elif reward in MBPP_PLUS:
        _tasks(examples, reward, tests)


def _numbers(examples: Sequence[Placed]) -> None:
    from rewards.gsm8k import parse_gold

    for one in examples:
        answer = one.example.answer
        if parse_gold(answer) is None:
            raise UserError(
                f"{one.place}: no number in the answer {answer[-40:]!r}; end it with '#### N', or give N alone"
            )


def _mathematics(examples: Sequence[Placed]) -> None:
    from rewards.math500 import check_gold

    for one, reason in zip(examples, check_gold([one.example.answer for one in examples]), strict=True):
        if reason is not None:
            raise UserError(f"{one.place}: the answer {one.example.answer[-40:]!r} is not usable ({reason})")


def _letters(examples: Sequence[Placed]) -> None:
    for one in examples:
        options = one.example.columns.get("options")
        last = chr(ord("A") + len(options) - 1) if isinstance(options, list) and options else "Z"
        if not re.fullmatch(f"[A-{last}]", one.example.answer):
            raise UserError(f"{one.place}: the answer must be one letter, A to {last}, got {one.example.answer[:40]!r}")


def _tasks(examples: Sequence[Placed], reward: str, tests: Path | None) -> None:
    known = tasks_with_tests(tests)
    for one in examples:
        task = one.example.columns.get("task_id")
        if task is None:
            raise UserError(f"{one.place}: the reward {reward} needs a column task_id, such as Mbpp/2")
        if task not in known:
            raise UserError(f"{one.place}: {tests} has no tests for task_id {str(task)[:40]!r}")


def tasks_with_tests(tests: Path | None) -> Container[str]:
    """The ids of the tasks that MBPP+'s file has tests for; UserError where there is no file, or it is no such."""
    from rewards.mbpp_plus import load_tasks

    if tests is None:
        raise UserError(
            f"reward.name: MBPP+'s tests are not here: set data.folder or LOOP_RL_DATA to the folder of {FILE} (or "
            ".gz), or MBPP_OVERRIDE_PATH to the file; to get it: loop-rl data fetch mbpp_plus --to FOLDER"
        )
    try:
        return load_tasks(tests)
    except ValueError as error:
        raise UserError(str(error)) from None
