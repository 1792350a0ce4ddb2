"""The MBPP+ reward as its users meet it: verdicts, limits, threads, forks, actors, killed parents, the cache."""

import os
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from rewards import mbpp_plus
from rewards.code import expected as mbpp_expected
from rewards.code.scoring import shared
from rewards.code.tasks import FILE_NAMES, load_tasks
from rewards.sandbox import pool as pools
from rewards.sandbox.pool import SandboxPool
from rewards.sandbox.worker import Ending, Limits, SandboxError, Worker
from tests.rewards.mbpp_squares import MODES, ROWS, SQUARES, make_pool, row, score, scoring, write_tasks

ROOT = Path(__file__).parents[2]
DATA = Path(os.environ.get("LOOP_RL_DATA") or ROOT / "../shared/data") / FILE_NAMES[0]
RIGHT = "def f(n): return n * n + 1"


@pytest.fixture(params=MODES)
def sandbox(request, tmp_path):
    with scoring(request.param, tmp_path) as pool:
        yield pool


PROGRAMS = [
    (RIGHT, "correct", 1.0),
    ("def f(n): return n * n", "wrong: base input 0", 0.0),
    ("def f(n): return n * n + (n < 200)", "wrong: plus input 2", 0.8),
    ("def f(n): return n * n + 1 if n else undefined", "wrong: NameError at plus input 1", 0.8),
    ("def f(n): return n * n + 1 if n < 200 else exit()", "wrong: NameError at plus input 2", 0.8),
    ("def f(n):\n    if n == 7: import os; os._exit(0)\n    return n * n + 1", "wrong: its process ended", 0.4),
    ("def f(n):\n    while n == 7: pass\n    return n * n + 1", "wrong: time limit", 0.4),
    ("def f(n): return n * n + 1 if n != 4 else bytearray(9 << 30)", "wrong: memory limit", 0.8),
    ("def f(n) return n", "wrong: SyntaxError", 0.0),
    ("import nothing_of_that_name\ndef f(n): return n", "wrong: ModuleNotFoundError", 0.0),
    ("def g(n): return n", "no answer: f is not defined", 0.0),
    ("f = 5", "wrong: TypeError at base input 0", 0.0),
    ("", "no answer", 0.0),
    ("def f(n): return '\x00'", "wrong: ", 0.0),
    ("def f(n): return n * n + 1 # \ud800", "wrong: UnicodeEncodeError", 0.0),
]


def test_reward_and_reason(tmp_path, monkeypatch):
    monkeypatch.setattr(mbpp_expected, "_FLOOR", Limits(cpu=1.0))
    programs = [program for program, _, _ in PROGRAMS]
    with scoring("plain", tmp_path):
        whole, parts = score(programs), score(programs, share=True)
    for (program, reason, share), (reward, told), (part, told_too) in zip(PROGRAMS, whole, parts, strict=True):
        assert (reward, part) == (float(share == 1.0), share), program
        assert told.startswith(reason) and told_too.startswith(reason), (program, told, told_too)


def test_a_completion_without_a_program_is_no_answer(sandbox):
    reasons = []
    rewards = mbpp_plus.mbpp_plus_reward(
        ["q"] * 3,
        ["I don't know.", [{"role": "assistant", "content": f"```\n{RIGHT}\n```"}], RIGHT],
        task_id=[SQUARES] * 3,
        log_extra=lambda name, values: reasons.append((name, values)),
    )
    assert rewards == [0.0, 1.0, 1.0]
    assert reasons == [("reason", ["no answer", "correct", "correct"])]


def test_hard_coding_the_prompts_assert_earns_nothing(tmp_path):
    def prime(n):
        return n > 1 and all(n % d for d in range(2, int(n**0.5) + 1))

    solution = "def is_prime(n): return n > 1 and all(n % d for d in range(2, n))"
    rows = [row(9003, "is_prime", solution, [[7]], [[n] for n in range(-2, 30)])]
    programs = ["def is_prime(n): return True", "def is_prime(n): return {7: True}[n]"]
    right = "def is_prime(n): return n > 1 and all(n % d for d in range(2, int(n ** 0.5) + 1))"
    with scoring("plain", tmp_path):
        mbpp_plus.use_data(write_tasks(tmp_path, rows))
        results = score([*programs, right], task="Mbpp/9003", share=True)
    share = sum(map(prime, [7, *range(-2, 30)])) / 33
    assert results == [
        (pytest.approx(share), "wrong: plus input 0"),
        (pytest.approx(2 / 33), "wrong: KeyError at plus input 0"),
        (1.0, "correct"),
    ]


def test_callers_mistakes_are_one_line(sandbox):
    with pytest.raises(ValueError, match=r"^task_id: MBPP\+ has no task 'Mbpp/1' in .*tasks.jsonl$"):
        mbpp_plus.mbpp_plus_reward(["q"], [RIGHT], task_id=["Mbpp/1"])
    with pytest.raises(ValueError, match="^task_id: 1 for 2 completions$"):
        mbpp_plus.mbpp_plus_reward(["q"] * 2, [RIGHT] * 2, task_id=[SQUARES])
    with pytest.raises(TypeError):
        mbpp_plus.mbpp_plus_reward(["q"], [5], task_id=[SQUARES])
    assert mbpp_plus.mbpp_plus_reward([], [], task_id=[]) == []


def test_nothing_passes_from_one_program_to_the_next(sandbox):
    marks = (
        "import os, sys, tempfile, builtins\nsys.modules['mark'] = builtins.mark = os\nos.environ['mark'] = '1'\n"
        "for folder in ('.', '/tmp', '/dev/shm', '/var/tmp', os.path.expanduser('~'), tempfile.gettempdir()):\n"
        "    try: open(os.path.join(folder, 'loop-rl-mark'), 'w').write('1')\n    except OSError: pass\n"
    )
    found = (
        "import os, sys, tempfile, builtins\n"
        "seen = ['mark' in sys.modules, hasattr(builtins, 'mark'), 'mark' in os.environ]\n"
        "for folder in ('.', '/tmp', '/dev/shm', '/var/tmp', os.path.expanduser('~'), tempfile.gettempdir()):\n"
        "    try: seen.append('loop-rl-mark' in os.listdir(folder))\n    except OSError: pass\n"
        "def f(n): return n * n + 1 if not any(seen) else 0"
    )
    assert score([marks + RIGHT] * 6 + [found] * 6) == [(1.0, "correct")] * 12
    assert not list(Path("/tmp").glob("loop-rl-mark")) and not list(Path("/dev/shm").glob("loop-rl-mark"))


def test_a_program_sees_an_environment_of_ours_and_no_open_files(sandbox, monkeypatch):
    monkeypatch.setenv("A_SECRET", "hunter2")
    read, write = os.pipe()
    os.set_inheritable(write, True)
    secrets = (
        "import os, sys\ndef there(fd):\n    try: return bool(os.fstat(fd))\n    except OSError: return False\n"
        "def f(n):\n    files = sum(there(fd) for fd in range(64))\n"
        "    known = {'PATH', 'LC_ALL', 'PYTHONHASHSEED', 'OMP_NUM_THREADS', 'OPENBLAS_NUM_THREADS', 'PWD'}\n"
        "    assert set(os.environ) <= known and files == 4 and len(sys.argv) == 1, (files, os.environ)\n"
        "    assert not [name for name in sys.modules if name.startswith(('rewards', 'loop_rl', 'torch'))]\n"
        "    return n * n + 1"
    )
    try:
        mbpp_plus.close()
        shared.pool = SandboxPool(sandbox._launcher)
        assert score([secrets]) == [(1.0, "correct")]
    finally:
        os.close(read)
        os.close(write)


def test_the_order_of_a_set_of_texts_is_always_the_same(sandbox):
    program = "def f(n):\n    assert list({'abc', 'def', 'ghi', 'jkl'}) == ORDER\n    return n * n + 1"
    command = [sys.executable, "-c", "print(list({'abc', 'def', 'ghi', 'jkl'}))"]
    order = subprocess.run(command, env={"PYTHONHASHSEED": "0"}, capture_output=True, text=True).stdout.strip()
    assert score([program.replace("ORDER", order)] * 3) == [(1.0, "correct")] * 3


def test_many_threads_score_at_once(sandbox):
    results = {}

    def run(place):
        results[place] = score([RIGHT, "def f(n): return n"] * 3)

    threads = [threading.Thread(target=run, args=(place,)) for place in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert list(results.values()) == [[(1.0, "correct"), (0.0, "wrong: base input 0")] * 3] * 6


class Broken:
    """A launcher whose processes do not start, or end at once."""

    def __init__(self, launcher=None):
        self.launcher = launcher

    def start(self, errors=None):
        if self.launcher is None:
            raise OSError("no processes left")
        process = self.launcher.start()
        process.popen.kill()
        return process


def test_a_failure_of_ours_is_not_scored(tmp_path):
    for working in (False, True):
        with scoring("plain", tmp_path) as pool:
            pool._launcher = Broken(pool._launcher if working else None)
            results = score([RIGHT] * 3)
        assert [reward for reward, _ in results] == [None] * 3
        assert all(reason.startswith("not scored: ") and "\n" not in reason for _, reason in results)


def test_a_full_disk_is_not_scored(tmp_path, monkeypatch):
    with scoring("plain", tmp_path):
        assert score([RIGHT]) == [(1.0, "correct")]
        room = os.statvfs(tmp_path)
        full = os.statvfs_result((*room[:3], 0, 0, *room[5:10]))
        monkeypatch.setattr(os, "statvfs", lambda path: full)
        results = score([RIGHT, "def f(n): return n"])
    assert [reward for reward, _ in results] == [None] * 2
    assert all("16 MiB free" in reason for reward, reason in results if reward is None)


def test_without_a_temporary_folder_nothing_is_scored(tmp_path, monkeypatch):
    mbpp_plus.close()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    monkeypatch.setattr(mbpp_plus, "_scorer", mbpp_plus._Scorer())
    mbpp_plus.use_data(write_tasks(tmp_path))
    with pytest.raises(RuntimeError, match="no temporary folder can be made") as raised:
        mbpp_plus.start()
    assert "\n" not in str(raised.value)
    [(reward, reason)] = score([RIGHT])
    assert reward is None and reason.startswith("not scored: no temporary folder")


def test_a_scratch_folder_that_is_gone_is_not_scored(tmp_path):
    (tmp_path / "inner").mkdir()
    with scoring("plain", tmp_path / "inner"):
        assert score([RIGHT]) == [(1.0, "correct")]
        shutil.rmtree(tmp_path / "inner")
        rewards = [reward for reward, _ in score([RIGHT] * 4)]
    assert rewards.count(None) >= 3 and 0.0 not in rewards


def test_a_process_killed_from_outside_is_scored_again(sandbox, monkeypatch):
    kills = []
    original = Worker.run

    def run(self, job, limits, see):
        def see_and_kill(index, kind, payload):
            if "kill me" in job.code and len(kills) < most:
                kills.append(self._running)
                self._running.kill()
            return see(index, kind, payload)

        return original(self, job, limits, see_and_kill)

    monkeypatch.setattr(Worker, "run", run)
    slow = "import time\ndef f(n):  # kill me\n    time.sleep(0.3)\n    return n * n + 1"
    most = 1
    assert score([slow]) == [(1.0, "correct")]
    kills.clear()
    most = 2
    [(reward, reason)] = score([slow])
    assert reward is None and reason.startswith("not scored: ") and "killed" in reason


def test_a_canary_that_fails_stops_the_start(tmp_path, monkeypatch):
    mbpp_plus.close()
    monkeypatch.setattr(pools, "_CANARY", "def probe(*arguments): return {'answer': 11}")
    with pytest.raises(RuntimeError, match="a program with a known answer failed") as raised:
        make_pool("plain", tmp_path)
    assert "\n" not in str(raised.value)
    monkeypatch.setattr(mbpp_plus, "_scorer", mbpp_plus._Scorer())
    mbpp_plus.use_data(write_tasks(tmp_path))
    with pytest.raises(RuntimeError, match="known answer"):
        mbpp_plus.start()
    assert [reward for reward, _ in score([RIGHT])] == [None]


def test_start_says_what_protects(tmp_path, monkeypatch):
    monkeypatch.setattr(mbpp_plus, "_scorer", mbpp_plus._Scorer())
    mbpp_plus.use_data(write_tasks(tmp_path))
    mbpp_plus.close()
    line = mbpp_plus.start(workers=1)
    mbpp_plus.close()
    assert line.startswith("MBPP+: programs run ") and "\n" not in line


def test_start_says_when_programs_can_read_the_answers(tmp_path, monkeypatch):
    monkeypatch.setattr(mbpp_plus, "visible", lambda: ["/usr", str(tmp_path / "inner")])
    (tmp_path / "inner").mkdir()
    with scoring("plain", tmp_path):
        assert "CAN READ" not in mbpp_plus.start()
        mbpp_plus.use_data(write_tasks(tmp_path / "inner"))
        assert mbpp_plus.start().endswith(f", but CAN READ the answers in {tmp_path / 'inner'}")


@pytest.mark.parametrize(
    ("bwrap", "told"), [(None, "bubblewrap is not installed"), ("exit 1", "bubblewrap does not work here")]
)
def test_without_bubblewrap_the_line_says_so(bwrap, told, tmp_path, monkeypatch):
    if bwrap:
        (tmp_path / "bwrap").write_text(f"#!/bin/sh\n{bwrap}\n")
        (tmp_path / "bwrap").chmod(0o755)
    monkeypatch.setattr(pools, "bubblewraps", lambda: [str(tmp_path / "bwrap")] if bwrap else [])
    pool = SandboxPool(workers=1)
    try:
        assert told in pool.line
        assert "seccomp" in pool.line
    finally:
        pool.close()


def test_without_landlock_the_line_says_what_is_not_protected(tmp_path):
    pool = SandboxPool(pools.Plain(tmp_path, landlock=False), workers=1)
    pool.close()
    assert "NOT kept from reading this user's files and memory or writing this user's files" in pool.line


@pytest.mark.parametrize("mode", MODES)
def test_canonical_solutions_pass(mode, tmp_path):
    if not DATA.exists():
        pytest.skip(f"{DATA} is missing")
    tasks = load_tasks(DATA)
    names = [*list(tasks)[::20], "Mbpp/124", "Mbpp/252", "Mbpp/737", "Mbpp/787", "Mbpp/793", "Mbpp/794", "Mbpp/88"]
    names = [name for name in names if name not in ("Mbpp/599", "Mbpp/255")]
    with scoring(mode, tmp_path):
        mbpp_plus.use_data(DATA)
        reasons = []
        rewards = mbpp_plus.mbpp_plus_reward(
            [""] * len(names),
            [tasks[name].canonical_solution for name in names],
            task_id=names,
            log_extra=lambda _, values: reasons.extend(values),
        )
    assert dict(zip(names, reasons, strict=True)) == dict.fromkeys(names, "correct")
    assert rewards == [1.0] * len(names)


def test_other_systems_are_refused(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(RuntimeError, match="^programs can be contained on Linux only, not on darwin$"):
        SandboxPool()


def test_a_closed_pool_takes_nothing(tmp_path):
    pool = make_pool("plain", tmp_path)
    pool.close()
    with pytest.raises(SandboxError, match="closed"):
        pool.submit(lambda worker: Ending("done"))


def test_the_tests_tasks_are_tasks(tmp_path):
    assert [*load_tasks(write_tasks(tmp_path))] == [one["task_id"] for one in ROWS]
