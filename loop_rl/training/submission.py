"""`loop-rl submit`: the same run on a Ray cluster, through Ray Jobs."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from loop_rl.data.names import is_own_file
from loop_rl.errors import UserError
from loop_rl.recipe.kinds import load_for
from loop_rl.recipe.rl import Recipe
from loop_rl.training.job import VARIABLE

FORWARDED = ("LOOP_RL_", "HF_", "NCCL_")
DEFAULT_ADDRESS = "http://127.0.0.1:8265"
ANSWER_SECONDS = 5.0
STOP_SECONDS = 300  # for a stopped run to end its step and to save; Ray's own 3 would cut it off


def entrypoint(resume: bool) -> str:
    """The command that the cluster runs, in the Python environment in which it was started."""
    return "exec python -m loop_rl.training.job train" + (" --resume" if resume else "")


def job_environment(recipe: Recipe) -> dict[str, str]:
    """The job's variables: the resolved recipe, so that it needs no file of this machine, and those set here."""
    forwarded = {name: value for name, value in os.environ.items() if name.startswith(FORWARDED)}
    # The run forwards its variables to its workers, and Ray refuses one that the job has been given already.
    return {
        **forwarded,
        "RAY_OVERRIDE_JOB_RUNTIME_ENV": "1",
        "RAY_JOB_STOP_WAIT_TIME_S": str(STOP_SECONDS),
        VARIABLE: recipe.dump_yaml(),
    }


def for_cluster(recipe: Recipe) -> Recipe:
    """The recipe with its workers on the job's own cluster, and files that are here by their whole paths."""
    rollout, data, model = recipe.rollout, recipe.data, recipe.model
    if rollout.cluster is None:
        rollout = rollout.model_copy(update={"cluster": "auto"})
    if data.folder is not None:
        data = data.model_copy(update={"folder": _whole(data.folder)})
    if is_own_file(data.name):
        data = data.model_copy(update={"name": _whole(data.name)})
    if model.path != "embedded":  # a hub id is no folder here, and stays as it is
        model = model.model_copy(update={"path": _whole(model.path)})
    further = [_whole(name) for name in recipe.eval.data]
    evaluation = recipe.eval.model_copy(update={"data": further})
    return recipe.model_copy(update={"rollout": rollout, "data": data, "model": model, "eval": evaluation})


def _whole(path: str) -> str:
    local = Path(path).expanduser()
    return str(local.resolve()) if local.exists() else path


def submit(name: str, address: str | None, overrides: Sequence[str], resume: bool = False) -> int:
    """Hands the run to the cluster, prints its log as it is written, and returns its exit code.

    The recipe is resolved and checked here first. Interrupting stops the job. Raises UserError when no cluster answers.
    """
    recipe = for_cluster(load_for("train", name, overrides))
    address = address or os.environ.get("RAY_API_SERVER_ADDRESS") or DEFAULT_ADDRESS
    client = connect(address)
    job = client.submit_job(entrypoint=entrypoint(resume), runtime_env={"env_vars": job_environment(recipe)})
    print(f"loop-rl: job {job} on {address}", file=sys.stderr)
    try:
        asyncio.run(_follow(client, job))
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the request below goes out even to an impatient user
        client.stop_job(job)
        print(f"loop-rl: job {job} is being stopped; add --resume to go on", file=sys.stderr)
        return 128 + signal.SIGINT
    return exit_code(client.get_job_info(job))


def connect(address: str) -> Any:
    """A client of the cluster's job server; UserError, after seconds, when it can't be used."""
    fix = "start one with `ray start --head`, or give the address of its dashboard: --address http://HOST:8265"
    if address.startswith("http"):
        try:
            urllib.request.urlopen(f"{address.rstrip('/')}/api/jobs/", timeout=ANSWER_SECONDS).close()
        except urllib.error.HTTPError as error:
            # It answers. `ray start` turns token authentication on by itself where a token file exists; the client
            # doesn't, and reads the variable once, when it is imported.
            if error.code == 401:
                os.environ.setdefault("RAY_AUTH_MODE", "token")
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise UserError(f"no Ray cluster answers at {address} ({reason}); {fix}") from None
    from ray.job_submission import JobSubmissionClient

    try:
        client = JobSubmissionClient(address)
        client.list_jobs()
    except Exception as error:  # connection, version and authentication errors share no class
        cause = " ".join(str(error).split())[:300]
        if "auth" in cause.lower() or "401" in cause:
            fix = (
                "give this machine the cluster's token (~/.ray/auth_token or RAY_AUTH_TOKEN) and RAY_AUTH_MODE=token, "
                "or start the cluster with RAY_AUTH_MODE=disabled"
            )
        raise UserError(f"the Ray cluster at {address} can't be used ({cause}); {fix}") from None
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
