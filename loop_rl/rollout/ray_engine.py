"""Rollout workers as Ray actors, and the pool that spreads groups over them and keeps their weights current."""

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import ray
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from loop_rl.errors import UserError, first_line
from loop_rl.models import LoopedConfig, LoopedForCausalLM
from loop_rl.models.prefill import PrefillStudent
from loop_rl.rollout.actors import DEATHS, MAX_RETRIES, NotReady, Refusal, accepted, answer, state, wait
from loop_rl.rollout.instance import check_alive, logs, of_ray, start_ray, stop_ray
from loop_rl.rollout.local_engine import LocalEngine
from loop_rl.rollout.placement import Placement
from loop_rl.rollout.record import Rollout
from loop_rl.rollout.sampler import to_numpy, to_torch
from loop_rl.rollout.sampling import Sampling

if TYPE_CHECKING:
    from loop_rl.recipe.rl import LoraSection

log = logging.getLogger(__name__)


@ray.remote(max_restarts=-1, max_task_retries=0)
class RolloutWorker:
    """A LocalEngine on a process of its own. A restarted one has no weights until the pool sends them again."""

    def __init__(
        self,
        config: dict[str, Any],
        dtype: str,
        threads: int,
        student: dict[str, np.ndarray] | None = None,
        tokenizer: PreTrainedTokenizerBase | None = None,
        lora: "LoraSection | None" = None,
    ) -> None:
        """student: weights of a PrefillStudent that reads the prompts."""
        torch.set_num_threads(threads)
        self.engine = LocalEngine(LoopedConfig(**config), dtype, tokenizer=tokenizer, lora=lora)
        if student is not None:
            model = self.engine.model
            with torch.device("meta"):  # of the plain model: the engine's core may have adapters
                empty = PrefillStudent(LoopedForCausalLM(model.config).model)
            self.engine.student = empty.to_empty(device=model.device).to(model.dtype).eval()
            self.engine.student.load_state_dict({name: to_torch(value) for name, value in student.items()})
        self.whole = ""

    def set_weights(self, parts: list[ray.ObjectRef], version: int) -> int:
        """Take new weights; returns their version.

        parts: the last whole state dict, and what has changed since; references in a list, so that Ray fetches none
        that is here already.
        """
        for part in parts if parts[0].hex() != self.whole else parts[1:]:
            self.engine.send_weights({name: to_torch(value) for name, value in ray.get(part).items()}, version)
        self.whole = parts[0].hex()
        return version

    def sample(
        self, prompts: list[list[int]], sampling: Sampling, seeds: list[int]
    ) -> Iterator[tuple[int, Rollout] | Refusal]:
        """See LocalEngine.stream; a UserError comes as a Refusal, the last one yielded."""
        if self.engine.version < 0:
            raise NotReady("this rollout worker was restarted and has no weights yet")
        try:
            yield from self.engine.stream(prompts, sampling, seeds)
        except UserError as error:
            yield Refusal(str(error))

    def place(self) -> tuple[str, list[str]]:
        """The node that it is on, and the ids of the GPUs that Ray gave it."""
        context = ray.get_runtime_context()
        return context.get_node_id(), [str(gpu) for gpu in ray.get_gpu_ids()]

    def environment(self) -> dict[str, str]:
        """The worker's environment variables and process id."""
        return {**os.environ, "pid": str(os.getpid())}


class RolloutPool:
    """`workers` rollout actors, on a Ray instance of this machine or on the cluster at `cluster`. See Engine.

    learner_gpus: GPUs of this machine on which ranks of the learner compute, which no worker gets while there are
    others. Close the pool after use (it is a context manager); it shuts down Ray only if it started it.
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
        tokenizer: PreTrainedTokenizerBase | None = None,
        lora: "LoraSection | None" = None,
    ) -> None:
        self._owns_ray = start_ray(workers, cluster)
        self.workers: list[Any] = []
        self._placement: Placement | None = None
        try:
            cpus = ray.cluster_resources().get("CPU", 0)
            if cpus < workers:
                raise UserError(
                    f"rollout.workers: {workers} workers take a CPU of Ray's each, and it has {cpus:.0f}; lower it, or "
                    "add nodes to the cluster"
                )
            self._placement = Placement(workers, learner_gpus)
            weights = None if student is None else {name: to_numpy(w.cpu()) for name, w in student.state_dict().items()}
            make = RolloutWorker.options(num_cpus=1, num_gpus=self._placement.gpus_per_worker)
            arguments = (config.to_dict(), dtype, threads, weights, tokenizer, lora)
            self.workers = [make.remote(*arguments) for _ in range(workers)]
            places = [answer(w, w.place.remote, f"rollout worker {i}") for i, w in enumerate(self.workers)]
            names = {node["NodeID"]: node["NodeManagerHostname"] for node in ray.nodes()}
            self.places = [(names.get(node, node), gpus) for node, gpus in places]
            self.notes = [self._placement.text(places)] if self._placement.gpus else []
        except BaseException:
            self.close(failed=True)
            raise
        self.version = -1
        self.restarts = 0
        self._names: set[str] = set()
        self._parts: list[ray.ObjectRef] = []  # see RolloutWorker.set_weights

    def __enter__(self) -> "RolloutPool":
        return self

    def __exit__(self, kind: object, error: BaseException | None, *_: object) -> None:
        self.close(failed=error is not None)
        if (line := of_ray(error)) is not None:
            raise line from error

    def send_weights(self, weights: Mapping[str, Tensor], version: int) -> None:
        """See Engine."""
        check_alive()
        part = ray.put({name: to_numpy(value.detach().cpu()) for name, value in weights.items()})
        if weights.keys() >= self._names:
            self._names, self._parts = set(weights), [part]
        else:
            self._parts = [self._parts[0], part]
        self.version = version
        for index in range(len(self.workers)):
            self._arm(index)

    def _arm(self, index: int) -> None:
        """Send the current weights to one worker, again if it dies meanwhile."""
        worker = self.workers[index]
        answer(worker, lambda: worker.set_weights.remote(self._parts, self.version), f"rollout worker {index}")

    def generate(
        self,
        prompts: list[list[int]],
        sampling: Sampling,
        seeds: list[int],
        on_group: Callable[[int, Rollout], None] | None = None,
    ) -> list[Rollout]:
        """See Engine. A chunk whose worker dies is sampled again, with the same seeds."""
        check_alive()
        results: list[Rollout | None] = [None] * len(prompts)
        chunks = [list(chunk) for chunk in np.array_split(np.arange(len(prompts)), len(self.workers)) if len(chunk)]
        streams = {self._submit(w, chunk, prompts, sampling, seeds): (w, chunk, 0) for w, chunk in enumerate(chunks)}
        while streams:
            stream = wait(list(streams), lambda: self._named(worker for worker, _, _ in streams.values()))[0]
            worker, chunk, retries = streams[stream]
            try:
                place, rollout = accepted(ray.get(next(stream)))
            except StopIteration:
                del streams[stream]
                continue
            except DEATHS as error:
                del streams[stream]
                check_alive()
                self.restarts += 1
                log.warning(
                    "rollout worker %d died (%s); sampling its %d groups again", worker, first_line(error), len(chunk)
                )
                if retries == MAX_RETRIES:
                    raise UserError(
                        f"rollout worker {worker} died {retries + 1} times on the same {len(chunk)} groups "
                        f"({first_line(error)}); its log is in {logs()}; if memory is short lower "
                        "rollout.max_batch_tokens, then --resume"
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

    def _named(self, workers: Iterable[int]) -> str:
        return "rollouts of " + ", ".join(f"worker {w} (pid {state(self.workers[w])['Pid']})" for w in sorted(workers))

    def close(self, failed: bool = False) -> None:
        """End the workers, and Ray if this pool started it."""
        if not self._owns_ray:
            holders = self._placement.holders if self._placement is not None else []
            for actor in [*self.workers, *holders]:
                ray.kill(actor)
        elif ray.is_initialized():
            stop_ray(failed)
        self.workers = []
