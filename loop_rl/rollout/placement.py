"""Which GPUs rollout workers get: not the learner's, as long as there are others."""

import math
import os
from collections.abc import Sequence
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from loop_rl.rollout.actors import answer


@ray.remote(num_cpus=0, num_gpus=1)
class Holder:
    """Holds a GPU that is the learner's, of which Ray does not know."""

    def gpu(self) -> str:
        """The id of its GPU."""
        return str(ray.get_gpu_ids()[0])


class Placement:
    """Keeps the learner's GPUs from the workers, and shares out the others.

    gpus: all of Ray's. gpus_per_worker: a whole one where there are enough, else an equal share of one; 0 where there
    are none beside the learner's. holders: actors that are to live as long as the workers.
    """

    def __init__(self, workers: int, learner_gpus: int) -> None:
        self.holders: list[Any] = []
        self.gpus = round(ray.cluster_resources().get("GPU", 0))
        self._here = ray.get_runtime_context().get_node_id()
        self.learner = learner_ids(learner_gpus) if self.gpus else []
        if self.learner:
            self._hold()
        self.others = self.gpus - len(self.holders)
        self._workers = workers
        self.gpus_per_worker = 1 / math.ceil(workers / self.others) if self.others and workers else 0.0

    def _hold(self) -> None:
        """Takes GPUs of this machine from Ray until the learner's are among them, and gives the rest back."""
        here = next((node["Resources"] for node in ray.nodes() if node["NodeID"] == self._here), {})
        others = []
        make = Holder.options(scheduling_strategy=NodeAffinitySchedulingStrategy(self._here, soft=False))
        for _ in range(round(here.get("GPU", 0))):
            if len(self.holders) == len(self.learner):
                break
            holder = make.remote()
            gpu = answer(holder, holder.gpu.remote, "the reservation of the learner's GPU")
            (self.holders if gpu in self.learner else others).append(holder)
        for holder in others:
            ray.kill(holder)

    def text(self, places: Sequence[tuple[str, Sequence[str]]]) -> str:
        """Where learner and workers are, in one line, given each worker's node and GPUs."""
        if not self.others:
            shared = f"the learner's GPU {', '.join(self.learner)}"
            return (
                f"the rollout workers ({self._workers}) share {shared}, for there is no other; lower rollout.workers "
                "if its memory is short"
            )
        words = [
            f"worker {i} on GPU {', '.join(gpus)}" + ("" if node == self._here else f" of node {node[:8]}")
            for i, (node, gpus) in enumerate(places)
        ]
        learner = f"learner on GPU {', '.join(self.learner)}; " if self.learner else ""
        shared = f"; {self._workers} workers share {self.others} GPUs" if self.others < self._workers else ""
        return f"{learner}rollout {', '.join(words)}{shared}"


def learner_ids(count: int) -> list[str]:
    """Ids of the first `count` GPUs that this process sees, as Ray has them."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    ids = visible.split(",") if visible else [str(gpu) for gpu in range(count)]
    return ids[:count]
