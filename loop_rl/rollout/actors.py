"""Actors that may die: what their deaths look like, and asking one again until Ray has restarted it."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, RayActorError

from loop_rl.errors import UserError

log = logging.getLogger(__name__)


class NotReady(RuntimeError):
    """Raised by an actor that Ray has started anew, and that hasn't been given what it needs yet."""


@dataclass(frozen=True)
class Refusal:
    """A UserError of a worker, as a value: raised there, Ray would bury its line in a traceback."""

    message: str


def accepted(value: Any) -> Any:
    """What a worker returned; raises the UserError that it returned in its place."""
    if isinstance(value, Refusal):
        raise UserError(value.message)
    return value


DEATHS = (RayActorError, ActorUnavailableError, NotReady)
# Work whose worker died this often brings the run down: the fault is then likely the work's (memory, say).
MAX_RETRIES = 3
RESTART_SECONDS = 120.0
LOGS = "its log is in /tmp/ray/session_latest/logs"


def first_line(error: BaseException) -> str:
    """The first line of a message; Ray's go on for many."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


def answer(call: Callable[[], ray.ObjectRef], worker: str) -> Any:
    """What `call` (a remote call, made anew each time) returns, asked for as long as Ray is restarting the actor.

    Raises UserError, naming `worker`, when it is not back within RESTART_SECONDS.
    """
    deadline = time.monotonic() + RESTART_SECONDS
    while True:
        try:
            return ray.get(call())
        except DEATHS as error:
            # Ray answers "unavailable" for as long as it is restarting the actor.
            if time.monotonic() > deadline:
                raise UserError(
                    f"{worker} did not come back within {RESTART_SECONDS:.0f} s of its death ({first_line(error)}); "
                    f"{LOGS}; the same command goes on (loop-rl train: with --resume)"
                ) from error
            log.warning("%s is not back yet (%s)", worker, first_line(error))
            time.sleep(0.5)
