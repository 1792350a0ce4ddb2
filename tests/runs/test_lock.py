"""The lock of a run folder: one process at a time, freed by death, nothing left behind."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from loop_rl.errors import UserError
from loop_rl.interrupts import Interrupted
from loop_rl.runs.lock import LOCK, run_lock

HOLD = """
import sys, time
from pathlib import Path
from loop_rl.runs.lock import run_lock
with run_lock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", HOLD, tmp_path / "run"], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


@pytest.mark.parametrize("begun", [True, False])
def test_an_interruption_says_whether_there_is_a_run_to_go_on_with(begun, tmp_path):
    with pytest.raises(Interrupted, match="why") as raised, run_lock(tmp_path / "run"):
        if begun:
            (tmp_path / "run" / "recipe.yaml").touch()
        raise KeyboardInterrupt("why")
    assert raised.value.resumable == begun


def test_a_second_process_is_told_of_the_first(holder, tmp_path):
    with pytest.raises(UserError, match=f"process {holder.pid} on ") as error, run_lock(tmp_path / "run"):
        pass
    assert "\n" not in str(error.value)
    with run_lock(tmp_path / "run", wanted=False), run_lock(tmp_path / "other"):
        pass


def test_a_death_frees_it(holder, tmp_path):
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert (tmp_path / "run" / LOCK).exists()
    with run_lock(tmp_path / "run"):
        assert str(os.getpid()) in (tmp_path / "run" / LOCK).read_text()
    assert (tmp_path / "run").exists() and not (tmp_path / "run" / LOCK).exists()


def test_a_folder_that_was_made_and_stayed_empty_goes(tmp_path):
    with pytest.raises(ValueError), run_lock(tmp_path / "a" / "b" / "run"):
        raise ValueError
    assert not any(tmp_path.iterdir())
    with run_lock(tmp_path / "a" / "run"):
        (tmp_path / "a" / "run" / "recipe.yaml").write_text("")
    assert os.listdir(tmp_path / "a" / "run") == ["recipe.yaml"]


def test_a_file_system_without_locks_is_said(tmp_path, monkeypatch, caplog):
    def refuse(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "lockf", refuse)
    with run_lock(tmp_path / "run"):
        pass
    assert "can't be locked" in caplog.text


@pytest.mark.parametrize("place", ["/proc/run", "/etc/passwd/run"])
def test_a_folder_that_cannot_be_made_is_one_line(place):
    if not Path(place).parent.exists():
        pytest.skip(f"no {Path(place).parent} on this system")
    with pytest.raises(UserError, match=f"cannot make the run folder {place}: .*run.folder"), run_lock(Path(place)):
        pass


def test_a_lock_that_is_a_link_is_refused_and_not_waited_for(tmp_path):
    (tmp_path / LOCK).symlink_to(tmp_path / "nowhere" / "lock")
    with pytest.raises(UserError, match="cannot write in"), run_lock(tmp_path):
        pass
