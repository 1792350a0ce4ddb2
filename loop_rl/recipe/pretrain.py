"""The recipe of a pretraining run: `load_recipe(path, overrides, schema=PretrainRecipe)`."""

from typing import Literal

from pydantic import Field, field_validator, model_validator

from loop_rl.recipe.reading import Section, folder_name
from loop_rl.recipe.sections import MAX_DEPTH, MAX_WEIGHT, AdamWSection, AnyRecipe

RewardForm = Literal["inverse_perplexity", "ce", "log_ce", "exp_ce"]


class PretrainModelSection(Section):
    """The looped model to be made; the keys are LoopedConfig's."""

    vocab_size: int | None = Field(
        None, ge=1, le=10**7, description="Rows of the embedding; null: the tokenizer's size."
    )
    hidden_size: int = Field(128, ge=1, le=10**6, description="Width of the states.")
    intermediate_size: int = Field(352, ge=1, le=10**6, description="Width of a block's feed-forward layer.")
    num_attention_heads: int = Field(4, ge=1, le=10**4, description="Query heads.")
    num_key_value_heads: int = Field(2, ge=1, le=10**4, description="Key and value heads.")
    head_dim: int = Field(32, ge=2, le=10**4, description="Width of a head.")
    prelude_layers: int = Field(1, ge=0, le=1000, description="Blocks before the loop.")
    core_layers: int = Field(2, ge=1, le=1000, description="Blocks of the core, which every recurrence runs.")
    coda_layers: int = Field(1, ge=0, le=1000, description="Blocks after the loop.")
    depth: int | None = Field(
        None, ge=1, le=MAX_DEPTH, description="Recurrences when nothing else is asked for; null: prior's mean."
    )
    injection: str = Field("ortho", min_length=1, description="How the injected input enters each recurrence.")
    rms_norm_eps: float = Field(1e-5, gt=0, le=1, description="Epsilon of the norms.")
    rope_theta: float = Field(10000.0, gt=0, description="Base of the rotary positions.")
    max_position_embeddings: int = Field(1024, ge=1, description="Longest sequence the model is made for.")
    initial_state_std: float = Field(1.0, ge=0, le=MAX_WEIGHT, description="Standard deviation of the initial state.")
    initializer_range: float = Field(0.02, gt=0, le=1, description="Standard deviation of the initial weights.")


class PretrainDataSection(Section):
    name: str = Field(
        "arithmetic",
        min_length=1,
        description="arithmetic, a .txt file, or a .jsonl file whose rows have question and answer, or text.",
    )
    length: int = Field(256, ge=2, le=10**6, description="Tokens of a row; documents are packed into rows.")
    tokenizer: str = Field("embedded", min_length=1, description="Folder of a tokenizer, or embedded.")
    problems: int = Field(100_000, ge=1, le=1_000_000, description="Distinct problems generated for arithmetic.")
    loss_on: Literal["all", "answer"] = Field("all", description="Tokens that count: all, or those of answers only.")
    seed: int = Field(0, ge=0, description="Seed of the problems and of their order.")


class PriorSection(Section):
    name: Literal["fixed", "poisson_lognormal", "uniform", "saved"] = Field(
        "poisson_lognormal", description="Distribution of depths, or the one to start learning from."
    )
    mean: float = Field(
        6.0, ge=1, le=MAX_DEPTH, description="Mean depth; with fixed, the depth; with learn, the mean to keep."
    )
    sigma: float = Field(0.5, ge=0, description="Standard deviation of the log rate (poisson_lognormal).")
    cap: int = Field(64, ge=2, le=MAX_DEPTH, description="Upper limit on the depth (poisson_lognormal, uniform).")
    run: str | None = Field(None, description="Folder of the run whose last distribution is taken (saved).")
    learn: bool = Field(False, description="Let the distribution follow the losses; false: it stays as it starts.")
    entropy_weight: float = Field(
        0.01, ge=0, le=MAX_WEIGHT, description="Weight of the distribution's entropy (learn)."
    )
    mean_weight: float = Field(
        1.0, ge=0, le=MAX_WEIGHT, description="Weight of the squared distance to the mean (learn)."
    )
    reward: RewardForm = Field("inverse_perplexity", description="What a micro-batch's cross-entropy is worth (learn).")
    learning_rate: float = Field(1e-3, gt=0, le=1, description="Learning rate of the distribution's own Adam (learn).")


class PretrainOptimSection(AdamWSection):
    learning_rate: float = Field(2e-3, gt=0, description="AdamW's peak learning rate.")
    weight_decay: float = Field(0.1, ge=0, description="Decoupled weight decay, on matrices only.")
    adam_beta1: float = Field(0.9, ge=0, lt=1, description="AdamW's decay of the first moment.")
    adam_beta2: float = Field(0.98, ge=0, lt=1, description="AdamW's decay of the second moment.")
    max_grad_norm: float = Field(1.0, gt=0, description="Norm to which a larger gradient is scaled down.")
    warmup_fraction: float = Field(0.05, ge=0, le=1, description="Share of the updates with a rising learning rate.")
    decay_fraction: float = Field(0.1, ge=0, le=1, description="Share of the updates, the last ones, that decay it.")

    @model_validator(mode="after")
    def _apart(self) -> "PretrainOptimSection":
        if self.warmup_fraction + self.decay_fraction > 1:
            raise ValueError(
                f"warmup_fraction ({self.warmup_fraction:g}) and decay_fraction ({self.decay_fraction:g}) overlap: "
                "together at most 1"
            )
        return self


class TrainSection(Section):
    max_steps: int = Field(1500, ge=1, description="Updates.")
    batch_size: int = Field(
        32, ge=1, le=10_000, description="Rows of a micro-batch; in pretraining each draws one depth."
    )
    accumulation: int = Field(1, ge=1, le=10_000, description="Micro-batches of an update.")
    seed: int = Field(0, ge=0, description="Seed of the weights, the depths and the initial states.")
    save_steps: int = Field(0, ge=0, description="Updates between checkpoints; 0: only the last.")
    keep_checkpoints: int = Field(2, ge=1, description="Newest checkpoints kept.")
    threads: int | None = Field(None, ge=1, le=1024, description="CPU threads; null: torch's choice.")


class PretrainTrainSection(TrainSection):
    backprop_depth: int = Field(4, ge=1, description="Last recurrences that the gradient goes through.")


class PretrainRunSection(Section):
    name: str = Field("pretrain", description="Name of the run's folder; by default the recipe's file name.")
    folder: str = Field("runs", min_length=1, description="Folder in which run folders are made.")

    @field_validator("name")
    @classmethod
    def _one_folder(cls, name: str) -> str:
        return folder_name(name)


class PretrainRecipe(AnyRecipe):
    """Everything that decides a pretraining run. `PretrainRecipe()` is valid: the embedded model on arithmetic."""

    model: PretrainModelSection = Field(PretrainModelSection(), description="The model that is made.")
    data: PretrainDataSection = Field(PretrainDataSection(), description="Text to train on.")
    prior: PriorSection = Field(PriorSection(), description="Depths to train at.")
    optim: PretrainOptimSection = Field(PretrainOptimSection(), description="Optimizer and its schedule.")
    train: PretrainTrainSection = Field(PretrainTrainSection(), description="Batches, length and checkpoints.")
    run: PretrainRunSection = Field(PretrainRunSection(), description="Where the run is kept.")
