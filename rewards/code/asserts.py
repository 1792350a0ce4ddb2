"""MBPP's reward: a program against the asserts of its row, without letting the program judge itself.

An assert inside the program's process is passed by an object that equals everything. So each `assert f(arguments) ==
expected` is read here: f is called in the sandbox with the arguments, and its output is compared here with the expected
literal, by Python's == on plain data. 967 of MBPP's 974 rows have only such tests; `mbpp_tests` tells them apart.

Limits: 4 s of CPU time and 1 GiB for all tests of a row.
"""

import ast
import marshal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from rewards.code.program import extract_program
from rewards.code.scoring import NO_ANSWER, Judge, Scored, score_all
from rewards.sandbox.inside.encode import VALUE
from rewards.sandbox.wire import Malformed, Size, decode
from rewards.sandbox.worker import Job, Limits, Worker
from rewards.text import completion_text

_MAX_SIZE = Size(100_000, 1024)  # of an output that is compared; MBPP's have far less


@dataclass(frozen=True)
class Tests:
    """A row's tests as data.

    Attributes:
        inputs: the arguments of each call.
        expected: what each call gives.
    """

    entry_point: str
    inputs: tuple[tuple[Any, ...], ...]
    expected: tuple[Any, ...]


def mbpp_tests(row: dict[str, Any]) -> Tests | None:
    """A row's tests as data, or None when one of them isn't `assert f(literals) == literal`, or it has set-up code.

    Args:
        row: of MBPP's file; its test_list and test_setup_code are read.
    """
    return None if row.get("test_setup_code") else _parse(tuple(row["test_list"]))


@lru_cache(maxsize=1024)
def _parse(asserts: tuple[str, ...]) -> Tests | None:
    names, inputs, expected = set(), [], []
    for text in asserts:
        try:
            [statement] = ast.parse(text.strip()).body
            match statement:
                case ast.Assert(ast.Compare(ast.Call(ast.Name(name), arguments, []), [ast.Eq()], [value])):
                    names.add(name)
                    inputs.append(tuple(map(ast.literal_eval, arguments)))
                    expected.append(ast.literal_eval(value))
                case _:
                    return None
        except (ValueError, SyntaxError, TypeError, RecursionError):
            return None
    return Tests(names.pop(), tuple(inputs), tuple(expected)) if len(names) == 1 else None


def _equal(expected: Any, payload: bytes) -> bool:
    try:
        return decode(payload, _MAX_SIZE)[0] == expected
    except (Malformed, RecursionError):
        return False


def _run(tests: Tests, code: str, worker: Worker) -> Scored:
    def matches(index: int, kind: bytes, payload: bytes) -> bool:
        return kind == VALUE and _equal(tests.expected[index], payload)

    judge = Judge(matches, "test {}".format, len(tests.inputs), share=False)
    encoded = [marshal.dumps(arguments, 2) for arguments in tests.inputs]
    ending = worker.run(Job(code, tests.entry_point, encoded), Limits(), judge.see)
    return judge.verdict(ending, tests.entry_point)


def _attempt(completion: Any, asserts: Sequence[str], setup: str) -> Callable[[Worker], Scored] | Scored:
    text, tests = completion_text(completion), mbpp_tests({"test_list": asserts, "test_setup_code": setup})
    if tests is None:
        return None, "not scored: a test is not of the form assert f(literals) == literal"
    code = extract_program(text, tests.entry_point)
    return NO_ANSWER if code is None else partial(_run, tests, code)


def mbpp_reward(
    prompts: Sequence[Any],
    completions: Sequence[str | Sequence[dict[str, Any]]],
    completion_ids: Sequence[Sequence[int]] | None = None,
    *,
    test_list: Sequence[Sequence[str]],
    test_setup_code: Sequence[str] | None = None,
    log_extra: Callable[[str, list[str]], None] | None = None,
    **columns: Any,
) -> list[float | None]:
    """1.0 when a completion's program passes all tests of its row, else 0.0; None when the row's tests can't be read.

    Args:
        prompts: not read; part of the signature.
        completions: strings, or lists of chat messages whose last one is scored.
        completion_ids: not read.
        test_list: a row's asserts each.
        test_setup_code: a row's set-up code each; rows that have some are not scored.
        log_extra: called with "reason" and a reason each, as by `mbpp_plus_reward`; inputs are "test 0", "test 1".
        columns: the data set's other columns; not read.

    Raises:
        ValueError: not as many tests as completions.
        TypeError: a completion that is neither text nor messages.
    """
    setups = [""] * len(completions) if test_setup_code is None else test_setup_code
    if not len(completions) == len(test_list) == len(setups):
        raise ValueError(f"test_list: {len(test_list)} for {len(completions)} completions")
    scored = score_all([_attempt(*row) for row in zip(completions, test_list, setups, strict=True)])
    if log_extra:
        log_extra("reason", [reason for _, reason in scored])
    return [reward for reward, _ in scored]
