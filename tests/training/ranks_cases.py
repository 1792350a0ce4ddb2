"""What tests/training/test_ranks.py asks of two ranks, each case in two forked processes without a model.

`python ranks_cases.py` prints, as JSON, the exit codes and what the ranks wrote to stderr in each case.
"""

import json
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable

import numpy as np
import torch

from loop_rl.errors import UserError
from loop_rl.learner.exchange import deal, receive
from loop_rl.learner.ranks import Ranks, joined

CASES: dict[str, Callable[[Ranks], None]] = {}
LONG = 60.0  # a rank that is not ended from outside is late, and killed


def case(run: Callable[[Ranks], None]) -> None:
    CASES[run.__name__] = run


def follow(ranks: Ranks) -> None:
    while ranks.hear() != "end":
        pass


@case
def end_well(ranks: Ranks) -> None:
    """Parts of several kinds: arrays of any type, one shared by two objects, and an empty part."""
    array = np.arange(12, dtype=np.uint16).reshape(3, 4)
    part = {"a": array, "again": array, "half": torch.ones(3, dtype=torch.bfloat16), "empty": np.zeros((0, 4))}
    if ranks.main:
        ranks.tell("learn")
        assert deal(["mine", part], ranks.group) == "mine"
        time.sleep(1.0)  # a rollout: the other one waits
        ranks.tell("learn")
        deal([[], []], ranks.group)
        ranks.tell("end")
        return
    assert ranks.hear() == "learn"
    got = receive(ranks.group)
    assert got["a"] is got["again"] and (got["a"] == array).all() and got["a"].dtype == np.uint16
    assert got["half"].dtype == torch.bfloat16 and got["empty"].shape == (0, 4)
    assert ranks.hear() == "learn" and receive(ranks.group) == []
    assert ranks.from_main(lambda: "not on this rank") == "end"


@case
def main_fails(ranks: Ranks) -> None:
    if ranks.main:
        raise UserError("the main rank's\nfault")
    follow(ranks)


@case
def other_fails(ranks: Ranks) -> None:
    if not ranks.main:
        raise ValueError("a bug")
    time.sleep(LONG)


@case
def both_fail(ranks: Ranks) -> None:
    raise UserError("a recipe that all ranks refuse")


@case
def fails_in_a_collective(ranks: Ranks) -> None:
    if ranks.main:
        torch.distributed.all_reduce(torch.ones(1))
        raise UserError("out of memory on one rank")
    torch.distributed.all_reduce(torch.ones(1))
    torch.distributed.all_reduce(torch.ones(1))


@case
def other_is_killed(ranks: Ranks) -> None:
    if not ranks.main:
        os.kill(os.getpid(), signal.SIGKILL)
    ranks.tell("learn")
    deal([np.ones(10**6), np.ones(10**6)], ranks.group)
    torch.distributed.all_reduce(torch.ones(1))


@case
def other_is_asked_to_stop(ranks: Ranks) -> None:
    """As when one node of a cluster is drained."""
    if ranks.main:
        ranks.from_main(lambda: "following")
        time.sleep(LONG)
    ranks.pass_signals_on()
    ranks.hear()
    os.kill(os.getpid(), signal.SIGTERM)
    follow(ranks)


def start(name: str) -> tuple[list[int], list]:
    """Fork the two ranks of a case; returns their process ids and the files that take what they write to stderr."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    children, files = [], [tempfile.TemporaryFile() for _ in range(2)]
    for rank in range(2):
        child = os.fork()
        if child == 0:
            os.dup2(files[rank].fileno(), 2)
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
            os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
            code = 0
            try:
                with joined() as ranks:
                    CASES[name](ranks)
            except SystemExit as end:
                code = end.code
            sys.stderr.flush()
            os._exit(code)
        children.append(child)
    return children, files


def outcome(children: list[int], files: list, deadline: float) -> dict[str, list]:
    codes = []
    for child in children:
        while not (done := os.waitpid(child, os.WNOHANG))[0] and time.monotonic() < deadline:
            time.sleep(0.02)
        if not done[0]:
            os.kill(child, signal.SIGKILL)
            done = os.waitpid(child, 0)
        codes.append(os.waitstatus_to_exitcode(done[1]))
    texts = []
    for file in files:
        file.seek(0)
        texts.append([line for line in file.read().decode().splitlines() if "[c10d]" not in line])
    return {"codes": codes, "stderr": texts}


if __name__ == "__main__":
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    started = {name: start(name) for name in CASES}
    deadline = time.monotonic() + LONG / 2
    print(json.dumps({name: outcome(*ranks, deadline) for name, ranks in started.items()}))
