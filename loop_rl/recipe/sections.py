"""The sections that recipes of several kinds share, and what they all can do."""

from __future__ import annotations

from typing import Any, Literal, Self

import yaml
from pydantic import Field, field_validator, model_validator

from loop_rl.data.names import is_known, unknown_name
from loop_rl.recipe.reading import Section, folder_name

MAX_DEPTH = 1024  # recurrences of a forward pass; released models use 4 to 64
MAX_WEIGHT = 1e6  # of a term of a loss or of a scale, so that no product with it leaves float32


def known_questions(name: str) -> str:
    """The name, if it can be that of a data set of questions; ValueError otherwise."""
    if not is_known(name):
        raise ValueError(unknown_name(name))
    return name


class ModelPathSection(Section):
    path: str = Field("embedded", min_length=1, description="Folder or hub id of a looped model, or embedded.")


class LoopedModelSection(ModelPathSection):
    depth: int | None = Field(
        None, ge=1, le=MAX_DEPTH, description="Recurrences of a forward pass; null: the model's own."
    )


class QuestionsSection(Section):
    """Questions with answers: a known data set, rows of one's own, or a data set on the hub."""

    name: str = Field(
        "arithmetic", description="A known data set (loop-rl data), a .jsonl file, or owner/name on the hub."
    )
    folder: str | None = Field(None, description="Folder of local data sets; null: the variable LOOP_RL_DATA.")
    train_size: int | None = Field(None, ge=0, description="Training questions to use; null: all.")
    seed: int = Field(0, ge=0, description="Seed of the choice and the order of questions.")
    columns: dict[str, str] = Field({}, description="Your own rows: our name of a column, and the rows' own.")
    template: str | None = Field(None, description="The prompt, with {question} in it; null: the data set's own.")
    config: str | None = Field(None, description="Configuration of a hub data set; null: its default.")

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        return known_questions(name)


class AdamWSection(Section):
    """What every optimizer section holds its keys to, so that no step takes weights out of the numbers' range."""

    learning_rate: float
    weight_decay: float

    @model_validator(mode="after")
    def _a_step_that_weights_survive(self) -> Self:
        rate, decay = self.learning_rate, self.weight_decay
        if rate > 1:
            raise ValueError(
                f"learning_rate must be at most 1; got {rate:g}: AdamW moves every weight by about the learning rate "
                "at each update, whatever the gradient"
            )
        if rate * decay > 1:
            raise ValueError(
                f"weight_decay ({decay:g}) times learning_rate ({rate:g}) must be at most 1: an update multiplies "
                "every weight by 1 minus that; lower weight_decay"
            )
        return self


class RunSection(Section):
    name: str = Field("run", description="Name of the run's folder; by default the recipe's file name without .yaml.")
    folder: str = Field("runs", min_length=1, description="Folder in which run folders are made.")
    max_steps: int = Field(100, ge=1, description="RL steps: one batch of rollouts each.")
    seed: int = Field(0, ge=0, description="Seed of sampling and initial states.")
    save_steps: int = Field(0, ge=0, description="Steps between checkpoints; 0: only the last.")
    keep_checkpoints: int = Field(2, ge=1, description="Newest checkpoints kept.")
    threads: int | None = Field(None, ge=1, le=1024, description="CPU threads of each process; null: torch's choice.")
    wandb: Literal["off", "offline", "online"] = Field("off", description="Whether to mirror metrics to wandb.")

    @field_validator("name")
    @classmethod
    def _one_folder(cls, name: str) -> str:
        return folder_name(name)

    @field_validator("wandb", mode="before")
    @classmethod
    def _yaml_off(cls, value: Any) -> Any:
        return "off" if value is False else value  # YAML 1.1 reads a bare off as false


class AnyRecipe(Section):
    """Everything that decides a run: one section for each idea, in the order in which a reader meets them."""

    def dump_yaml(self) -> str:
        """The resolved recipe, every key written out; load_recipe reads it back to an equal one."""
        return yaml.safe_dump(self.model_dump(), sort_keys=False, allow_unicode=True)
