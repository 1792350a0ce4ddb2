"""The recipe of a reinforcement-learning run: every key typed, described and bounded, unknown ones refused.

Keys that TRL's GRPOConfig also has carry its name and meaning.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, field_validator, model_validator

from loop_rl.errors import UserError
from loop_rl.recipe.reading import Schema, Section, read_recipe
from loop_rl.recipe.reward import RewardSection
from loop_rl.recipe.sections import (
    MAX_DEPTH,
    MAX_WEIGHT,
    AdamWSection,
    AnyRecipe,
    LoopedModelSection,
    QuestionsSection,
    RunSection,
    known_questions,
)

if TYPE_CHECKING:
    from loop_rl.fixed_point import Estimator

MAX_TERMS = 1000


class ModelSection(LoopedModelSection):
    dtype: Literal["float32", "bfloat16"] = Field("float32", description="Type of weights and activations.")


class DataSection(QuestionsSection):
    eval_size: int | None = Field(None, ge=1, description="Held-out questions to use; null: all.")
    max_prompt_length: int | None = Field(
        None,
        ge=1,
        description="Upper limit on a prompt's tokens; longer questions are left out and counted. null: no limit.",
    )


class RolloutSection(Section):
    num_generations: int = Field(
        16, le=100_000, description="Completions sampled for each prompt: the group size, at least 2."
    )
    prompts_per_step: int = Field(8, ge=1, le=1_000_000, description="Prompts of one step, so groups of one batch.")
    max_completion_length: int = Field(256, ge=1, description="Tokens a completion may have, its end token included.")
    temperature: float = Field(1.0, ge=1e-6, description="Sampling temperature; log-probabilities are taken at it.")
    top_p: float = Field(1.0, gt=0, le=1, description="Nucleus sampling: probability mass kept; 1 keeps all.")
    top_k: int = Field(0, ge=0, description="Tokens kept by rank; 0 keeps all.")
    cache: Literal["full", "terminal"] = Field(
        "full", description="Keys and values kept: of every recurrence, or of the last one only."
    )
    depth_tolerance: float | None = Field(
        None, gt=0, description="Residual below which a token stops recurring; null: all use the model's depth."
    )
    min_depth: int = Field(1, ge=1, description="With depth_tolerance: the lower limit on a token's recurrences.")
    stop: list[str] | None = Field(
        None, description="Strings that end a completion, left out of its text; null: the label of the next question."
    )
    max_batch_tokens: int | None = Field(
        None,
        ge=1,
        description="Tokens that a worker decodes at once, prompts included; null: as their keys and values fill a "
        "quarter of its memory.",
    )
    prefill: Literal["teacher", "student"] = Field(
        "teacher", description="What reads the prompt: the model, or the student distilled from it (cache: terminal)."
    )
    workers: int = Field(1, ge=0, le=4096, description="Rollout workers; 0: the training process samples, without Ray.")
    cluster: str | None = Field(None, description="Address of a running Ray cluster; null: this machine only.")

    @field_validator("stop")
    @classmethod
    def _no_empty_string(cls, stop: list[str] | None) -> list[str] | None:
        if stop is not None and not all(stop):
            raise ValueError("an empty string is in every text; leave it out ([]: nothing but end tokens)")
        return stop

    @field_validator("num_generations")
    @classmethod
    def _a_group_to_compare(cls, size: int) -> int:
        if size < 2:
            raise ValueError(
                f"num_generations, the group size (group_size elsewhere), must be at least 2; got {size}:"
                " an advantage is a reward minus its group's mean, so in a group of one it is always 0"
            )
        return size


class LearnerSection(Section):
    estimator: str = Field(
        "reuse_neumann4",
        description="The gradient's origin: full_bptt, truncated_bptt4, recompute_neumann4, reuse_neumann3_tail, ...",
    )
    beta: float = Field(
        0.0, ge=0, le=MAX_WEIGHT, description="Weight of the KL penalty against the reference model; 0 loads none."
    )
    epsilon: float = Field(0.2, gt=0, lt=1, description="Lower clip of the ratio, and the upper without epsilon_high.")
    epsilon_high: float | None = Field(None, gt=0, description="Upper clip of the ratio; null: epsilon.")
    num_iterations: int = Field(1, ge=1, le=1000, description="Updates made from one batch of rollouts.")
    per_device_train_batch_size: int = Field(16, ge=1, description="Completions of a micro-batch.")
    importance_sampling_cap: float | None = Field(
        None, gt=0, description="Cap on the ratio of learner to sampler probabilities; null: no correction."
    )

    @field_validator("estimator")
    @classmethod
    def _known(cls, name: str) -> str:
        vjps = _estimator(name).vjps
        if vjps is not None and vjps >= MAX_TERMS:
            raise ValueError(
                f"{name} has {vjps + 1} terms; at most {MAX_TERMS}: the implicit estimators take all it needs"
            )
        return name

    @model_validator(mode="after")
    def _an_interval(self) -> LearnerSection:
        if self.epsilon_high is not None and self.epsilon_high < self.epsilon:
            raise ValueError(
                f"epsilon_high ({self.epsilon_high:g}) is below epsilon ({self.epsilon:g}); it is the upper clip, as a "
                "rule the wider one: raise it, or set it to null for epsilon"
            )
        return self


class HealthSection(Section):
    """Whether the states that are reused are still fixed points, and what to do when they are not."""

    cosine_steps: int = Field(0, ge=0, description="Steps between gradient cosines to full_bptt; 0: none.")
    min_cosine: float | None = Field(
        None, gt=-1, le=1, description="Lower limit on the gradient cosine; null: no limit."
    )
    max_residual: float | None = Field(
        None, gt=0, description="Upper limit on the 90 % quantile of residuals; null: no limit."
    )
    max_term_ratio: float | None = Field(
        None, gt=0, description="Upper limit on the ratio of the Neumann sum's last two terms; null: no limit."
    )
    replay_steps: int = Field(
        20, ge=0, description="Steps between replays of a micro-batch, when states are reused; 0: none."
    )
    max_replay_difference: float | None = Field(
        0.1,
        gt=0,
        description="Upper limit on the mean difference of the sampler's and replayed log-probabilities; null: none.",
    )
    on_breach: Literal["warn", "recompute", "stop"] = Field(
        "warn", description="Past a limit: say so, learn from recomputed endpoints from then on, or stop the run."
    )

    @model_validator(mode="after")
    def _measured(self) -> HealthSection:
        if self.min_cosine is not None and not self.cosine_steps:
            raise ValueError("min_cosine limits what is measured every cosine_steps steps; set cosine_steps, too")
        return self


class EvalSection(Section):
    eval_steps: int = Field(0, ge=0, description="Steps between held-out evaluations; 0: only before and after.")
    samples: int = Field(8, ge=1, le=100_000, description="Completions sampled for a held-out question.")
    temperature: float = Field(1.0, ge=0, description="Sampling temperature of evaluation; 0 is greedy.")
    data: list[str] = Field([], description="Further data sets to evaluate on, each with its own reward.")
    size: int | None = Field(None, ge=1, description="Held-out questions of each further data set; null: all.")

    @field_validator("temperature")
    @classmethod
    def _not_nearly_greedy(cls, temperature: float) -> float:
        if 0 < temperature < 1e-6:
            raise ValueError(f"must be 0 (greedy) or at least 1e-6; got {temperature:g}")
        return temperature

    @field_validator("data")
    @classmethod
    def _known(cls, names: list[str]) -> list[str]:
        return [known_questions(name) for name in names]


class OptimSection(AdamWSection):
    learning_rate: float = Field(1e-6, gt=0, description="AdamW's peak learning rate.")
    lr_scheduler_type: Literal["constant", "linear", "cosine"] = Field("constant", description="Decay after warm-up.")
    warmup_steps: int = Field(0, ge=0, description="Updates over which the learning rate rises from 0.")
    weight_decay: float = Field(0.0, ge=0, description="AdamW's decoupled weight decay.")
    adam_beta1: float = Field(0.9, ge=0, lt=1, description="AdamW's decay of the first moment.")
    adam_beta2: float = Field(0.999, ge=0, lt=1, description="AdamW's decay of the second moment.")
    max_grad_norm: float = Field(1.0, gt=0, description="Norm to which a larger gradient is scaled down.")


class LoraSection(Section):
    r: int = Field(16, ge=1, description="Rank of the adapters.")
    lora_alpha: float = Field(
        32, gt=0, le=MAX_WEIGHT, description="Scale: the adapter's output is multiplied by lora_alpha / r."
    )
    lora_dropout: float = Field(
        0.0, ge=0, lt=1, description="Without effect in RL, where the learner scores as the sampler does."
    )
    target_modules: list[str] | Literal["all-linear"] = Field("all-linear", description="Layers that get an adapter.")
    parts: list[Literal["prelude", "core", "coda"]] | None = Field(
        None, description="Parts whose layers get one; core has the injection, coda the readout; null: all."
    )

    @field_validator("target_modules")
    @classmethod
    def _some(cls, names: Any) -> Any:
        if not names:
            raise ValueError("an empty list adapts nothing; name some layers, or leave the key out")
        return names


class Recipe(AnyRecipe):
    """Everything that decides a run. `Recipe()` is valid: the embedded model on arithmetic."""

    model: ModelSection = Field(ModelSection(), description="The model that is trained.")
    data: DataSection = Field(DataSection(), description="Questions to train on and to hold out.")
    reward: RewardSection = Field(RewardSection(), description="What a completion is worth.")
    rollout: RolloutSection = Field(RolloutSection(), description="Sampling of completions.")
    learner: LearnerSection = Field(LearnerSection(), description="Objective and gradient.")
    health: HealthSection = Field(HealthSection(), description="Limits on how far reused states may be off.")
    optim: OptimSection = Field(OptimSection(), description="Optimizer and its schedule.")
    eval: EvalSection = Field(EvalSection(), description="Held-out evaluation.")
    lora: LoraSection | None = Field(None, description="Low-rank adapters; null: all weights are trained.")
    run: RunSection = Field(RunSection(), description="Length, seed and folder of the run.")

    @model_validator(mode="after")
    def _what_goes_together(self) -> Recipe:
        rollout, learner, depth = self.rollout, self.learner, self.model.depth
        replays = rollout.cache == "terminal" and _estimator(learner.estimator).needs_replay
        if rollout.workers == 0 and rollout.cluster is not None:
            raise ValueError(
                f"rollout.workers: 0 samples in the training process, and leaves the cluster {rollout.cluster} idle; "
                "set it to 1 or more, or rollout.cluster to null"
            )
        if rollout.prefill == "student" and rollout.cache != "terminal":
            raise ValueError("rollout.prefill: a student makes terminal banks only; set rollout.cache to terminal")
        if rollout.prefill == "student":
            for replaying, what in (
                (replays, f"learner.estimator {learner.estimator}"),
                (learner.beta > 0, "learner.beta, by its reference,"),
                (self.health.cosine_steps > 0, "health.cosine_steps"),
            ):
                if replaying:
                    raise ValueError(
                        f"rollout.prefill: {what} replays the recurrences that a student leaves out; use a reuse "
                        "estimator, with neither beta nor cosine_steps, or rollout.prefill: teacher"
                    )
        if replays:
            raise ValueError(
                f"rollout.cache: {learner.estimator} replays the loop with the keys and values of every recurrence, so "
                "its log-probabilities are not those of a sampler with terminal banks; use a reuse estimator, or "
                "rollout.cache: full"
            )
        if depth is not None:
            self._check_depth(depth, f"model.depth ({depth})")
        updates = self.run.max_steps * learner.num_iterations
        if self.optim.warmup_steps > updates:
            raise ValueError(
                f"optim.warmup_steps ({self.optim.warmup_steps}) is more than the run's updates ({updates}), so the "
                "learning rate would never reach its peak; lower it (optim.warmup_steps=0), or raise run.max_steps"
            )
        if rollout.depth_tolerance is not None and _estimator(learner.estimator).one_depth:
            raise ValueError(
                f"learner.estimator: {learner.estimator} counts its window from one depth for all tokens, which "
                "rollout.depth_tolerance gives up; use full_bptt, a recompute or a reuse estimator"
            )
        return self

    def _check_depth(self, depth: int, what: str) -> None:
        window, least = _estimator(self.learner.estimator).min_depth, self.rollout.min_depth
        if window > depth:
            raise ValueError(
                f"learner.estimator: {self.learner.estimator} goes back {window} recurrences, more than {what}; lower "
                "that window, or raise model.depth"
            )
        if least > depth:
            raise ValueError(f"rollout.min_depth ({least}) is more than {what}; lower it, or raise model.depth")

    def depth_of(self, own: int) -> int:
        """Recurrences of a forward pass of a model whose own depth is `own`.

        Raises:
            UserError: that is the model's own depth, and the recipe asks for more recurrences, or it is past any use.
        """
        if self.model.depth is not None:
            return self.model.depth
        if not 1 <= own <= MAX_DEPTH:
            raise UserError(
                f"model.depth: the model's own depth is {own}, and a forward pass takes at most {MAX_DEPTH} "
                "recurrences; set model.depth"
            )
        try:
            self._check_depth(own, f"the model's own depth ({own})")
        except ValueError as error:
            raise UserError(str(error)) from None
        return own


def _estimator(name: str) -> Estimator:
    from loop_rl.fixed_point import parse_estimator  # late: it brings torch, which reading a recipe can do without

    return parse_estimator(name)


def load_recipe(path: str | Path, overrides: Sequence[str] = (), schema: type[Schema] = Recipe) -> Schema:
    """Reads a recipe file (or a shipped recipe by name), applies `a.b=value` overrides and checks it all.

    `extends: other.yaml` in a file (relative to it, or a shipped name) puts its keys over that recipe's. `run.name`
    is the file's stem unless given. Raises UserError naming file, section, key and the nearest valid one.
    """
    return read_recipe(path, overrides, schema)
