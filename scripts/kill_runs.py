"""Kill a training run at random moments, resume it until its end, and compare it with a run that was left alone.

    python scripts/kill_runs.py --kills 40 --seed 0

The run is a short one of RL on the embedded model, with one rollout worker and one scorer. Each kill (SIGKILL) hits the
main process, the rollout worker, the scorer, Ray's raylet or its GCS, whichever is drawn, at a moment that is drawn:
of the whole run, or within a second of a step. A run is killed up to four times; then it is resumed until it ends, and
its last checkpoint has to equal, bit for bit, that of the run that was left alone, with each step once in metrics.jsonl
and each evaluation once in evals.jsonl.

A table says of each kill what the command did: it went on by itself, ended in one line (exit code 2), ended in a
traceback, or hung; and which processes were still there some seconds later. At the end come the processes, files in
/dev/shm and temporary folders that are left behind. Linux only; exit code 1 where anything is not as it should be.
"""

from __future__ import annotations

import argparse
import collections
import ctypes
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import yaml

STEPS, KILLS_PER_RUN = 8, 4
RECIPE = {
    "model": {"path": "embedded"},
    "data": {"name": "arithmetic", "train_size": 32, "eval_size": 4},
    "rollout": {"num_generations": 8, "prompts_per_step": 4, "max_completion_length": 48, "workers": 1},
    "reward": {"workers": 1},
    "optim": {"learning_rate": 1e-4},
    "eval": {"samples": 2},
    "run": {"max_steps": STEPS, "save_steps": 1, "keep_checkpoints": STEPS, "threads": 1},
}
# What a target's command line has in it; Ray names its workers so.
TARGETS = {
    "main": "",
    "rollout worker": "ray::RolloutWorker",
    "scorer": "ray::RewardWorker",
    "raylet": "raylet/raylet",
    "gcs": "gcs_server",
}
HANG_SECONDS, GRACE_SECONDS, POLL_SECONDS = 300.0, 15.0, 0.02
_PR_SET_CHILD_SUBREAPER = 36


@dataclass
class Kill:
    """One kill and what came of it."""

    target: str
    run: str
    seconds: float  # since the command was started
    step: int  # of the newest checkpoint
    outcome: str
    left: list[str]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=40, help="how many processes are killed (default: 40)")
    parser.add_argument("--seed", type=int, default=0, help="seed of targets and moments (default: 0)")
    parser.add_argument("--folder", type=Path, help="where runs and logs are kept; by default a temporary folder")
    arguments = parser.parse_args()
    # Whatever outlives its parent becomes a child of this process, and so is found.
    if ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        parser.error("needs Linux's PR_SET_CHILD_SUBREAPER")
    before = leftovers()
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="kill_runs_"))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "recipe.yaml").write_text(yaml.safe_dump({**RECIPE, "run": {**RECIPE["run"], "folder": str(folder)}}))
    print(f"runs and logs: {folder}", flush=True)

    started = time.monotonic()
    attempt = Attempt(folder, "undisturbed", 0)
    if attempt.wait(HANG_SECONDS) != 0:
        print(f"the undisturbed run failed: see {attempt.log}")
        return 1
    length = time.monotonic() - started
    wanted = weights(folder / "undisturbed")
    if wanted == weights(folder / "undisturbed", 1):
        print(f"the undisturbed run learned nothing, so that there is nothing to compare: see {attempt.log}")
        return 1
    problems = [f"after an undisturbed run: {name}" for name in end_children(GRACE_SECONDS)]
    print(f"undisturbed: {length:.0f} s, {STEPS} steps\n{HEADER}", flush=True)

    draw, kills, number = random.Random(arguments.seed), [], 0
    while len(kills) < arguments.kills:
        name = f"run_{number}"
        number += 1
        kills += one_run(folder, name, min(KILLS_PER_RUN, arguments.kills - len(kills)), length, draw)
        problems += [f"{name}: {fault}" for fault in faults(folder / name, wanted)]
        problems += [f"{name}: left at its end: {process}" for process in end_children(GRACE_SECONDS)]

    problems += [f"{kill.run}: {kill.target} killed: {kill.outcome}" for kill in kills if kill.outcome in BAD]
    problems += [f"left behind: {path}" for path in sorted(leftovers() - before - {str(folder)})]
    for target in TARGETS:
        counts = collections.Counter(kill.outcome for kill in kills if kill.target == target)
        print(f"{target:16}" + (", ".join(f"{count} {outcome}" for outcome, count in counts.items()) or "not hit"))
    print(f"{len(kills)} kills in {number} runs: " + ("all as it should be" if not problems else "; ".join(problems)))
    return 1 if problems else 0


HEADER = f"{'run':8}{'killed':16}{'after':>8}{'step':>6}  {'outcome':24}still there {GRACE_SECONDS:.0f} s later"
BAD = ("traceback", "hung")
commands_started: set[int] = set()  # which subprocess reaps itself


class Attempt:
    """One start of the command, or one resumption."""

    def __init__(self, folder: Path, run: str, number: int) -> None:
        self.log = folder / f"{run}.{number}.log"
        self.checkpoints = folder / run / "checkpoints"
        resume = ["--resume"] if (folder / run / "recipe.yaml").is_file() else []
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "loop_rl.cli", "train", "recipe.yaml", "--set", f"run.name={run}", *resume],
                cwd=folder,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, filter(None, sys.path)))},
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        commands_started.add(self.process.pid)
        self.started = time.monotonic()

    def wait(self, seconds: float) -> int | None:
        """The exit code; None if it is still running."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def find(self, target: str) -> int | None:
        """The process id of a target, once there is one; None when the command ended before."""
        while self.process.poll() is None:
            if target == "main":
                return self.process.pid
            for pid, command in children().items():
                if TARGETS[target] in command:
                    return pid
            time.sleep(POLL_SECONDS)
        return None

    def step(self) -> int:
        """Of the newest checkpoint; 0 without one."""
        steps = [int(path.name.removeprefix("step_")) for path in self.checkpoints.glob("step_*")]
        return max(steps, default=0)

    def outcome(self) -> str:
        """What the command made of a kill."""
        code = self.wait(HANG_SECONDS)
        if code is None:
            self.process.kill()
            self.process.wait()
            return "hung"
        if code == -signal.SIGKILL:
            return "killed"
        if "Traceback (most recent call last)" in self.log.read_text(errors="replace"):
            return "traceback"
        if code == 0:
            return "went on"
        time.sleep(1)  # a process that Ray ended is spoken for by another one
        lines = self.log.read_text(errors="replace").splitlines()
        said = any(line.startswith("loop-rl: ") for line in lines)
        return f"{'one line' if said else 'silent'}, exit code {code}"


def one_run(folder: Path, run: str, count: int, length: float, draw: random.Random) -> list[Kill]:
    """A run that is killed up to `count` times and resumed until it ends."""
    kills: list[Kill] = []
    for number in range(10 * KILLS_PER_RUN):
        attempt = Attempt(folder, run, number)
        kill = strike(attempt, run, length, draw) if len(kills) < count else None
        if kill is not None:
            kills.append(kill)
        if attempt.wait(HANG_SECONDS) == 0:
            break
        if kill is None:
            print(f"{run} failed without being killed: see {attempt.log}", flush=True)
            break
    return kills


def strike(attempt: Attempt, run: str, length: float, draw: random.Random) -> Kill | None:
    """Kill a process of the command, if that lives long enough, and see what comes of it."""
    target, step = draw.choice(list(TARGETS)), draw.randint(1, STEPS - 1)
    if draw.random() < 0.5 or step <= attempt.step():  # most of a short run is its start
        moment = draw.uniform(0, length)
    else:
        while attempt.step() < step and attempt.wait(POLL_SECONDS) is None:
            pass
        moment = draw.uniform(0, 1.0)
    if attempt.wait(moment) is not None:
        return None
    pid = attempt.find(target)
    if pid is None:
        return None
    step, seconds = attempt.step(), time.monotonic() - attempt.started
    os.kill(pid, signal.SIGKILL)
    outcome = attempt.outcome()
    # What is still there now is left to the next attempt, as it would be in use.
    kill = Kill(target, run, seconds, step, outcome, [] if outcome == "went on" else wait_for_none(GRACE_SECONDS))
    left = ", ".join(kill.left) or "nothing"
    print(f"{run:8}{target:16}{seconds:6.1f} s{step:6}  {outcome:24}{left}", flush=True)
    return kill


def faults(run: Path, wanted: bytes) -> list[str]:
    """In what a run that was killed differs from the one that was not."""
    found = []
    if weights(run) != wanted:
        found.append("its weights differ")
    for name, steps in (("metrics.jsonl", list(range(1, STEPS + 1))), ("evals.jsonl", [0, STEPS])):
        try:
            have = [json.loads(line)["step"] for line in (run / name).read_text().splitlines()]
        except (OSError, ValueError) as error:
            have = [str(error)]
        if have != steps:
            found.append(f"{name} has the steps {have}")
    return found + [f"{path.name} was left" for path in run.rglob(".*")]


def weights(run: Path, step: int = STEPS) -> bytes:
    """Of a step's checkpoint; empty without one."""
    file = run / "checkpoints" / f"step_{step}" / "model" / "model.safetensors"
    return file.read_bytes() if file.is_file() else b""


def children() -> dict[int, str]:
    """The command lines of all descendants of this process; those that have ended are reaped."""
    parents, commands = {}, {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            status = (entry / "stat").read_text()
            state, parent = status.rpartition(")")[2].split()[:2]
            if state != "Z":
                parents[int(entry.name)] = int(parent)
                commands[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
            elif int(parent) == os.getpid() and int(entry.name) not in commands_started:
                os.waitpid(int(entry.name), os.WNOHANG)
        except (OSError, ValueError):
            continue
    found: dict[int, str] = {}
    grown = True
    while grown:
        grown = False
        for pid, parent in parents.items():
            if pid not in found and (parent == os.getpid() or parent in found):
                found[pid], grown = commands[pid], True
    return found


def wait_for_none(seconds: float) -> list[str]:
    """What still runs after so many seconds, in short."""
    deadline = time.monotonic() + seconds
    while (left := children()) and time.monotonic() < deadline:
        time.sleep(0.2)
    return [short(command) for command in left.values()]


def end_children(seconds: float) -> list[str]:
    """As wait_for_none; then ends them."""
    names = wait_for_none(seconds)
    for pid in children():
        os.kill(pid, signal.SIGKILL)
    wait_for_none(5.0)
    return names


def short(command: str) -> str:
    """The part of a command line that names it: `dashboard/agent.py`, `raylet`, `ray::RolloutWorker`."""
    words = [word for word in command.split() if not word.startswith("-")]
    script = next((word for word in words[1:3] if word.endswith(".py")), words[0] if words else "a process")
    return "/".join(Path(script).parts[-2:])


def leftovers() -> set[str]:
    """What lies in /dev/shm and among temporary files, but for Ray's folder, where the logs stay that the error line of
    a failed run names, and the empty one of torch's compiler."""
    places = [Path("/dev/shm"), Path(tempfile.gettempdir())]
    return {
        str(path)
        for place in places
        if place.is_dir()
        for path in place.iterdir()
        if path.name != "ray" and not path.name.startswith("torchinductor_")
    }


if __name__ == "__main__":
    sys.exit(main())
