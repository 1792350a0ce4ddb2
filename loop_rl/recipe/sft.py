"""The recipe of supervised fine-tuning: `load_recipe(path, overrides, schema=SftRecipe)`."""

from pydantic import Field, field_validator

from loop_rl.recipe.pretrain import (
    PretrainOptimSection,
    PretrainRunSection,
    PretrainTrainSection,
    PriorSection,
)
from loop_rl.recipe.sections import AnyRecipe, ModelPathSection, QuestionsSection, known_questions


class SftDataSection(QuestionsSection):
    name: str = Field(
        "arithmetic",
        min_length=1,
        description="A .txt file, a .jsonl file with text, or questions as in RL: a known set, .jsonl, owner/name.",
    )
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
        return name if name.endswith(".txt") else known_questions(name)


class SftOptimSection(PretrainOptimSection):
    learning_rate: float = Field(1e-4, gt=0, description="AdamW's peak learning rate.")
    weight_decay: float = Field(0.01, ge=0, description="Decoupled weight decay, on matrices only.")


class SftRecipe(AnyRecipe):
    """Everything that decides a fine-tuning. `SftRecipe()` is valid: the embedded model on arithmetic."""

    model: ModelPathSection = Field(ModelPathSection(), description="The model that is trained.")
    data: SftDataSection = Field(SftDataSection(), description="Text, or questions with answers, to train on.")
    prior: PriorSection = Field(PriorSection(), description="Depths to train at.")
    optim: SftOptimSection = Field(SftOptimSection(), description="Optimizer and its schedule.")
    train: PretrainTrainSection = Field(PretrainTrainSection(), description="Batches, length and checkpoints.")
    run: PretrainRunSection = Field(PretrainRunSection(), description="Where the run is kept.")
