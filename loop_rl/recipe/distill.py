"""The recipe of a distilled prefill: `load_recipe(path, overrides, schema=DistillRecipe)`."""

import yaml
from pydantic import Field

from loop_rl.recipe.pretrain import (
    PretrainDataSection,
    PretrainOptimSection,
    PretrainRunSection,
    TrainSection,
)
from loop_rl.recipe.rl import MAX_DEPTH, MAX_WEIGHT, Section


class TeacherSection(Section):
    path: str = Field("embedded", min_length=1, description="Folder or hub id of the looped model, or embedded.")
    depth: int | None = Field(
        None, ge=1, le=MAX_DEPTH, description="Recurrences whose endpoint is to be predicted; null: its own."
    )


class StudentSection(Section):
    from_teacher: bool = Field(True, description="Start from the core's weights; false: at random.")
    hidden_weight: float = Field(1.0, ge=0, le=MAX_WEIGHT, description="Weight of the squared distance of states.")
    kl_weight: float = Field(1.0, ge=0, le=MAX_WEIGHT, description="Weight of the KL divergence of predictions.")


class DistillDataSection(PretrainDataSection):
    tokenizer: str | None = Field(None, description="Folder of a tokenizer; null: the teacher's.")


class DistillRecipe(Section):
    """Everything that decides a distillation. `DistillRecipe()` is valid: the embedded model on arithmetic."""

    teacher: TeacherSection = Field(TeacherSection(), description="The model whose endpoint is predicted; frozen.")
    student: StudentSection = Field(StudentSection(), description="What predicts it.")
    data: DistillDataSection = Field(DistillDataSection(), description="Text to train on.")
    optim: PretrainOptimSection = Field(PretrainOptimSection(), description="Optimizer and its schedule.")
    train: TrainSection = Field(TrainSection(), description="Batches, length and checkpoints.")
    run: PretrainRunSection = Field(PretrainRunSection(), description="Where the run is kept.")

    def dump_yaml(self) -> str:
        """The resolved recipe, every key written out; load_recipe reads it back to an equal one."""
        return yaml.safe_dump(self.model_dump(), sort_keys=False, allow_unicode=True)
