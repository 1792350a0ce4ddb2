"""Distilled prefill: a student learns the endpoint states of a frozen looped model (paper, equation 4)."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from loop_rl.errors import UserError
from loop_rl.learner.head import token_kl
from loop_rl.learner.language import IGNORED
from loop_rl.models import LoopedForCausalLM
from loop_rl.models.attention.padded import PaddedContext
from loop_rl.models.loading import check_vocabulary, differing_weight, load_model
from loop_rl.models.prefill import STUDENT_FILE, PrefillStudent
from loop_rl.recipe.distill import DistillRecipe
from loop_rl.runs.checkpoints import reading
from loop_rl.training.text import TextTrainer, data_tokenizer, train_on_text


def distill(recipe: DistillRecipe, resume: bool = False, progress: bool = True) -> Path:
    """Trains the recipe's student; returns its run folder, whose `model` holds the teacher with the student beside it.

    Interrupting and resuming are as in pretraining. Raises UserError for what the user can fix.
    """
    if not recipe.student.hidden_weight and not recipe.student.kl_weight:
        raise UserError("student.hidden_weight and student.kl_weight are both 0: there is nothing to learn from")
    return train_on_text(recipe, lambda checkpoint: Distiller(recipe, checkpoint), resume, progress)


class Distiller(TextTrainer):
    """The student on text, its teacher frozen."""

    recipe: DistillRecipe

    def __init__(self, recipe: DistillRecipe, checkpoint: Path | None = None) -> None:
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        model, tokenizer = load_model(recipe.teacher.path, "float32")
        if recipe.data.tokenizer is not None:
            tokenizer = data_tokenizer(recipe.data.tokenizer)
            check_vocabulary(tokenizer, model.config.vocab_size, recipe.data.tokenizer)
        if recipe.data.length > model.config.max_position_embeddings:
            raise UserError(
                f"data.length ({recipe.data.length}) exceeds the teacher's max_position_embeddings "
                f"({model.config.max_position_embeddings}); lower it"
            )
        self.teacher: LoopedForCausalLM = model.to(device).eval().requires_grad_(False)
        model.config.depth = self.depth = recipe.teacher.depth or model.config.depth
        torch.manual_seed(recipe.train.seed)
        student = PrefillStudent(self.teacher.model, recipe.student.from_teacher).requires_grad_(True)
        if checkpoint is not None:
            with reading(checkpoint):
                student.load_state_dict(load_file(checkpoint / "model" / STUDENT_FILE))
                changed = differing_weight(self.teacher, checkpoint / "model")
            if changed is not None:
                raise UserError(
                    f"teacher.path: {recipe.teacher.path} is no longer the teacher that the run started with "
                    f"({changed} differs from {checkpoint / 'model'}); put that back, or start a new run"
                )
        self.student = student.to(device)
        super().__init__(recipe, self.student, tokenizer)
        self.parts: list[tuple[float, float]] = []

    def loss(self, ids: Tensor, labels: Tensor) -> Tensor:
        seeds = torch.randint(2**31, (len(ids),), generator=self.generator)
        hidden, kl = distillation_loss(self.teacher, self.student, ids, self.depth, seeds)
        self.parts.append((float(hidden.detach()), float(kl.detach())))
        weights = self.recipe.student
        return (weights.hidden_weight * hidden + weights.kl_weight * kl) * (labels[:, 1:] != IGNORED).sum()

    def metrics(self, counts: list[int], losses: list[float], updated: bool) -> dict[str, Any]:
        parts, self.parts = self.parts, []
        share = [count / max(sum(counts), 1) for count in counts]
        return {
            name: sum(w * part[at] for w, part in zip(share, parts, strict=True))
            for at, name in enumerate(("hidden", "kl"))
        }

    def save_model(self, folder: Path) -> None:
        """Teacher, tokenizer and student, so that the folder alone serves a rollout."""
        self.teacher.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        self.student.save(folder)


def distillation_loss(
    teacher: LoopedForCausalLM, student: PrefillStudent, ids: Tensor, depth: int, row_seeds: Tensor
) -> tuple[Tensor, Tensor]:
    """|z^ - z^R|^2 / (N d var(z^R)), and the mean over tokens of KL(p || p^); both scalars, p in nats.

    p^ is what a distilled prefill reads out: one recurrence of the teacher on z^, then the coda.

    Args:
        ids: int64 [rows, tokens], unpadded. row_seeds: [rows], of the teacher's initial states.
    """
    core = teacher.model
    context = PaddedContext(teacher.config, torch.ones_like(ids), dtype=teacher.dtype, depth=depth)
    with torch.no_grad():
        prelude = core.prelude_forward(ids, context)
        z = core.endpoint(prelude, core.draw_initial_state(context.position_ids, row_seeds, prelude), context)
        expected = core.coda_forward(z, context, prelude)
    predicted = student(core, prelude, context)
    hidden = (predicted - z).square().mean() / z.var(unbiased=False)
    read = core.coda_forward(core.recur(predicted, prelude, context), context, prelude)
    return hidden, token_kl(teacher.lm_head, read.flatten(0, 1), expected.flatten(0, 1)).mean()
