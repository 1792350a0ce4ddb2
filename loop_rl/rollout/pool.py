"""Rollout workers as Ray actors, and the pool that spreads groups over them and keeps their weights current."""

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import ray
import torch
from torch import Tensor

from loop_rl.errors import UserError
from loop_rl.models import LoopedConfig, LoopedForCausalLM
from loop_rl.models.prefill import PrefillStudent
from loop_rl.rollout.actors import DEATHS, LOGS, MAX_RETRIES, NotReady, answer, first_line
from loop_rl.rollout.record import Rollout
from loop_rl.rollout.sampler import stream_groups, to_numpy, to_torch
from loop_rl.rollout.sampling import Sampling

log = logging.getLogger(__name__)

_FORWARDED = ("LOOP_RL_", "MBPP_", "HF_", "NCCL_", "CUDA_", "OMP_", "TOKENIZERS_", "PYTHONPATH")


@ray.remote(max_restarts=-1, max_task_retries=0)
class RolloutWorker:
    """Holds a copy of the model. A restarted worker has no weights until the pool sends them again."""

    def __init__(
        self, config: dict[str, Any], dtype: str, threads: int, student: dict[str, np.ndarray] | None = None
    ) -> None:
        """student: weights of a PrefillStudent that reads the prompts."""
        torch.set_num_threads(threads)
        self.student_weights, self.student = student, None
        self.config, self.dtype = config, getattr(torch, dtype)
        self.model: LoopedForCausalLM | None = None
        self.version = -1

    def set_weights(self, weights: dict[str, np.ndarray], version: int) -> int:
        """Take new weights; returns their version."""
        if self.model is None:
            device = "cuda" if torch.cuda.is_available() else "cpu"
            self.model = LoopedForCausalLM(LoopedConfig(**self.config)).to(device, self.dtype).eval()
            if self.student_weights is not None:
                self.student = PrefillStudent(self.model.model)
                self.student.load_state_dict({name: to_torch(w) for name, w in self.student_weights.items()})
        self.model.load_state_dict({name: to_torch(value) for name, value in weights.items()})
        self.version = version
        return version

    def sample(self, prompts: list[list[int]], sampling: Sampling, seeds: list[int]) -> Iterator[tuple[int, Rollout]]:
        """The groups of these prompts as each ends, with its prompt's place, marked with the weights' version."""
        if self.model is None:
            raise NotReady("this rollout worker was started anew and has no weights yet")
        yield from stream_groups(self.model, prompts, sampling, seeds, self.version, self.student)

    def environment(self) -> dict[str, str]:
        """The worker's environment variables and process id."""
        return {**os.environ, "pid": str(os.getpid())}


class RolloutPool:
    """`workers` rollout actors, on a Ray instance of this machine or on the cluster at `cluster`.

    A worker has a GPU of its own where there are enough beside `learner_gpus`. Close the pool after use (it is a
    context manager); it shuts down Ray only if it started it.
    """

    def __init__(
        self,
        config: LoopedConfig,
        dtype: str = "float32",
        workers: int = 1,
        cluster: str | None = None,
        threads: int = 1,
        learner_gpus: int = 1,
        student: PrefillStudent | None = None,
    ) -> None:
        self._owns_ray = not ray.is_initialized()
        if self._owns_ray:
            if cluster is None and "RAY_JOB_ID" in os.environ:
                cluster = "auto"
            if cluster is None:
                os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
                # A private instance on this machine needs no token, and says so at every start otherwise.
                os.environ.setdefault("RAY_AUTH_MODE", "disabled")
                ray.init(
                    address="local",
                    num_cpus=workers,
                    include_dashboard=False,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                    configure_logging=False,
                )
            else:
                env = {key: value for key, value in os.environ.items() if key.startswith(_FORWARDED)}
                ray.init(address=cluster, runtime_env={"env_vars": env}, log_to_driver=False)
        gpus = 1 if ray.cluster_resources().get("GPU", 0) >= workers + learner_gpus else 0
        make = RolloutWorker.options(num_cpus=1, num_gpus=gpus)
        weights = None if student is None else {name: to_numpy(w.cpu()) for name, w in student.state_dict().items()}
        self.workers = [make.remote(config.to_dict(), dtype, threads, weights) for _ in range(workers)]
        self.version = -1
        self.restarts = 0
        self._weights: Any = None

    def __enter__(self) -> "RolloutPool":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send_weights(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Give every worker these weights (a state dict of LoopedForCausalLM)."""
        self._weights = ray.put({name: to_numpy(value.detach().cpu()) for name, value in weights.items()})
        self.version = version
        for index in range(len(self.workers)):
            self._arm(index)

    def _arm(self, index: int) -> None:
        """Send the current weights to one worker, again if it dies meanwhile."""
        send = self.workers[index].set_weights
        answer(lambda: send.remote(self._weights, self.version), f"rollout worker {index}")

    def generate(
        self,
        prompts: list[list[int]],
        sampling: Sampling,
        seeds: list[int],
        on_group: Callable[[int, Rollout], None] | None = None,
    ) -> list[Rollout]:
        """Sample every prompt's group; a chunk whose worker dies is sampled again, with the same seeds.

        `on_group(index, rollout)` is called as soon as a group has ended, while others are still being sampled, so
        that it can be scored meanwhile.
        """
        results: list[Rollout | None] = [None] * len(prompts)
        chunks = [list(chunk) for chunk in np.array_split(np.arange(len(prompts)), len(self.workers)) if len(chunk)]
        streams = {self._submit(w, chunk, prompts, sampling, seeds): (w, chunk, 0) for w, chunk in enumerate(chunks)}
        while streams:
            (stream,), _ = ray.wait(list(streams), num_returns=1)
            worker, chunk, retries = streams[stream]
            try:
                place, rollout = ray.get(next(stream))
            except StopIteration:
                del streams[stream]
                continue
            except DEATHS as error:
                del streams[stream]
                self.restarts += 1
                log.warning("rollout worker %d died (%s); sampling its %d groups again", worker, error, len(chunk))
                if retries == MAX_RETRIES:
                    raise UserError(
                        f"rollout worker {worker} died {retries + 1} times on the same {len(chunk)} groups "
                        f"({first_line(error)}); {LOGS}; if memory is short lower rollout.prompts_per_step, "
                        "then --resume"
                    ) from error
                self._arm(worker)
                # All of the chunk: in a smaller batch, sums would be rounded otherwise.
                streams[self._submit(worker, chunk, prompts, sampling, seeds)] = (worker, chunk, retries + 1)
                continue
            index = int(chunk[place])
            if results[index] is None:
                results[index] = rollout
                if on_group is not None:
                    on_group(index, rollout)
        return results  # type: ignore[return-value]

    def _submit(
        self, worker: int, chunk: list[int], prompts: list[list[int]], sampling: Sampling, seeds: list[int]
    ) -> Any:
        sample = self.workers[worker].sample.options(num_returns="streaming")
        return sample.remote([prompts[i] for i in chunk], sampling, [seeds[i] for i in chunk])

    def close(self) -> None:
        """End the workers, and Ray if this pool started it."""
        for worker in self.workers:
            ray.kill(worker)
        self.workers = []
        if self._owns_ray and ray.is_initialized():
            ray.shutdown()
