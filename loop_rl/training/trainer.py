"""The learner's side of an RL run: model, optimizer, data and position, and how they are saved and restored."""

import dataclasses
import logging
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator

from loop_rl.data import Example
from loop_rl.errors import UserError
from loop_rl.evaluation.settings import weights_digest
from loop_rl.fixed_point import parse_estimator
from loop_rl.learner.batch import Sample, samples_of, shares
from loop_rl.learner.exchange import deal, receive
from loop_rl.learner.health import Health
from loop_rl.learner.metrics import Metrics, over_iterations
from loop_rl.learner.optimizer import make_optimizer, trainable
from loop_rl.learner.ranks import Ranks
from loop_rl.learner.schedule import decay_factor
from loop_rl.learner.update import Learner, Objective
from loop_rl.models import LoopedForCausalLM
from loop_rl.models.adapters import adapted, load_adapters, merged_weights, save_adapters
from loop_rl.models.generation import model_end_tokens
from loop_rl.models.loading import load_model, resolve_model
from loop_rl.models.prefill import PrefillStudent
from loop_rl.recipe.rl import Recipe
from loop_rl.rollout.record import Rollout
from loop_rl.rollout.sampling import Sampling
from loop_rl.runs.checkpoints import check_finite, load_training_state, save_training_state
from loop_rl.sizes.memory import check_fits, estimate_memory

log = logging.getLogger(__name__)

_STATE_FILE = "training_state.pt"


class Trainer:
    """The learner's side of a run: model, optimizer, data and position; every rank has one."""

    def __init__(self, recipe: Recipe, ranks: Ranks | None = None) -> None:
        self.recipe, self.ranks = recipe, ranks or Ranks()
        self.accelerator = Accelerator(cpu=not torch.cuda.is_available())
        if self.accelerator.num_processes != self.ranks.count:
            raise RuntimeError(f"accelerate sees {self.accelerator.num_processes} of {self.ranks.count} ranks")
        memory, self.held_out = estimate_memory(recipe)  # before the model is loaded
        self.ranks.from_main(lambda: check_fits(memory))
        dtype = getattr(torch, recipe.model.dtype)
        # All weights are trained: their master weights start from the checkpoint's own values, whatever their dtype.
        looped, self.tokenizer = load_model(recipe.model.path, recipe.model.dtype if recipe.lora else "float32")
        self.task = self.held_out[0]
        self.looped: LoopedForCausalLM = looped.to(self.accelerator.device).eval()
        start = {p: p.detach() for p in looped.parameters()}
        looped.to(dtype)
        looped.config.dtype = dtype
        looped.config.depth = recipe.depth_of(looped.config.depth)  # its checkpoints say what was trained
        self.student = None  # made like the core, so before its layers get adapters
        if recipe.rollout.prefill == "student":
            self.student = PrefillStudent.load(Path(resolve_model(recipe.model.path)), self.looped)
        if recipe.lora is not None and recipe.lora.lora_dropout:
            log.warning("lora.lora_dropout has no effect in RL: the learner scores as the sampler sampled, without it")
        torch.manual_seed(recipe.run.seed)
        self.start = self._start_digest()  # before adapters are put in
        self.model: torch.nn.Module = self.looped if recipe.lora is None else adapted(self.looped, recipe.lora)
        rollout, learner = recipe.rollout, recipe.learner
        self.learner = Learner(
            self.model,
            parse_estimator(learner.estimator),
            Objective(
                rollout.max_completion_length,
                rollout.temperature,
                learner.epsilon,
                learner.epsilon_high,
                learner.beta,
                learner.importance_sampling_cap,
            ),
            make_optimizer(trainable(self.model), recipe.optim, start, weight_decay=recipe.optim.weight_decay),
            recipe.optim.max_grad_norm,
            learner.per_device_train_batch_size,
            self.accelerator,
        )
        self.sampling = Sampling(
            rollout.num_generations,
            rollout.max_completion_length,
            rollout.temperature,
            rollout.top_p,
            rollout.top_k,
            looped.config.depth,
            model_end_tokens(self.looped, self.tokenizer),
            save_states=self.learner.estimator.needs_states,
            cache=rollout.cache,
            tolerance=rollout.depth_tolerance,
            min_depth=rollout.min_depth,
            stop=self.task.stop,
            max_batch_tokens=rollout.max_batch_tokens,
        )
        self.step = 0
        # A terminal cache or a student's prefill makes states that no replay can equal.
        self.health = Health(recipe.health, comparable=rollout.cache == "full")

    def prompts(self, step: int) -> tuple[list[Example], list[int]]:
        """Examples and seeds of a step (0-based): a function of the step alone, one permutation an epoch."""
        train = self.task.splits.train
        size, count = len(train), self.recipe.rollout.prompts_per_step
        chosen = []
        for place in range(step * count, (step + 1) * count):
            epoch, offset = divmod(place, size)
            order = np.random.default_rng([self.recipe.run.seed, 1, epoch]).permutation(size)
            chosen.append(train[order[offset]])
        seeds = np.random.default_rng([self.recipe.run.seed, 2, step]).integers(2**62, size=count)
        return chosen, seeds.tolist()

    def learn(self, rollouts: list[Rollout], advantages: torch.Tensor) -> Metrics:
        """On the main rank: the updates of one batch, by all ranks; see `_learn`."""
        samples = samples_of(rollouts, advantages)
        measured = self.health.measure(self.learner, samples, self.step)
        start = time.perf_counter()
        scored = sum(not math.isnan(sample.advantage) for sample in samples)
        self.ranks.tell("learn")
        parts = shares(self.learner.useful(samples), self.ranks.count)
        share = deal([(part, scored) for part in parts], self.ranks.group)
        measured["time/deal"] = time.perf_counter() - start
        return self._learn(*share, measured)

    def follow(self) -> None:
        """On the other ranks: learn from what the main one deals, until it dismisses them."""
        self.ranks.pass_signals_on()
        while self.ranks.hear() == "learn":
            self._learn(*receive(self.ranks.group), {})

    def dismiss(self) -> None:
        """On the main rank: end the others, where there are some."""
        self.ranks.tell("end")

    def _learn(self, samples: list[Sample], scored: int, measured: Metrics) -> Metrics:
        """The updates of one batch, their metrics as `over_iterations` says; None where one is undefined.

        Args:
            samples: this rank's share of the batch, which has `scored` scored completions.
            measured: what the main rank has measured of the batch already.
        """
        total = self.recipe.run.max_steps * self.recipe.learner.num_iterations
        iterations = self.recipe.learner.num_iterations
        samples, prepared = self.learner.prepare(samples, iterations)
        updates: list[Metrics] = []
        for iteration in range(iterations):
            update = self.step * iterations + iteration
            optim = self.recipe.optim
            rate = optim.learning_rate * decay_factor(update, total, optim.warmup_steps, optim.lr_scheduler_type)
            for group in self.learner.optimizer.param_groups:
                group["lr"] = rate
            updates.append({**self.learner.update(samples, scored), "learning_rate": rate})
            self.health.count(updates[-1])
        self.step += 1
        metrics = {**over_iterations(updates), **prepared, **measured}
        if self.health.check(metrics, self.step, self.ranks) and self.learner.estimator.needs_states:
            self._recompute()
        metrics["health/breached"] = float(self.health.breached is not None)
        metrics["health/recomputes"] = float(self.learner.estimator.name != self.recipe.learner.estimator)
        return metrics

    def _recompute(self) -> None:
        self.learner.estimator = self.learner.estimator.recomputing()
        self.sampling = dataclasses.replace(self.sampling, save_states=False)
        log.warning("learning by %s from step %d on", self.learner.estimator.name, self.step + 1)

    def save(self, folder: Path) -> None:
        """A checkpoint: a plain looped model that any command loads, and what resuming needs beyond it.

        Raises UserError for weights that are not finite.
        """
        weights = {name: value.contiguous() for name, value in merged_weights(self.looped).items()}
        check_finite(weights, f"step {self.step}")
        LoopedForCausalLM.save_pretrained(_detached(self.looped, weights), folder / "model", state_dict=weights)
        self.tokenizer.save_pretrained(folder / "model")
        if self.recipe.lora is not None:
            save_adapters(self.model, folder)
        save_training_state(folder / _STATE_FILE, {"optimizer": self.learner.optimizer}, self._counters())

    def load(self, folder: Path) -> None:
        """Restore a checkpoint of `save`. Raises UserError where the model that the run started from is needed and is
        another one by now; other exceptions for a checkpoint that is damaged."""
        if self.recipe.lora is None:
            try:
                model, _ = load_model(str(folder / "model"), self.recipe.model.dtype)
            except UserError as error:  # of the checkpoint, not of the recipe's model.path
                raise ValueError(str(error).removeprefix("model.path: ")) from error
            self.looped.load_state_dict(model.state_dict())
        else:
            load_adapters(self.model, folder)
        counters = load_training_state(folder / _STATE_FILE, {"optimizer": self.learner.optimizer})
        if counters.get("start", self.start) != self.start:
            raise UserError(
                f"model.path: {self.recipe.model.path} is no longer the model that the run started from and needs for "
                f"its {' and '.join(self._kept_parts())}; put that back, or start a new run from {folder / 'model'}"
            )
        self.step = counters["step"]
        if counters["recomputes"]:
            self._recompute()

    def _counters(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "recomputes": self.learner.estimator.name != self.recipe.learner.estimator,
            "start": self.start,
        }

    def _kept_parts(self) -> list[str]:
        """What the run takes from the model that it started from for as long as it lasts; no checkpoint has it."""
        wanted = {
            "adapters": self.recipe.lora is not None,
            "reference model": self.recipe.learner.beta > 0,
            "student": self.student is not None,
        }
        return [name for name, is_wanted in wanted.items() if is_wanted]

    def _start_digest(self) -> str | None:
        """Of the weights behind `_kept_parts`; None without any."""
        modules = [self.looped] if self.student is None else [self.looped, self.student]
        return "".join(weights_digest(module.state_dict()) for module in modules) if self._kept_parts() else None


def _detached(looped: LoopedForCausalLM, weights: Mapping[str, torch.Tensor]) -> LoopedForCausalLM:
    """A shell with the configs, for saving a state dict that is not the module's own, and of the dtype of that."""
    with torch.device("meta"):
        shell = LoopedForCausalLM(looped.config)
    shell.generation_config = looped.generation_config
    return shell.to(next(iter(weights.values())).dtype)  # what config.json says of them
