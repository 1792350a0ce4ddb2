"""The recipe of supervised fine-tuning: `load_recipe(path, overrides, schema=SftRecipe)`."""

import yaml
from pydantic import Field, field_validator

from loop_rl.data.names import is_known, unknown_name
from loop_rl.recipe.pretrain import (
    PretrainOptimSection,
    PretrainRunSection,
    PretrainTrainSection,
    PriorSection,
)
from loop_rl.recipe.rl import Section


class SftModelSection(Section):
    path: str = Field("embedded", min_length=1, description="Folder or hub id of a looped model, or embedded.")


class SftDataSection(Section):
    name: str = Field(
        "arithmetic",
        min_length=1,
        description="A .txt file, a .jsonl file with text, or questions as in RL: a known set, .jsonl, owner/name.",
    )
    folder: str | None = Field(None, description="Folder of local data sets; null: the variable LOOP_RL_DATA.")
    train_size: int | None = Field(None, ge=0, description="Training questions to use; null: all.")
    seed: int = Field(0, ge=0, description="Seed of the choice and the order of questions.")
    columns: dict[str, str] = Field({}, description="Your own rows: our name of a column, and the rows' own.")
    template: str | None = Field(None, description="The prompt, with {question} in it; null: the data set's own.")
    config: str | None = Field(None, description="Configuration of a hub data set; null: its default.")
    length: int = Field(
        256, ge=2, le=10**6, description="Tokens of a row at most; longer questions and answers are left out."
    )
    chat: bool = Field(False, description="Put prompt and answer into the tokenizer's chat template.")

    @property
    def eval_size(self) -> int | None:
        """What is held out stays as it is for RL and evaluation."""
        return None

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        if not name.endswith(".txt") and not is_known(name):
            raise ValueError(unknown_name(name))
        return name


class SftOptimSection(PretrainOptimSection):
    learning_rate: float = Field(1e-4, gt=0, description="AdamW's peak learning rate.")
    weight_decay: float = Field(0.01, ge=0, description="Decoupled weight decay, on matrices only.")


class SftRecipe(Section):
    """Everything that decides a fine-tuning. `SftRecipe()` is valid: the embedded model on arithmetic."""

    model: SftModelSection = Field(SftModelSection(), description="The model that is trained.")
    data: SftDataSection = Field(SftDataSection(), description="Text, or questions with answers, to train on.")
    prior: PriorSection = Field(PriorSection(), description="Depths to train at.")
    optim: SftOptimSection = Field(SftOptimSection(), description="Optimizer and its schedule.")
    train: PretrainTrainSection = Field(PretrainTrainSection(), description="Batches, length and checkpoints.")
    run: PretrainRunSection = Field(PretrainRunSection(), description="Where the run is kept.")

    def dump_yaml(self) -> str:
        """The resolved recipe, every key written out; load_recipe reads it back to an equal one."""
        return yaml.safe_dump(self.model_dump(), sort_keys=False, allow_unicode=True)
