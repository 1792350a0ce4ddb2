"""The recipe of a distilled prefill: `load_recipe(path, overrides, schema=DistillRecipe)`."""

from pydantic import Field

from loop_rl.recipe.pretrain import (
    PretrainDataSection,
    PretrainOptimSection,
    PretrainRunSection,
    TrainSection,
)
from loop_rl.recipe.reading import Section
from loop_rl.recipe.sections import MAX_WEIGHT, AnyRecipe, LoopedModelSection


class StudentSection(Section):
    from_teacher: bool = Field(True, description="Start from the core's weights; false: at random.")
    hidden_weight: float = Field(1.0, ge=0, le=MAX_WEIGHT, description="Weight of the squared distance of states.")
    kl_weight: float = Field(1.0, ge=0, le=MAX_WEIGHT, description="Weight of the KL divergence of predictions.")


class DistillDataSection(PretrainDataSection):
    tokenizer: str | None = Field(None, description="Folder of a tokenizer; null: the teacher's.")


class DistillRecipe(AnyRecipe):
    """Everything that decides a distillation. `DistillRecipe()` is valid: the embedded model on arithmetic."""

    teacher: LoopedModelSection = Field(
        LoopedModelSection(), description="The model whose endpoint is predicted; frozen."
    )
    student: StudentSection = Field(StudentSection(), description="What predicts it.")
    data: DistillDataSection = Field(DistillDataSection(), description="Text to train on.")
    optim: PretrainOptimSection = Field(PretrainOptimSection(), description="Optimizer and its schedule.")
    train: TrainSection = Field(TrainSection(), description="Batches, length and checkpoints.")
    run: PretrainRunSection = Field(PretrainRunSection(), description="Where the run is kept.")
