"""What keeps Ray from starting is one line before anything is loaded; what a killed run leaves is ended."""

import os
import resource
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from loop_rl.errors import UserError
from loop_rl.rollout import instance, reaper
from loop_rl.rollout.instance import check_workers
from loop_rl.rollout.placement import Placement, learner_ids


def refused(match: str, workers: int = 1, cluster: str | None = None) -> None:
    with pytest.raises(UserError, match=match) as error:
        check_workers(workers, cluster)
    assert "\n" not in str(error.value)


def test_a_machine_that_ray_cannot_start_on_is_named(monkeypatch, tmp_path) -> None:
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    monkeypatch.delenv("RAY_JOB_ID", raising=False)
    monkeypatch.setenv("TMPDIR", "/tmp")
    check_workers(1)
    refused("1000 workers need a CPU each", workers=1000)
    monkeypatch.setenv("TMPDIR", f"{tmp_path}/{'x' * 110}")
    refused("TMPDIR.*too long.*TMPDIR=/tmp")
    (tmp_path / "file").touch()
    monkeypatch.setenv("TMPDIR", "/dev/null")
    refused("TMPDIR.*can't write to /dev/null/ray")


@pytest.mark.parametrize(("limit", "option"), [("RLIMIT_AS", "ulimit -v"), ("RLIMIT_FSIZE", "ulimit -f")])
def test_limits_that_end_its_servers_are_named(monkeypatch, limit, option) -> None:
    monkeypatch.setenv("TMPDIR", "/tmp")
    real = resource.getrlimit
    number = getattr(resource, limit)
    monkeypatch.setattr(resource, "getrlimit", lambda one: (2**30, 2**30) if one == number else real(one))
    refused(f"limits the .* to 1024 MiB.*{option} unlimited")


def test_a_cluster_that_does_not_answer_is_named() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        refused("rollout.cluster: no Ray cluster answers at 127.0.0.1:", cluster=f"127.0.0.1:{free.getsockname()[1]}")
    refused(
        "rollout.cluster: no Ray cluster answers at ray://no.such.host.invalid", cluster="ray://no.such.host.invalid"
    )


def test_ids_are_those_of_the_visible_gpus(monkeypatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1,2")
    assert learner_ids(2) == ["3", "1"]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert learner_ids(2) == ["0", "1"]


def test_where_learner_and_workers_are_is_one_line() -> None:
    placement = object.__new__(Placement)
    placement.__dict__ |= {"_workers": 3, "_here": "n", "learner": ["0"], "gpus": 3, "others": 2}
    text = placement.text([("n", ["1"]), ("n", ["1"]), ("else-where", ["0"])])
    assert text == (
        "learner on GPU 0; rollout worker 0 on GPU 1, worker 1 on GPU 1, worker 2 on GPU 0 of node else-whe; "
        "3 workers share 2 GPUs"
    )
    placement.others = 0
    assert "share the learner's GPU 0, for there is no other" in placement.text([])


def test_what_a_killed_owner_leaves_is_ended_and_nothing_else(tmp_path) -> None:
    """The owner starts a process that outlives it, and one that hides its environment as Ray's agents do."""
    session = tmp_path / "ray" / "session_x"
    (session / "logs").mkdir(parents=True)
    sleeping = "import time; time.sleep(600)"
    hidden = f"import time; log = open({str(session / 'logs' / 'agent.log')!r}, 'w'); time.sleep(600)"
    owner = (
        "import os, subprocess, sys, time; from pathlib import Path; from loop_rl.rollout.reaper import Reaper\n"
        f"reaper = Reaper(); reaper.watch(Path({str(session)!r}))\n"
        f"a = subprocess.Popen([sys.executable, '-c', {sleeping!r}])\n"
        f"b = subprocess.Popen(['ray::Agent', '-c', {hidden!r}], executable=sys.executable, "
        "env={'PYTHONHOME': sys.base_prefix})\n"
        "print(a.pid, b.pid, flush=True); time.sleep(600)"
    )
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    other = subprocess.Popen([sys.executable, "-c", sleeping])
    command, said = [sys.executable, "-c", owner], tmp_path / "said"
    with (
        said.open("w") as error,
        subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=error, text=True) as process,
    ):
        left = [psutil.Process(int(pid)) for pid in process.stdout.readline().split()]
        assert all(one.is_running() for one in left) and len(left) == 2
        while not (session / "logs" / "agent.log").exists():
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and (session.exists() or any(map(alive, left))):
        time.sleep(0.05)
    assert not session.exists() and not any(map(alive, left))
    assert f"loop-rl: process {process.pid} was killed, or ended by Ray" in said.read_text()
    assert other.poll() is None
    other.kill()
    other.wait()


def test_an_instance_whose_owner_ended_while_it_started_is_adopted(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    mine, other, old = (tmp_path / "ray" / f"session_{name}" for name in ("b_123", "b_4123", "a_123"))
    for folder in (mine, other, old):
        folder.mkdir(parents=True)
    os.utime(old, (1, 1))
    reaper._adopt("123:45:pid:[6]", since=2.0)
    assert reaper._folders() == {str(mine): "123:45:pid:[6]"}


@pytest.mark.parametrize("raised", [SystemExit(15), KeyboardInterrupt()])  # Ray's handler of SIGTERM, and ours
def test_a_signal_while_ray_starts_interrupts_and_ends_what_was_started(raised, monkeypatch) -> None:
    def start(cpus: int) -> None:
        raise raised

    ended = []
    monkeypatch.setattr(instance.ray, "is_initialized", lambda: False)  # an earlier test's instance may be up
    monkeypatch.setattr(instance, "check_ray", lambda cluster: None)
    monkeypatch.setattr(instance, "_start_here", start)
    monkeypatch.setattr(instance, "stop_ray", lambda failed: ended.append(failed))
    with pytest.raises(KeyboardInterrupt):
        instance.start_ray(1)
    assert ended == [True]


def alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_process_is_told_from_a_later_one_of_its_number() -> None:
    owner = reaper.identity(os.getpid())
    assert owner is not None and not reaper._gone(owner)
    pid, start, namespace = owner.split(":", 2)
    assert reaper._gone(f"{pid}:{int(start) + 1}:{namespace}")
    assert not reaper._gone(f"{pid}:{int(start) + 1}:pid:[1]")  # of another container: not ours to judge
    assert Path(f"/proc/{pid}").exists()
