"""`loop-rl submit` against a head node started here: the log, the exit code, and a run that was stopped and goes on."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import psutil
import pytest

from loop_rl.models import LoopedConfig, LoopedForCausalLM
from loop_rl.models.loading import EMBEDDED

ROOT = Path(__file__).parents[2]
RECIPE = """
extends: quickstart_reuse_neumann4
model: {path: tiny, depth: 2}
data: {eval_size: 2}
eval: {samples: 2}
rollout: {prompts_per_step: 2, num_generations: 2, max_completion_length: 4}
optim: {warmup_steps: 0}
run: {threads: 1, save_steps: 0}
"""


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@pytest.fixture(scope="module")
def head(tmp_path_factory):
    """The address of a head node, and the folder in which it was started, where jobs leave their runs."""
    folder = tmp_path_factory.mktemp("head")
    port, dashboard, client, agent = free_ports(4)
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "RAY_AUTH_MODE": "disabled",
        "OMP_NUM_THREADS": "1",
    }
    command = ["-c", "from ray.scripts.scripts import main; main()", "start", "--head", "--block", "--num-cpus=2"]
    command += [f"--port={port}", f"--dashboard-port={dashboard}", f"--ray-client-server-port={client}"]
    command += [f"--dashboard-agent-listen-port={agent}", "--include-dashboard=true", "--disable-usage-stats"]
    # A folder of its own, with a short name because sockets lie in it; the usual one would name this cluster to others.
    temporary = tempfile.mkdtemp(prefix="ray_", dir="/tmp")
    command += [f"--temp-dir={temporary}"]
    with (folder / "head.log").open("w") as log:
        process = subprocess.Popen([sys.executable, *command], cwd=folder, env=environment, stdout=log, stderr=log)
    address = f"http://127.0.0.1:{dashboard}"
    try:
        for _ in range(120):
            try:
                urllib.request.urlopen(f"{address}/api/jobs/", timeout=2).close()
                break
            except OSError:
                if process.poll() is not None:
                    break
                time.sleep(0.5)
        else:
            process.poll()
        if process.poll() is not None:
            pytest.fail((folder / "head.log").read_text()[-2000:])
        yield address, folder
    finally:
        started = [process, *psutil.Process(process.pid).children(recursive=True)] if process.poll() is None else []
        for one in started:  # these and no others: `ray stop` would end every cluster of this machine
            with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
                one.kill()
        process.wait(60)
        shutil.rmtree(temporary, ignore_errors=True)


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """A folder with a recipe and a tiny model, which is not the head node's."""
    folder = tmp_path_factory.mktemp("here")
    config = LoopedConfig(
        hidden_size=32, intermediate_size=64, num_attention_heads=2, num_key_value_heads=1, head_dim=16, depth=2
    )
    config.eos_token_id = 2
    LoopedForCausalLM(config).save_pretrained(folder / "tiny")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(EMBEDDED / name, folder / "tiny" / name)
    (folder / "small.yaml").write_text(RECIPE)
    return folder


def start(here, address, *options):
    command = [sys.executable, "-m", "loop_rl.cli", "submit", "small.yaml", "--address", address, *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "RAY_AUTH_MODE": "disabled"}
    return subprocess.Popen(
        command,
        cwd=here,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def steps(run):
    lines = (run / "metrics.jsonl").read_text().splitlines() if (run / "metrics.jsonl").is_file() else []
    return [json.loads(line)["step"] for line in lines if line.endswith("}")]


def test_the_runs_exit_code_is_the_commands(head, here):
    address, _ = head
    job = start(here, address, "--set", "data.name=no_such_file.jsonl", "run.name=bad")
    out, error = job.communicate(timeout=200)
    assert job.returncode == 2, out + error
    assert "no_such_file.jsonl" in out


def test_an_interrupted_job_saves_and_goes_on(head, here):
    address, folder = head
    run = folder / "runs" / "small"
    job = start(here, address, "--set", "run.max_steps=100000")
    deadline = time.monotonic() + 200
    while not steps(run) and time.monotonic() < deadline and job.poll() is None:
        time.sleep(0.5)
    job.send_signal(signal.SIGINT)
    out, error = job.communicate(timeout=60)
    assert job.returncode == 130, out + error
    assert "--resume" in error
    while not list(run.glob("checkpoints/step_*")) and time.monotonic() < deadline:
        time.sleep(0.5)
    (saved,) = run.glob("checkpoints/step_*")
    done = int(saved.name.removeprefix("step_"))
    job = start(here, address, "--resume", "--set", f"run.max_steps={done + 1}")
    out, error = job.communicate(timeout=200)
    assert job.returncode == 0, out + error
    assert "run folder: runs/small" in out
    assert steps(run) == list(range(1, done + 2))
    assert not (here / "runs").exists()
