"""Scoring on CPU processes beside the sampling: reward workers as Ray actors, and the pool that feeds them."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import logging
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import ray
from ray.exceptions import RayError

from loop_rl.data import Example
from loop_rl.errors import UserError, first_line
from loop_rl.reward.function import RewardError
from loop_rl.reward.reward import Reward, Rewards, RewardSpec
from loop_rl.reward.scorer import LocalScorer, Scorer
from loop_rl.rollout.actors import DEATHS, MAX_RETRIES, NotReady, Refusal, accepted, answer, state, wait
from loop_rl.rollout.instance import ServerDied, check_alive, logs, of_ray, start_ray, stop_ray

log = logging.getLogger(__name__)

_CLOSE_SECONDS = 2.0
_PRINTED = 2000  # characters of what a group's scoring printed


class _Printed(io.StringIO):
    """What was printed; a function that closes its output loses nothing."""

    def close(self) -> None:
        pass


# No share of Ray's CPUs: scoring has room on a cluster whose CPUs the rollout workers fill.
@ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=0, scheduling_strategy="SPREAD")
class RewardWorker:
    """Scores completions. A restarted worker has no rewards until the pool starts it again."""

    def __init__(self, folder: str) -> None:
        if folder not in sys.path:  # the user's own functions lie where the command was called
            sys.path.append(folder)
        self._rewards: dict[RewardSpec, Reward] = {}

    def start(self, specs: list[RewardSpec]) -> list[str] | Refusal:
        """Load the rewards and let them get ready; what they say."""

        def load() -> list[str]:
            self._rewards = {spec: Reward(spec) for spec in specs}
            return [line for reward in self._rewards.values() for line in reward.start()]

        return _or_refusal(load)

    def score(
        self, spec: RewardSpec, examples: Sequence[Example], completions: Sequence[str], ids: Sequence[list[int]]
    ) -> Rewards | Refusal:
        """See Reward.score."""
        if spec not in self._rewards:
            raise NotReady("this reward worker was restarted and has no rewards yet")
        with contextlib.redirect_stdout(_Printed()) as printed:
            scores = _or_refusal(lambda: self._rewards[spec].score(examples, completions, ids))
        text = printed.getvalue()[-_PRINTED:].rstrip()
        if isinstance(scores, Refusal) and text:
            return dataclasses.replace(scores, details=f"{scores.details}\nit printed: {text}")
        return dataclasses.replace(scores, printed=text) if text else scores

    def close(self) -> None:
        """End what the rewards began."""
        for reward in self._rewards.values():
            reward.close()

    def pid(self) -> int:
        """The worker's process id."""
        return os.getpid()


def _or_refusal(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except RewardError as error:
        return Refusal(str(error), error.details)
    except UserError as error:
        return Refusal(str(error))
    except KeyboardInterrupt:  # no terminal reaches this process
        return Refusal("a reward function raised KeyboardInterrupt; no reward was made up for it")


def make_scorer(specs: Sequence[RewardSpec], workers: int) -> Scorer:
    """A RewardPool, or without workers the scorer of this process."""
    return RewardPool(specs, workers) if workers else LocalScorer(specs)


class _Ticket:
    """Completions to score, and their scores once there are some."""

    def __init__(self, *work: Any) -> None:
        self.work = work
        self.deaths = 0
        self.scores: Rewards | None = None


def _names(ticket: _Ticket) -> str:
    """The reward functions that score it."""
    return ", ".join(name for name, _ in ticket.work[0].functions)


class RewardPool:
    """`workers` reward actors on the Ray instance that is running, or else on one of this machine.

    Close it after use (it is a context manager); it shuts down Ray only if it started it. Work goes to the worker with
    the least of it at once; what a worker had when it died is scored again by its successor. A reward that can't be
    started raises UserError here, before anything is sampled.
    """

    def __init__(self, specs: Sequence[RewardSpec], workers: int = 1) -> None:
        self._specs = list(dict.fromkeys(specs))
        self._owns_ray = start_ray(workers)
        self.workers: list[Any] = []
        self.restarts = 0
        self._queues: list[dict[Any, _Ticket]] = [{} for _ in range(workers)]  # in order of submission
        try:
            self.workers = [RewardWorker.remote(os.getcwd()) for _ in range(workers)]
            lines = [line for worker in range(workers) for line in self._start(worker)]
        except BaseException:
            self.close(failed=True)
            raise
        self.notes = list(dict.fromkeys(lines))

    def _start(self, worker: int) -> list[str]:
        actor = self.workers[worker]
        return accepted(answer(actor, lambda: actor.start.remote(self._specs), f"reward worker {worker}"))

    def submit(
        self, spec: RewardSpec, examples: Sequence[Example], completions: Sequence[str], ids: Sequence[list[int]]
    ) -> _Ticket:
        """See Scorer."""
        self._collect(until_one=False)
        ticket = _Ticket(spec, list(examples), list(completions), list(ids))
        self._send(min(range(len(self.workers)), key=lambda worker: len(self._queues[worker])), ticket)
        return ticket

    def gather(self, tickets: Sequence[_Ticket]) -> list[Rewards]:
        """See Scorer."""
        while any(ticket.scores is None for ticket in tickets):
            self._collect(until_one=True)
        return [ticket.scores for ticket in tickets if ticket.scores is not None]

    def _send(self, worker: int, ticket: _Ticket) -> None:
        self._queues[worker][self.workers[worker].score.remote(*ticket.work)] = ticket

    def _collect(self, until_one: bool) -> None:
        """Takes in the scores that are there; with `until_one`, waits for one."""
        places = {reference: worker for worker, queue in enumerate(self._queues) for reference in queue}
        if not places:
            return
        references = list(places)
        if until_one:
            ready = wait(references, self._waited_for)
        else:
            ready, _ = ray.wait(references, num_returns=len(references), timeout=0)
        for reference in ready:
            worker = places[reference]
            ticket = self._queues[worker].pop(reference, None)
            if ticket is None:
                continue  # sent again meanwhile, with all that its worker had
            try:
                ticket.scores = accepted(ray.get(reference))
                for line in ticket.scores.printed.splitlines():
                    print(f"reward worker {worker}: {line}", file=sys.stderr)
            except DEATHS as error:
                self._again(worker, ticket, error)

    def _waited_for(self) -> str:
        """The rewards that are being computed, each with its process."""
        busy = []
        for worker, queue in enumerate(self._queues):
            if queue:
                names = _names(next(iter(queue.values())))
                busy.append(f"{names} in reward worker {worker} (pid {state(self.workers[worker])['Pid']})")
        return f"scores of {'; '.join(busy)}"

    def _again(self, worker: int, ticket: _Ticket, error: Exception) -> None:
        """Restart a dead worker and give it back what it had, first what it died on."""
        check_alive()
        self.restarts += 1
        ticket.deaths += 1
        lost = [ticket, *self._queues[worker].values()]
        self._queues[worker].clear()
        log.warning(
            "reward worker %d died in %s (%s); scoring its %d groups again",
            worker,
            _names(ticket),
            first_line(error),
            len(lost),
        )
        if ticket.deaths > MAX_RETRIES:
            raise UserError(
                f"{_names(ticket)}: reward worker {worker} died {ticket.deaths} times on the same completions, "
                f"{ticket.work[2][0][:80]!r} the first ({first_line(error)}); its log is in {logs()}; no reward was "
                "made up for them"
            ) from error
        self._start(worker)
        for one in lost:
            self._send(worker, one)

    def __enter__(self) -> RewardPool:
        return self

    def __exit__(self, kind: object, error: BaseException | None, *_: object) -> None:
        self.close(failed=error is not None)
        if (line := of_ray(error)) is not None:
            raise line from error

    def close(self, failed: bool = False) -> None:
        """End the workers and what their rewards began, and Ray if this pool started it."""
        if ray.is_initialized():
            with contextlib.suppress(RayError, ServerDied):
                check_alive()  # a dead server's answer is waited for until Ray ends this process
                ends = [worker.close.remote() for worker in self.workers]
                ray.wait(ends, num_returns=len(ends), timeout=_CLOSE_SECONDS)
                for worker in self.workers:
                    ray.kill(worker)
            if self._owns_ray:
                stop_ray(failed)
        self.workers = []
