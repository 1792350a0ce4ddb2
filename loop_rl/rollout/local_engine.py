"""Sampling with a copy of the model in this process: a rollout worker's work, and an engine without Ray."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from loop_rl.models import LoopedConfig, LoopedForCausalLM
from loop_rl.models.adapters import adapted
from loop_rl.models.prefill import PrefillStudent
from loop_rl.rollout.record import Rollout
from loop_rl.rollout.sampler import sample_groups, stream_groups
from loop_rl.rollout.sampling import Sampling

if TYPE_CHECKING:
    from loop_rl.recipe.rl import LoraSection


class LocalEngine:
    """Holds a copy of the model and samples with it, as one rollout worker does. See Engine.

    student: reads the prompts in the recurrences' place. tokenizer: what stop strings are looked for with. lora: the
    adapters that the model has beside its weights, as the learner's.
    """

    restarts = 0

    def __init__(
        self,
        config: LoopedConfig,
        dtype: str = "float32",
        student: PrefillStudent | None = None,
        tokenizer: PreTrainedTokenizerBase | None = None,
        lora: LoraSection | None = None,
    ) -> None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        with torch.random.fork_rng(devices=[]):  # weights that are replaced must not advance the run's random stream
            self.model = LoopedForCausalLM(LoopedConfig(**config.to_dict())).to(getattr(torch, dtype))
            if lora is not None:
                adapted(self.model, lora)
        self.model.to(device).eval()
        self.student, self.tokenizer = student, tokenizer
        self.places = [(platform.node(), [str(torch.cuda.current_device())] if device == "cuda" else [])]
        self.notes: list[str] = []
        self.version = -1

    def __enter__(self) -> LocalEngine:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def send_weights(self, weights: Mapping[str, Tensor], version: int) -> None:
        """See Engine."""
        found = self.model.load_state_dict(weights, strict=self.version < 0)
        if found.unexpected_keys:
            raise ValueError(f"the model has no {', '.join(found.unexpected_keys)}")
        self.version = version

    def stream(self, prompts: list[list[int]], sampling: Sampling, seeds: list[int]) -> Iterator[tuple[int, Rollout]]:
        """The groups of these prompts as each ends, with its prompt's place, marked with the weights' version."""
        return stream_groups(self.model, prompts, sampling, seeds, self.version, self.student, self.tokenizer)

    def generate(
        self,
        prompts: list[list[int]],
        sampling: Sampling,
        seeds: list[int],
        on_group: Callable[[int, Rollout], None] | None = None,
    ) -> list[Rollout]:
        """See Engine."""
        return sample_groups(self.model, prompts, sampling, seeds, on_group, self.student, self.version, self.tokenizer)
