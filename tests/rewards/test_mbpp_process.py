"""The MBPP+ reward's processes: limits of the shell, size, signals, forks and death of the parent, Ray actors."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rewards.sandbox.readable import INSIDE
from rewards.sandbox.scratch import end_orphans
from tests.rewards.mbpp_squares import MODES, make_pool
from tests.rewards.test_mbpp_hostile import sessions

ROOT = Path(__file__).parents[2]
RIGHT = "def f(n): return n * n + 1"


SCRIPT = f"""
import os, sys
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from tests.rewards.mbpp_squares import score, scoring
def main(mode, folder):
    with scoring(mode, Path(folder)) as pool:
        BODY
main(*sys.argv[1:])
"""


def script(body: str) -> str:
    return SCRIPT.replace("BODY", body.replace("\n", "\n        "))


def run_script(mode: str, folder: Path, body: str, before: str = "") -> str:
    command = ["bash", "-c", f'{before} exec "$@"', "bash", sys.executable, "-c", script(body), mode, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=ROOT)
    if "Skipped" in done.stderr:
        pytest.skip("bubblewrap does not work here")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("limit", ["ulimit -Hs 65536;", "ulimit -c 0 -n 256;", "ulimit -t 60; ulimit -f 100000;"])
def test_hard_limits_of_the_shell_are_kept(mode, limit, tmp_path):
    assert run_script(mode, tmp_path, f"print(score([{RIGHT!r}]))", limit) == "[(1.0, 'correct')]"


@pytest.mark.parametrize("mode", MODES)
def test_the_parents_size_does_not_count(mode, tmp_path):
    body = (
        f"import mmap\nkept = mmap.mmap(-1, 6 << 30)\nprint(score([{RIGHT!r}, 'def f(n): return bytearray(2 << 30)']))"
    )
    assert run_script(mode, tmp_path, body) == "[(1.0, 'correct'), (0.0, 'wrong: memory limit')]"


@pytest.mark.parametrize("mode", MODES)
def test_a_fork_makes_a_sandbox_of_its_own(mode, tmp_path):
    body = (
        f"first = score([{RIGHT!r}])\nchild = os.fork()\n"
        "if child == 0:\n"
        f"    again = score([{RIGHT!r}])\n"
        "    from rewards import mbpp_plus\n    mbpp_plus.close()\n    os._exit(again != first)\n"
        f"status = os.waitpid(child, 0)[1]\nprint(status, first == score([{RIGHT!r}]))"
    )
    assert run_script(mode, tmp_path, body) == "0 True"


@pytest.mark.parametrize("mode", MODES)
def test_the_sandbox_dies_with_its_parent(mode, tmp_path):
    program = "import time\ndef f(n): time.sleep(1000)"
    body = (
        f"import threading, time\nthreading.Thread(target=score, args=([{program!r}] * 2,), daemon=True).start()\n"
        "while not all(w._running and w._spare for w in pool._workers) or not pool._workers: time.sleep(0.05)\n"
        "pids = [process.popen.pid for w in pool._workers for process in (w._running, w._spare)]\n"
        "print(pool._scratch.path, *pids, flush=True)\ntime.sleep(1000)"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script(body), mode, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        folder, *numbers = parent.stdout.readline().split() or [""]
        pids = set(map(int, numbers))
        if not pids and "Skipped" in parent.communicate()[1]:
            pytest.skip("bubblewrap does not work here")
        assert len(pids) == 4 and pids <= sessions()
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.communicate()
    deadline = time.monotonic() + 10
    while sessions() & pids and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not sessions() & pids
    make_pool("plain", tmp_path).close()
    assert not Path(folder).exists()  # the next pool has removed what the killed one could not


@pytest.mark.parametrize("mode", MODES)
def test_a_parent_that_ignores_its_childrens_end(mode, tmp_path):
    body = "import signal, time\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
    body += "from tests.rewards.mbpp_squares import make_pool, shared\nshared.pool.close()\n"
    body += "shared.pool = make_pool(mode, Path(folder))\nbegan = time.monotonic()\n"
    body += f"print(score([{RIGHT!r}, 'import os; os._exit(3)'] * 3), time.monotonic() - began < 10)"
    results = [(1.0, "correct"), (0.0, "wrong: its process ended")] * 3
    assert run_script(mode, tmp_path, body) == f"{results} True"


def test_processes_that_a_killed_parent_left_halted_are_ended():
    """One that looks like bubblewrap's, orphaned: ended; the same with its parent alive: not."""
    sleeper = [sys.executable, "-c", "import time; time.sleep(60)", "--ro-bind", str(INSIDE), "/inside"]
    start = "import subprocess, sys; print(subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL).pid)"
    orphan = Path("/proc") / subprocess.check_output([sys.executable, "-c", start, *sleeper], text=True).strip()

    def state() -> list[str]:
        """How it is, and its parent."""
        try:
            return (orphan / "stat").read_text().rpartition(")")[2].split()[:2]
        except OSError:
            return ["gone"]

    if "python" in Path("/proc/1/comm").read_text() or state()[-1] != "1":
        pytest.skip("orphans don't go to process 1 here, or it is a Python")
    kept = subprocess.Popen(sleeper)
    try:
        assert end_orphans() >= 1
        time.sleep(0.2)
        assert state()[0] in ("gone", "Z") and kept.poll() is None
    finally:
        kept.kill()
        kept.wait()
