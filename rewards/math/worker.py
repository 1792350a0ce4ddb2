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
import traceback
from functools import lru_cache

from rewards.math.answer import read
from rewards.math.equal import equal
from rewards.math.kinds import Answer, Group, Named, Words
from rewards.math.tokens import TooLarge, Unreadable, tokenize

MEMORY_LIMIT = 2 * 1024**3  # bytes of address space
MAX_WORDS = 5  # of a reference that is text; more is a sentence, which no completion would match
_FOLDER = os.path.dirname(__file__) + os.sep
DEEPEST_STACK = 3000
LONGEST_REASON = 100  # characters

PROBLEM, CORRECT, WRONG, FAILED = "problem", "correct", "wrong", "failed"


@lru_cache(maxsize=2048)
def read_gold(gold: str) -> Answer:
    """The reference's answer.

    Raises:
        Unreadable: it is no mathematics, or a sentence.
    """
    answer = read(gold)
    if _words(answer) > MAX_WORDS:
        raise Unreadable("a sentence")
    return answer


def _words(answer: Answer) -> int:
    if isinstance(answer, Words):
        return len(answer.words.split())
    if isinstance(answer, Named):
        return _words(answer.value)
    return sum(map(_words, answer.items)) if isinstance(answer, Group) else 0


def judge(gold: str, answer: str) -> tuple[str, str]:
    """`problem` and why for a gold that can't be read, else `correct` or `wrong` and why.

    `failed` and why where that isn't known: an error in our own code, or a gold so large that only its own text can be
    told to be right.
    """
    try:
        expected = read_gold(gold)
    except TooLarge as error:
        same = _spelling(gold) == _spelling(answer)
        return (CORRECT, "") if same else (FAILED, f"the reference is compared with its own text only: {error}")
    except Unreadable as error:
        return PROBLEM, str(error)
    except MemoryError:
        raise
    except Exception as error:
        return PROBLEM, _where(error)
    doing = "read"
    try:
        given = read(answer)
        doing = "compared"
        return (CORRECT if equal(expected, given) else WRONG), ""
    except Unreadable as error:
        return WRONG, f"cannot be {doing} ({error})"
    except MemoryError:
        raise
    except Exception as error:  # SymPy raises many kinds for mathematics that it can't do
        return (FAILED if _is_ours(error) else WRONG), f"cannot be {doing} ({_where(error)})"


def _spelling(text: str) -> list[tuple[str, str]]:
    """A formula's tokens, without what only groups."""
    try:
        return [(token.kind, token.text) for token in tokenize(text) if token.text not in ("{", "}")]
    except Unreadable:
        return [("unread", " ".join(text.split()))]


def _is_ours(error: BaseException) -> bool:
    """Whether our own code raised it, and not SymPy for mathematics that it can't do; depth is a bound, no fault."""
    return _frames(error)[-1].filename.startswith(_FOLDER) and not isinstance(error, RecursionError)


def _where(error: BaseException) -> str:
    last = next(frame for frame in reversed(_frames(error)) if frame.filename.startswith(_FOLDER))
    return f"{type(error).__name__} in {last.filename.removeprefix(_FOLDER)}:{last.lineno}"


def _frames(error: BaseException) -> traceback.StackSummary:
    return traceback.StackSummary.extract(traceback.walk_tb(error.__traceback__), lookup_lines=False)


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
