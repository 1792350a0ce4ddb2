"""Actors that may die: what their deaths look like, waiting for them, and asking again those that Ray restarts."""

import logging
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray._private.state import actors
from ray.actor import ActorHandle
from ray.exceptions import ActorUnavailableError, RayActorError

from loop_rl.errors import UserError, first_line
from loop_rl.rollout.instance import check_alive, logs

log = logging.getLogger(__name__)


class NotReady(RuntimeError):
    """Raised by an actor that Ray has restarted, and that hasn't been given what it needs yet."""


@dataclass(frozen=True)
class Refusal:
    """A UserError of a worker, as a value: raised there, Ray would bury its line in a traceback.

    details: lines to print before it.
    """

    message: str
    details: str = ""


def accepted(value: Any) -> Any:
    """What a worker returned; raises the UserError that it returned in its place."""
    if isinstance(value, Refusal):
        if value.details:
            print(value.details, file=sys.stderr)
        raise UserError(value.message)
    return value


DEATHS = (RayActorError, ActorUnavailableError, NotReady)
# Work whose worker died this often brings the run down: the fault is then likely the work's (memory, say).
MAX_RETRIES = 3
_TICK_SECONDS = 2.0
_SAY_SECONDS = 60.0  # doubled each time, as the next one
_SAY_STARTING_SECONDS = 15.0


def wait(references: Sequence[Any], waited_for: Callable[[], str]) -> list[Any]:
    """Waits for one of the references at least; those that are ready.

    Says what is waited for after a minute, then after ever longer. UserError when Ray's own servers die meanwhile.
    """
    began, say = time.monotonic(), _SAY_SECONDS
    while True:
        ready, _ = ray.wait(list(references), num_returns=1, timeout=_TICK_SECONDS)
        if ready:
            return ready
        check_alive()
        waited = time.monotonic() - began
        if waited > say:
            log.warning("waiting for %s, for %.0f s now", waited_for(), waited)
            say *= 2


def answer(actor: ActorHandle, call: Callable[[], ray.ObjectRef], worker: str) -> Any:
    """What `call` (a remote call of the actor, made again each time) returns, though Ray restarts the actor meanwhile.

    Raises UserError, naming `worker`, when it can't be created, or dies again and again.
    """
    before, began, say = state(actor)["NumRestarts"], time.monotonic(), _SAY_STARTING_SECONDS
    reference: ray.ObjectRef | None = call()
    while True:
        if reference is None:
            time.sleep(0.5)
            reference = call()
        elif ray.wait([reference], timeout=_TICK_SECONDS)[0]:
            try:
                return ray.get(reference)
            except DEATHS as error:
                if getattr(error, "actor_init_failed", False):
                    raise UserError(f"{worker} can't be created ({_cause(error)}); its log is in {logs()}") from error
                reference = None  # Ray answers "unavailable" for as long as it is restarting the actor
        check_alive()
        now, waited = state(actor), time.monotonic() - began
        if now["NumRestarts"] - before > MAX_RETRIES:
            raise UserError(
                f"{worker} (pid {now['Pid']}) died {now['NumRestarts'] - before} times before it could work, killed or "
                f"short of memory; its log is in {logs()}"
            )
        if waited > say:
            log.warning("waiting for %s, for %.0f s now (%s)", worker, waited, now["State"].lower().replace("_", " "))
            say *= 2


def state(actor: ActorHandle) -> dict[str, Any]:
    """What Ray's server knows of an actor, also while it is busy or dead: State, Pid and NumRestarts."""
    return {"State": "PENDING_CREATION", "Pid": 0, "NumRestarts": 0, **actors(actor._actor_id.hex())}


def _cause(error: Exception) -> str:
    """The last exception's own line or lines of a traceback that Ray made text."""
    found: list[str] = []
    for line in reversed(str(error).strip().splitlines()):
        if line.startswith((" ", "\x1b", "The actor died")):
            break
        found.insert(0, line)
    return " ".join(" ".join(found).split()) or first_line(error)
