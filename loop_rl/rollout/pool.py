"""Rollout workers as Ray actors, and the pool that spreads groups over them and keeps their weights current."""

import logging
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import ray
import torch
from ray.exceptions import ActorUnavailableError, RayActorError
from torch import Tensor

from loop_rl.errors import UserError
from loop_rl.models import LoopedConfig, LoopedForCausalLM
from loop_rl.rollout.record import Rollout
from loop_rl.rollout.sampler import sample_groups, to_numpy, to_torch
from loop_rl.rollout.sampling import Sampling

log = logging.getLogger(__name__)

# A chunk whose worker died this often brings the run down: the fault is then likely the chunk's (memory, say).
MAX_RETRIES = 3
RESTART_SECONDS = 120.0
_FORWARDED = ("LOOP_RL_", "HF_", "NCCL_", "CUDA_", "OMP_", "TOKENIZERS_", "PYTHONPATH")


@ray.remote(max_restarts=-1, max_task_retries=0)
class RolloutWorker:
    """Holds a copy of the model. A restarted worker has no weights until the pool sends them again."""

    def __init__(self, config: dict[str, Any], dtype: str, threads: int) -> None:
        torch.set_num_threads(threads)
        self.config, self.dtype = config, getattr(torch, dtype)
        self.model: LoopedForCausalLM | None = None
        self.version = -1

    def set_weights(self, weights: dict[str, np.ndarray], version: int) -> int:
        """Take new weights; returns their version."""
        if self.model is None:
            device = "cuda" if torch.cuda.is_available() else "cpu"
            self.model = LoopedForCausalLM(LoopedConfig(**self.config)).to(device, self.dtype).eval()
        self.model.load_state_dict({name: to_torch(value) for name, value in weights.items()})
        self.version = version
        return version

    def sample(self, prompts: list[list[int]], sampling: Sampling, seeds: list[int]) -> list[Rollout]:
        """Groups for these prompts, marked with the version of the weights that sampled them."""
        if self.model is None:
            raise RuntimeError("this rollout worker was started anew and has no weights yet")
        return sample_groups(self.model, prompts, sampling, seeds, self.version)

    def environment(self) -> dict[str, str]:
        """The worker's environment variables and process id."""
        return {**os.environ, "pid": str(os.getpid())}


class RolloutPool:
    """`workers` rollout actors, on a Ray instance of this machine or on the cluster at `cluster`.

    Close it after use (it is a context manager); it shuts down Ray only if it started it.
    """

    def __init__(
        self,
        config: LoopedConfig,
        dtype: str = "float32",
        workers: int = 1,
        cluster: str | None = None,
        threads: int = 1,
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
        gpus = 1 if ray.cluster_resources().get("GPU", 0) >= workers + 1 else 0
        make = RolloutWorker.options(num_cpus=1, num_gpus=gpus)
        self.workers = [make.remote(config.to_dict(), dtype, threads) for _ in range(workers)]
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
        deadline = time.monotonic() + RESTART_SECONDS
        while True:
            try:
                ray.get(self.workers[index].set_weights.remote(self._weights, self.version))
                return
            except (RayActorError, ActorUnavailableError) as error:
                # Ray answers "unavailable" for as long as it is restarting the actor.
                if time.monotonic() > deadline:
                    raise UserError(
                        f"rollout worker {index} did not come back within {RESTART_SECONDS:.0f} s of its death "
                        f"({str(error).splitlines()[0]}); its log is in /tmp/ray/session_latest/logs; "
                        "go on with --resume"
                    ) from error
                log.warning("rollout worker %d can't take weights yet (%s)", index, str(error).splitlines()[0])
                time.sleep(0.5)

    def generate(
        self,
        prompts: list[list[int]],
        sampling: Sampling,
        seeds: list[int],
        on_group: Callable[[int, Rollout], None] | None = None,
    ) -> list[Rollout]:
        """Sample every prompt's group; a chunk whose worker dies is sampled again, with the same seeds.

        `on_group(index, rollout)` is called as soon as a group has arrived, so that scoring overlaps with sampling.
        """
        results: list[Rollout | None] = [None] * len(prompts)
        chunks = [list(chunk) for chunk in np.array_split(np.arange(len(prompts)), len(self.workers)) if len(chunk)]
        pending = {self._submit(w, chunk, prompts, sampling, seeds): (w, chunk, 0) for w, chunk in enumerate(chunks)}
        while pending:
            (done,), _ = ray.wait(list(pending), num_returns=1)
            worker, chunk, retries = pending.pop(done)
            try:
                rollouts = ray.get(done)
            except (RayActorError, ActorUnavailableError) as error:
                self.restarts += 1
                log.warning("rollout worker %d died (%s); sampling its %d groups again", worker, error, len(chunk))
                if retries == MAX_RETRIES:
                    raise UserError(
                        f"rollout worker {worker} died {retries + 1} times on the same {len(chunk)} groups; its log "
                        "is in /tmp/ray/session_latest/logs; if memory is short "
                        "lower rollout.prompts_per_step, then --resume"
                    ) from error
                self._arm(worker)
                pending[self._submit(worker, chunk, prompts, sampling, seeds)] = (worker, chunk, retries + 1)
                continue
            for index, rollout in zip(chunk, rollouts, strict=True):
                results[index] = rollout
                if on_group is not None:
                    on_group(int(index), rollout)
        return results  # type: ignore[return-value]

    def _submit(
        self, worker: int, chunk: list[int], prompts: list[list[int]], sampling: Sampling, seeds: list[int]
    ) -> Any:
        return self.workers[worker].sample.remote([prompts[i] for i in chunk], sampling, [seeds[i] for i in chunk])

    def close(self) -> None:
        """End the workers, and Ray if this pool started it."""
        for worker in self.workers:
            ray.kill(worker)
        self.workers = []
        if self._owns_ray and ray.is_initialized():
            ray.shutdown()
