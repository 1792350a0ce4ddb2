"""`loop-rl submit`: the same run on a Ray cluster, through Ray Jobs."""

from __future__ import annotations

import asyncio
import base64
import os
import shlex
import signal
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from typing import Any

from loop_rl.commands.recipes import load_for
from loop_rl.errors import UserError

FORWARDED = ("LOOP_RL_", "HF_", "NCCL_")
DEFAULT_ADDRESS = "http://127.0.0.1:8265"
ANSWER_SECONDS = 5.0


def entrypoint(recipe: Any, resume: bool) -> str:
    """The command that the cluster runs: the resolved recipe travels inside it, so no file of this machine is needed."""
    text = base64.b64encode(recipe.dump_yaml().encode()).decode()
    file = f"{recipe.run.name}.yaml"
    write = f'import base64, pathlib; pathlib.Path({file!r}).write_bytes(base64.b64decode("{text}"))'
    train = ["python", "-m", "loop_rl.cli", "train", file, *(["--resume"] if resume else [])]
    return f"python -c {shlex.quote(write)} && exec {shlex.join(train)}"


def environment() -> dict[str, str]:
    """The variables that the run reads and that are set here."""
    return {name: value for name, value in os.environ.items() if name.startswith(FORWARDED)}


def submit(name: str, address: str | None, overrides: Sequence[str], resume: bool = False) -> int:
    """Hands the run to the cluster, prints its log as it is written, and returns its exit code.

    The recipe is resolved and checked here first. Interrupting stops the job. Raises UserError when no cluster answers.
    """
    recipe = load_for("train", name, overrides)
    if recipe.rollout.cluster is None:  # the job runs inside a cluster, and its workers belong there
        recipe = recipe.model_copy(update={"rollout": recipe.rollout.model_copy(update={"cluster": "auto"})})
    address = address or os.environ.get("RAY_API_SERVER_ADDRESS") or DEFAULT_ADDRESS
    client = connect(address)
    job = client.submit_job(entrypoint=entrypoint(recipe, resume), runtime_env={"env_vars": environment()})
    print(f"loop-rl: job {job} on {address}", file=sys.stderr)
    try:
        asyncio.run(_follow(client, job))
    except KeyboardInterrupt:
        client.stop_job(job)
        print(f"loop-rl: job {job} is being stopped; add --resume to go on", file=sys.stderr)
        return 128 + signal.SIGINT
    return exit_code(client.get_job_info(job))


def connect(address: str) -> Any:
    """A client of the cluster's job server; UserError, after seconds, when it can't be used."""
    mend = "start one with `ray start --head`, or give the address of its dashboard: --address http://HOST:8265"
    if address.startswith("http"):
        try:
            urllib.request.urlopen(f"{address.rstrip('/')}/api/version", timeout=ANSWER_SECONDS).close()
        except urllib.error.HTTPError:
            pass  # it answers; the client below knows how to ask
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise UserError(f"no Ray cluster answers at {address} ({reason}); {mend}") from None
    from ray.job_submission import JobSubmissionClient

    try:
        client = JobSubmissionClient(address)
        client.list_jobs()
    except Exception as error:  # connection, version and authentication errors share no class
        cause = " ".join(str(error).split())[:300]
        if "auth" in cause.lower() or "401" in cause:
            mend = "set RAY_AUTH_MODE (token or disabled) to the same value here and where `ray start` ran"
        raise UserError(f"the Ray cluster at {address} can't be used ({cause}); {mend}") from None
    return client


async def _follow(client: Any, job: str) -> None:
    async for text in client.tail_job_logs(job):
        print(text, end="", flush=True)


def exit_code(info: Any) -> int:
    """The run's own exit code; 1 where the job failed without one."""
    if str(info.status) == "SUCCEEDED":
        return 0
    code = getattr(info, "driver_exit_code", None)
    if code is None:
        print(f"loop-rl: the job ended as {info.status}: {info.message}", file=sys.stderr)
    return code or 1
