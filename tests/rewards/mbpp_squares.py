"""A task of the tests' own, in MBPP+'s format, and what scores programs for it in either kind of sandbox."""

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from rewards import mbpp_plus
from rewards.code.scoring import shared
from rewards.sandbox.launch import Bubblewrap, Plain, bubblewraps
from rewards.sandbox.pool import SandboxPool
from rewards.sandbox.worker import SandboxError

MODES = ("bubblewrap", "plain")
SQUARES = "Mbpp/9001"  # f(n) is n squared plus 1
LONG = "Mbpp/9002"  # g(n): 4.5 MB of integers


def row(number: int, entry_point: str, solution: str, base: list, plus: list, atol: float = 0) -> dict:
    texts = {"prompt": "", "assertion": "", "entry_point": entry_point, "canonical_solution": solution}
    return {"task_id": f"Mbpp/{number}", "base_input": base, "plus_input": plus, "atol": atol, **texts}


ROWS = [
    row(9001, "f", "def f(n): return n * n + 1", [[3], [4]], [[7], [0], [256]]),
    row(9002, "g", "def g(n): return list(range(n, n + 900_000))", [[5]], []),
]


def write_tasks(folder: Path, rows: Sequence[dict] = ROWS) -> Path:
    path = folder / "tasks.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    return path


def make_pool(mode: str, folder: Path, workers: int = 2) -> SandboxPool:
    """A pool of this mode; skips the test where the machine has no bubblewrap that works."""
    if mode == "plain":
        return SandboxPool(Plain(folder), workers)
    programs = bubblewraps()
    if not programs:
        pytest.skip("bubblewrap is not installed")
    try:
        return SandboxPool(Bubblewrap(programs[0]), workers)
    except (OSError, SandboxError) as error:
        pytest.skip(f"bubblewrap does not work here: {error}")


@contextlib.contextmanager
def scoring(mode: str, folder: Path, workers: int = 2) -> Iterator[SandboxPool]:
    """Let the reward use a sandbox of this mode, the tasks in `folder`, and a cache in it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOOP_RL_CACHE", str(folder / "cache"))
        patch.setattr(mbpp_plus, "_scorer", mbpp_plus._Scorer())
        mbpp_plus.use_data(write_tasks(folder))
        mbpp_plus.close()  # another test's
        shared.pool = pool = make_pool(mode, folder, workers)
        try:
            yield pool
        finally:
            mbpp_plus.close()


def score(programs: Sequence[str], task: str = SQUARES, share: bool = False) -> list[tuple[float | None, str]]:
    """Reward and reason of each program, fenced."""
    function = mbpp_plus.mbpp_plus_share_reward if share else mbpp_plus.mbpp_plus_reward
    reasons: list[str] = []
    rewards = function(
        [""] * len(programs),
        [f"Here it is.\n```python\n{program}\n```" for program in programs],
        task_id=[task] * len(programs),
        log_extra=lambda name, values: reasons.extend(values),
    )
    return list(zip(rewards, reasons, strict=True))
