"""The processes that judge answers: bounded, replaced, the same from everywhere, and gone afterwards."""

import asyncio
import builtins
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from rewards import math500
from rewards.math import pool as math_pool
from rewards.math import worker as math_worker
from rewards.math500 import check_gold, close, math500_reward, start

ROOT = Path(__file__).parents[2]
HANGS = "(n!)!"  # read at once, but compared at n = 20 or so
PAIRS = [("\\sqrt{12}", "2\\sqrt{3}", 1.0), ("\\sqrt{12}", "3\\sqrt{2}", 0.0), ("(1, 2]", "1 < x \\le 2", 1.0)]


def score(*pairs):
    return math500_reward(
        None, [f"\\boxed{{{answer}}}" for _, answer, *_ in pairs], answer=[gold for gold, *_ in pairs]
    )


def right():
    """Whether the known pairs are judged right, by workers and not from memory."""
    math500._verdicts.items.clear()
    return score(*PAIRS) == [expected for *_, expected in PAIRS]


def workers(parent=None):
    """The live worker processes of a process, by id."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            command, status = (entry / "cmdline").read_bytes(), (entry / "stat").read_text().rsplit(")", 1)[1].split()
        except (OSError, IndexError):
            continue
        if b"rewards.math.worker" in command and status[0] != "Z" and int(status[1]) == (parent or os.getpid()):
            found.append(int(entry.name))
    return found


@pytest.fixture(scope="module", autouse=True)
def one_pool():
    """The tests share the workers, with a second as their limit; afterwards none is left."""
    close()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(math_pool, "TIME_LIMIT", 1.0)
        yield
        close()
        assert workers() == []


@pytest.fixture(autouse=True)
def forgetful():
    """Each test starts without memories."""
    math500._verdicts.items.clear()
    math500._problems.items.clear()


@pytest.fixture
def alone():
    """Workers of the test's own, which it may start otherwise than usual."""
    close()
    yield
    close()
    assert workers() == []


def test_what_hangs_is_wrong_and_the_batch_goes_on():
    start()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(2):
        math500._verdicts.items.clear()
        logged: list = []
        roots = [("\\sqrt{50}", f"{n}\\sqrt{{{50 // n**2}}}") for n in (1, 5)] * 5
        batch = [("9", HANGS), ("7", HANGS), ("n", HANGS), *roots]
        begun = time.monotonic()
        scores = math500_reward(
            None,
            [f"\\boxed{{{answer}}}" for _, answer in batch],
            answer=[gold for gold, _ in batch],
            log_extra=lambda *row, logged=logged: logged.append(row),
        )
        assert scores == [0.0] * 3 + [1.0] * 10
        assert logged[0][1][:3] == ["wrong: time limit"] * 3
        assert time.monotonic() - begun < 60  # not for ever, on however busy a machine
        assert right()
    assert len(workers()) <= math_pool.WORKERS
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # KiB


def test_a_pair_takes_no_longer_than_its_limit():
    start()
    begun = time.monotonic()
    assert score(("9", HANGS)) == [0.0]
    assert 0.9 < time.monotonic() - begun < 30  # and not for ever, on however busy a machine


HOSTILE = {
    "9^{9^{9^9}}": 0.0,
    "10^{10^{10}}": 0.0,
    "2^{10^9}": 0.0,
    "\\frac{7^{7^{7^{7}}} - 3}{4}": 0.0,
    "1000000!": 0.0,
    "((9!)!)!": 0.0,
    "e^{e^{e^{e^{9}}}}": 0.0,
    "x^{x^{x^{x^{x^x}}}}": 0.0,
    "(a+b+c+d)^{1000}(x+1)^{999}": 0.0,
    "\\sum_{k=1}^{10^9} k": 0.0,
    "\\binom{10^9}{10^8}": 0.0,
    "1e999999": 0.0,
    "9^{" * 400 + "9" + "}" * 400: 0.0,
    " ".join("8" * 27_000): 0.0,
    "8" * 5000: 0.0,
    "\\boxed{" * 900 + "8": 0.0,
    "\\boxed{" * 200 + "8" + "}" * 200: 1.0,
    "(" * 900 + "8" + ")" * 900: 1.0,
    "{" * 900 + "8" + "}" * 900: 1.0,
    "[" * 900 + "8" + "]" * 900: 0.0,
    "\\frac{1}{" * 200 + "8" + "}" * 200: 0.0,
    "\\sqrt{1+" * 200 + "8" + "}" * 200: 0.0,
    "\\left(" * 5000: 0.0,
    "-" * 1500 + "8": 0.0,
    "8" + "\\%" * 800: 1.0,
    "\\text{" * 300 + "8" + "}" * 300: 0.0,
    "\U0001d4d0" * 1900: 0.0,
    "a" + "\u0301" * 1900: 0.0,
    "\0" * 1900: 0.0,
    "\ud800" * 1900: 0.0,
    "x_{\\text{\ud800}} + 1": 0.0,
    "8\u202e": 0.0,
    "w" * 1_000_000: 0.0,
    "__import__('os').system('touch loop_rl_was_here')": 0.0,
    'exec(\'open("loop_rl_was_here", "w")\')': 0.0,
    "\\text{open('loop_rl_was_here', 'w')}": 0.0,
    "().__class__.__base__.__subclasses__()": 0.0,
    "\\operatorname{exec}(1)": 0.0,
    "lambda: 8": 0.0,
}


@pytest.mark.parametrize("gold", ["8", "\\sqrt{2} + x", "(1, 8) \\cup (9, 10)"])
def test_hostile_answers_cost_bounded_time_and_do_nothing(gold, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    start()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for answer, expected in HOSTILE.items():
        begun = time.monotonic()
        assert score((gold, answer)) == [expected if gold == "8" else 0.0], answer[:40]
        assert time.monotonic() - begun < 30, answer[:40]  # not for ever, on however busy a machine
    assert right()
    assert list(tmp_path.iterdir()) == []
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 80_000  # KiB


def test_the_same_in_a_thread_and_in_many():
    results = []
    threads = [threading.Thread(target=lambda: results.append(right())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 4
    assert right()  # the thread that started the workers has ended; they haven't


def test_the_same_in_an_event_loop():
    async def asked():
        return right()

    assert asyncio.run(asked())


def test_leaves_an_outer_alarm_alone():
    rang = []
    previous = signal.signal(signal.SIGALRM, lambda *_: rang.append(time.monotonic()))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        begun = time.monotonic()
        assert score(("9", HANGS)) == [0.0] and right()
        assert len(rang) == 1 and rang[0] - begun > 0.4
        signal.setitimer(signal.ITIMER_REAL, 30)
        assert right()
        assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= 30
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def test_an_alarm_that_raises_leaves_the_pool_in_order():
    class Alarm(Exception):
        pass

    def ring(*_):
        raise Alarm

    start()
    previous = signal.signal(signal.SIGALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(Alarm):
            score(("9", HANGS))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    assert workers() == []
    assert right()


def test_killed_workers_are_replaced():
    start()
    for worker in workers():
        os.kill(worker, signal.SIGKILL)
    assert right()


@pytest.mark.parametrize("act", ["os._exit(3)", "os.kill(os.getpid(), 11)", "bytearray(3 * 2**30)"])
def test_what_breaks_two_healthy_workers_is_wrong(alone, monkeypatch, act):
    breaks = (
        "import json, os, sys; sys.path[:] = json.loads(sys.argv[1]); import rewards.math.worker as worker; "
        f"judge = worker.judge; worker.judge = lambda *pair: {act} if '8' in pair[1] else judge(*pair); "
        "worker.main(float(sys.argv[2]))"
    )
    monkeypatch.setattr(math_pool, "_CODE", breaks)
    reasons = []
    texts = ["\\boxed{\\sqrt{8}}", "\\boxed{\\frac{\\sqrt{4}}{2}}"]
    assert math500_reward(None, texts, answer=["1", "1"], log_extra=lambda _, row: reasons.extend(row)) == [0.0, 1.0]
    assert reasons == ["wrong: it breaks the process that reads it", "correct"]


def test_workers_that_are_killed_from_outside_make_no_answer_wrong(alone, monkeypatch):
    """As the kernel does when memory is short: whatever the answer, it is not scored."""
    killed = (
        "import json, os, sys; sys.path[:] = json.loads(sys.argv[1]); import rewards.math.worker as worker; "
        "judge = worker.judge; worker.judge = lambda *pair: "
        "os.kill(os.getpid(), 9) if '8' in pair[1] else judge(*pair); worker.main(float(sys.argv[2]))"
    )
    monkeypatch.setattr(math_pool, "_CODE", killed)
    reasons = []
    texts = ["\\boxed{\\sqrt{8}}", "\\boxed{\\frac{\\sqrt{4}}{2}}"]
    scores = math500_reward(None, texts, answer=["1", "1"], log_extra=lambda _, row: reasons.extend(row))
    assert scores == [None, 1.0]
    assert reasons[0].startswith("not scored: its process was killed from outside")


@pytest.mark.parametrize("error", ["TypeError", "KeyError", "AssertionError", "AttributeError"])
def test_an_error_in_our_own_code_makes_no_answer_wrong(error):
    def fails(*_):
        raise getattr(builtins, error)("of ours")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(math_worker, "_FOLDER", str(Path(__file__).parent) + os.sep)
        patch.setattr(math_worker, "equal", fails)
        outcome, why = math_worker.judge("\\sqrt{2}", "x")
        assert outcome == "failed" and f"cannot be compared ({error} in test_math500_pool.py:" in why
    with pytest.MonkeyPatch.context() as patch:  # the same from another's code is an answer that it can't take
        patch.setattr(math_worker, "equal", lambda *_: json.loads("{"))
        assert math_worker.judge("\\sqrt{2}", "x")[0] == "wrong"


def test_what_our_own_code_fails_on_is_not_scored(alone, monkeypatch):
    broken = "import rewards.math.equal; rewards.math.equal._same_grid = None; from rewards.math.worker"
    monkeypatch.setattr(math_pool, "_CODE", math_pool._CODE.replace("from rewards.math.worker", broken))
    reasons = []
    texts = ["\\boxed{\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}}", "\\boxed{\\frac{\\sqrt{4}}{2}}"]
    scores = math500_reward(None, texts, answer=["(1, 2)", "1"], log_extra=lambda _, row: reasons.extend(row))
    assert scores == [None, 1.0]
    assert reasons[0].startswith("not scored: cannot be compared (TypeError in equal.py:")


@pytest.mark.parametrize(
    "code", ["import nothing_of_this_name", "print('false', flush=True); import time; time.sleep(60)"]
)
def test_without_a_healthy_worker_nothing_is_scored(alone, monkeypatch, code):
    monkeypatch.setattr(math_pool, "_CODE", code)
    reasons = []
    texts = ["\\boxed{\\sqrt{4}}", "\\boxed{2}", "\\boxed{3}"]
    scores = math500_reward(None, texts, answer=["2", "2", "2"], log_extra=lambda _, row: reasons.extend(row))
    assert scores == [None, 1.0, 0.0]  # two plain numbers need no worker
    assert reasons[0].startswith("not scored: the process that reads answers")
    assert check_gold(["\\sqrt{4}", "2"])[1] is None and "the process" in str(check_gold(["\\sqrt{4}"])[0])
    with pytest.raises(RuntimeError, match="the process that reads answers"):
        start()
    monkeypatch.undo()
    assert right()


def test_an_interpreter_that_is_missing(alone, monkeypatch):
    monkeypatch.setattr(math_pool.sys, "executable", "/nowhere/python")
    with pytest.raises(RuntimeError, match="can't be started"):
        start()


SCRIPT = """
import os, sys, time
from rewards.math500 import math500_reward, start
from rewards.math import pool as math_pool
math_pool.TIME_LIMIT = 1.0
{body}
"""


def script(body, **options):
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(body=body)], cwd=ROOT, stdout=subprocess.PIPE, **options
    )


def runs(process_id):
    """Whether a process runs; one that has ended, and only waits to be reaped, doesn't."""
    try:
        return Path(f"/proc/{process_id}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def gone(process_ids, seconds):
    deadline = time.monotonic() + seconds
    while any(map(runs, process_ids)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return not any(map(runs, process_ids))


@pytest.mark.parametrize("work", ["time.sleep(60)", "math500_reward(None, ['$(n!)!$'], answer=['9'])"])
def test_workers_end_with_a_caller_that_is_killed(work):
    parent = script(f"start(); print('ready', flush=True); {work}")
    assert parent.stdout.readline()
    time.sleep(0.5)
    left = workers(parent.pid)
    assert left
    parent.kill()
    parent.wait()
    assert gone(left, math_pool.TIME_LIMIT + 10)


def test_workers_end_with_a_caller_that_ends():
    parent = script("start(); print(*[w.process.pid for w in math_pool.pool().workers], flush=True)")
    left = [int(number) for number in parent.stdout.read().split()]
    assert left and parent.wait() == 0
    assert gone(left, 5)


def test_a_forked_child_has_workers_of_its_own():
    body = """
assert math500_reward(None, ["$\\\\sqrt{4}$"], answer=["2"]) == [1.0]
own = [w.process.pid for w in math_pool.pool().workers]
child = os.fork()
if not child:
    scores = math500_reward(None, ["$\\\\sqrt{9}$", "$\\\\sqrt{9}$"], answer=["3", "4"])
    others = [w.process.pid for w in math_pool.pool().workers]
    math_pool.pool().close()
    os._exit(0 if scores == [1.0, 0.0] and not set(own) & set(others) else 1)
assert os.waitpid(child, 0)[1] == 0
assert math500_reward(None, ["$\\\\sqrt{16}$"], answer=["4"]) == [1.0]
assert own == [w.process.pid for w in math_pool.pool().workers][:1]
"""
    assert script(body).wait() == 0


def test_imports_nothing_of_the_project_nor_sympy():
    code = "import sys, rewards.math500; assert not {'loop_rl', 'torch', 'sympy', 'math_verify'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
