"""Requests to stop: what the first, the second and a repeated signal do."""

import os
import pty
import signal
import subprocess
import sys
import threading

import pytest

from loop_rl.interrupts import SIGNALS, starting_servers
from loop_rl.runs import stop as stopping
from loop_rl.runs.stop import stop_requests


@pytest.fixture(autouse=True)
def handlers():
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def send(number: int = signal.SIGINT) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_is_answered_and_the_second_interrupts(capfd, number) -> None:
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), stop_requests("the evaluation under way") as stop:
        assert not stop.is_set()
        send(number)
        assert stop.is_set()
        assert capfd.readouterr().err == "loop-rl: stopping after the evaluation under way; Ctrl-C again ends at once\n"
        send(number)
        pytest.fail("the second signal passed")
    assert signal.getsignal(number) == before


def test_a_whole_part_ends_first_but_a_third_signal_ends_it() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), stop_requests() as stop:
        with stop.whole():
            send()
            send()
            done.append("update")
        done.append("after it")
    assert done == ["update"]
    with pytest.raises(KeyboardInterrupt), stop_requests() as stop, stop.whole():
        for _ in range(3):
            send()
        pytest.fail("the third signal passed")


def test_at_once_a_launchers_repeat_changes_nothing(monkeypatch) -> None:
    now = [0.0]
    monkeypatch.setattr(stopping.time, "monotonic", lambda: now[0])
    with stop_requests(at_once=True) as stop:
        with pytest.raises(KeyboardInterrupt):
            send()
            pytest.fail("the first signal interrupts")
        with stop.whole():
            send()  # the launcher's own, while the checkpoint is written
        now[0] += stopping.REPEAT_SECONDS + 1
        with pytest.raises(KeyboardInterrupt), stop.whole():
            send()
            pytest.fail("the user's second one")
    send()
    send(signal.SIGTERM)  # while the rest is tidied up, which the launcher ends if it takes too long


def test_nohup_is_kept() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with stop_requests() as stop:
        send(signal.SIGHUP)
        assert not stop.is_set()


def test_a_terminal_that_closes_stops_the_run_and_fails_no_write() -> None:
    """The process's terminal is closed; its answer and all that it prints afterwards go nowhere."""
    program = (
        "import os; from loop_rl.runs.stop import stop_requests\n"
        "with stop_requests() as stop:\n"
        "    print('ready', flush=True)\n"
        "    while not stop.is_set(): pass\n"
        "    print('saved', flush=True)\n"
        "os._exit(7)"
    )
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-c", program])
    assert b"ready" in os.read(terminal, 100)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7


def test_servers_are_started_deaf_to_a_closing_terminal_which_is_answered_after_that() -> None:
    with stop_requests() as stop:
        before = {number: signal.getsignal(number) for number in SIGNALS}
        with starting_servers():
            signal.pthread_kill(threading.main_thread().ident, signal.SIGHUP)
            assert not stop.is_set()
            status = subprocess.run(["grep", "SigBlk", "/proc/self/status"], capture_output=True, text=True).stdout
            assert int(status.split()[1], 16) & 1 << (signal.SIGHUP - 1)  # of a process started here
            signal.signal(signal.SIGTERM, lambda *_: None)
        assert stop.is_set()
        assert {number: signal.getsignal(number) for number in SIGNALS} == before
