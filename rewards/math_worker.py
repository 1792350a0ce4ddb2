"""The process that judges answers: reads pairs from standard input, one JSON line each, and writes verdicts.

It never outlives its caller: it ends with its input, when its parent changes, and, while it computes, when the alarm
that guards every pair goes off. The alarm's action is the system's default, which ends the process inside any C code.
"""

import contextlib
import json
import os
import resource
import select
import signal
import sys
from functools import lru_cache

from rewards.latex_tokens import Unreadable
from rewards.math_answer import read
from rewards.math_equal import equal
from rewards.math_kinds import Answer, Group, Named, Words

MEMORY_LIMIT = 2 * 1024**3  # bytes of address space
MOST_WORDS = 5  # of a reference that is text; more is a sentence, which no completion would match
DEEPEST_STACK = 3000
LONGEST_REASON = 100  # characters

# what SymPy raises for mathematics that it can't do; the reason given says which it was
_SYMPY_ERRORS = (ArithmeticError, TypeError, ValueError, NotImplementedError, AttributeError, RecursionError)

PROBLEM, CORRECT, WRONG = "problem", "correct", "wrong"


@lru_cache(maxsize=2048)
def read_gold(gold: str) -> Answer:
    """The reference's answer.

    Raises:
        Unreadable: it is no mathematics, or a sentence.
    """
    answer = read(gold)
    if _words(answer) > MOST_WORDS:
        raise Unreadable("a sentence")
    return answer


def _words(answer: Answer) -> int:
    if isinstance(answer, Words):
        return len(answer.words.split())
    if isinstance(answer, Named):
        return _words(answer.value)
    return sum(map(_words, answer.items)) if isinstance(answer, Group) else 0


def judge(gold: str, answer: str) -> tuple[str, str]:
    """`problem` and why for a gold that can't be read, else `correct` or `wrong` and why."""
    try:
        expected = read_gold(gold)
    except Unreadable as error:
        return PROBLEM, str(error)
    except _SYMPY_ERRORS as error:
        return PROBLEM, type(error).__name__
    try:
        given = read(answer)
    except Unreadable as error:
        return WRONG, f"cannot be read ({error})"
    except _SYMPY_ERRORS as error:
        return WRONG, f"cannot be read ({type(error).__name__})"
    try:
        return (CORRECT if equal(expected, given) else WRONG), ""
    except _SYMPY_ERRORS as error:
        return WRONG, f"cannot be compared ({type(error).__name__})"


def main(time_limit: float) -> None:
    """Answers requests until there are no more, after one line that says whether a known pair is judged right."""
    parent = os.getppid()
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    limit = MEMORY_LIMIT if hard == resource.RLIM_INFINITY else min(MEMORY_LIMIT, hard)
    with contextlib.suppress(ValueError):  # a system that knows no such limit
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    sys.setrecursionlimit(DEEPEST_STACK)
    known = judge("\\frac{3}{8}", "\\sqrt{0.140625}")[0], judge("\\sqrt{2}", "1.4142135623")[0]
    print(json.dumps(known == (CORRECT, WRONG)), flush=True)
    buffer = b""
    while os.getppid() == parent:
        if not select.select([0], [], [], 2)[0]:
            continue
        received = os.read(0, 1 << 16)
        if not received:
            return
        buffer += received
        while b"\n" in buffer:
            line, _, buffer = buffer.partition(b"\n")
            signal.setitimer(signal.ITIMER_REAL, time_limit)
            try:
                verdict = judge(*json.loads(line))
            except MemoryError:
                os._exit(1)  # what is left of the memory is not to be trusted
            signal.setitimer(signal.ITIMER_REAL, 0)
            print(json.dumps([verdict[0], verdict[1][:LONGEST_REASON]]), flush=True)
