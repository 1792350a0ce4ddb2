"""A process of its own for reasoning-gym: `make` writes a set of questions, `score` answers requests until its end.

Both run with PYTHONHASHSEED=0, which some generators' questions depend on. Scorers run here because they are code of
the package that takes what a model wrote: a few call `eval` on it, others compute for ever on `9**9**9**9`. The parent
sets them a time limit and kills; this side limits memory and forbids writing, processes and sockets. That stops
accidents and the obvious, not a determined attack.
"""

import hashlib
import json
import os
import pickle
import random
import resource
import sys
from typing import Any, BinaryIO

CHUNK = 1_000  # some generators make their items for a whole set at once, so its size must not depend on what is asked
STRIDE = 1_000_003  # between the streams of two seeds: items are made from seed + position
TEST_SHARE = 4  # one question in four is a test question
MEMORY = 4 * 2**30  # bytes of address space
NONSENSE = "no such answer"  # what no scorer may give full marks

_FORBIDDEN = ("subprocess.", "socket.", "shutil.", "ctypes.", "pty.", "webbrowser.") + tuple(
    f"os.{call}"
    for call in "system exec fork forkpty posix_spawn spawn startfile kill killpg remove rename rmdir mkdir link "
    "symlink chmod chown truncate putenv unsetenv setxattr removexattr".split()
)


def split_of(question: str) -> str:
    """The half that a question belongs to: a pure function of its text, so no seed moves it."""
    digest = hashlib.sha256(question.encode()).digest()
    return "test" if int.from_bytes(digest[:8]) % TEST_SHARE == 0 else "train"


def make(generator: str, seed: int, sizes: dict[str, int]) -> dict[str, list[tuple[int, dict[str, Any]]]]:
    """Different items of each split, with their positions in the generator's stream; fewer where it has no more.

    A larger size begins with a smaller one's items, whatever the other split's size.
    """
    import numpy
    from reasoning_gym import create_dataset

    random.seed(seed)  # a few generators draw from the global ones
    numpy.random.seed(seed % 2**32)
    found: dict[str, list[tuple[int, dict[str, Any]]]] = {"train": [], "test": []}
    seen: set[str] = set()
    tries = 200 + 20 * sum(sizes.values())
    for position in range(tries):
        if all(len(found[split]) >= size for split, size in sizes.items()):
            break
        if position % CHUNK == 0:
            base = (seed * STRIDE + position) % 2**31
            dataset = create_dataset(generator, seed=base, size=CHUNK)
        item = dataset[position % CHUNK]
        split = split_of(item["question"])
        if item["question"] not in seen and len(found[split]) < sizes[split]:
            found[split].append((position, item))
        seen.add(item["question"])
    return found


def made(generator: str, seed: int, train: int, test: int) -> dict[str, Any]:
    """The package's generators as `known`, and what `make` returns for one of them; `error` where that one failed."""
    from reasoning_gym.factory import DATASETS

    result: dict[str, Any] = {"known": sorted(DATASETS)}
    if generator in DATASETS:
        try:
            result |= make(generator, seed, {"train": train, "test": test})
        except Exception as error:  # a generator is the package's code, and some need what they were not given
            result["error"] = " ".join(f"{type(error).__name__}: {error}".split())
    return result


def score_answer(scorer: Any, answer: str, entry: dict[str, Any]) -> float:
    """1.0 where the generator's own scorer gives full marks, else 0.0.

    A scorer that gives full marks to nonsense too has not read the answer; then it has to be the gold's text.
    """
    if scorer.score_answer(answer, entry) != 1:
        return 0.0
    gold = entry["answer"]
    if answer != gold and scorer.score_answer(NONSENSE, entry) == 1:
        return float(isinstance(gold, str) and answer.strip().casefold() == gold.strip().casefold())
    return 1.0


def serve(requests: BinaryIO, replies: BinaryIO) -> None:
    """Answers pickled (generator, answer, entry) by a line of JSON: {"score": ...} or {"error": ...}.

    The first line, once the package is imported, is {"ready": true}.
    """
    from reasoning_gym.factory import get_score_answer_fn

    scorers: dict[str, Any] = {}
    _forbid()
    reply: dict[str, Any] = {"ready": True}
    while True:
        replies.write(json.dumps(reply).encode() + b"\n")
        replies.flush()
        try:
            generator, answer, entry = pickle.load(requests)
        except EOFError:
            return
        try:
            if generator not in scorers:
                scorers[generator] = get_score_answer_fn(generator).__self__
            reply = {"score": score_answer(scorers[generator], answer, entry)}
        except BaseException as error:  # whatever a scorer does: it is reported, and never taken for a wrong answer
            reply = {"error": " ".join(f"{type(error).__name__}: {error}".split())[:200]}


def _forbid() -> None:
    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event.startswith(_FORBIDDEN):
            raise PermissionError(f"{event} is not allowed here")
        if event == "open" and (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            raise PermissionError("writing is not allowed here")

    sys.dont_write_bytecode = True
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.addaudithook(hook)


def main(argv: list[str]) -> None:
    """`make GENERATOR SEED TRAIN TEST FILE`, or `score` on standard input and output."""
    if argv[0] == "score":
        # Scorers may print, and exit() closes sys.stdin: only these two file objects lead to the parent.
        requests = os.fdopen(os.dup(sys.stdin.fileno()), "rb")
        replies = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        serve(requests, replies)
        return
    generator, seed, train, test, file = argv[1:]
    import reasoning_gym.factory  # noqa: F401  (it may need what is forbidden from here on)

    with open(file, "wb") as stream:
        _forbid()  # one generator runs the snippets that it asks about
        pickle.dump(made(generator, int(seed), int(train), int(test)), stream)


if __name__ == "__main__":
    main(sys.argv[1:])
