"""Prefill of a prompt for decoding with terminal KV sharing: by the teacher's recurrences, or by a distilled student.

The student predicts the endpoint z^R in one pass; one recurrence of the teacher and the coda then write every bank
(paper, section 3.2).
"""

import copy
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from loop_rl.errors import UserError, first_line
from loop_rl.models.attention.context import Context
from loop_rl.models.attention.terminal import TerminalPrefill
from loop_rl.models.looped import LoopedForCausalLM, LoopedModel, PreludeOutput

STUDENT_FILE = "prefill_student.safetensors"

#: makes the endpoint state of a prompt's tokens, writing the terminal banks: (prelude, row seeds, context) -> z
Endpoint = Callable[[PreludeOutput, Tensor | None, Context], Tensor]


class PrefillStudent(nn.Module):
    """As many blocks as the core, run once from a state of zeros through the teacher's own injection.

    A model without an injection starts from the tokens' embedding instead, which its state starts from too.
    """

    def __init__(self, core: LoopedModel, from_teacher: bool = True) -> None:
        """from_teacher: start from the core's weights; otherwise from the model's own initialisation."""
        super().__init__()
        self.blocks = copy.deepcopy(core.core)
        if not from_teacher:
            self.blocks.apply(core._init_weights)

    def forward(self, core: LoopedModel, prelude: PreludeOutput, context: Context) -> Tensor:
        """The predicted endpoint; [B, T, width]. `context` must not record: the student's keys are no banks."""
        start = prelude.embeddings if core.config.injection == "none" else torch.zeros_like(prelude.embeddings)
        return core.recur(start, prelude, context, 0, self.blocks)

    def save(self, folder: Path) -> None:
        """Beside a model, in one file."""
        save_file({name: value.contiguous() for name, value in self.state_dict().items()}, folder / STUDENT_FILE)

    @classmethod
    def load(cls, folder: Path, model: LoopedForCausalLM) -> "PrefillStudent":
        """The student saved beside a model. Raises UserError when there is none, or it belongs to another model."""
        if not (folder / STUDENT_FILE).is_file():
            raise UserError(f"{folder} has no {STUDENT_FILE}: make one with loop-rl distill")
        student = cls(model.model)
        try:
            # assigned, so that a model without memory (meta) takes them, too
            student.load_state_dict(load_file(folder / STUDENT_FILE), assign=True)
        except (SafetensorError, OSError) as error:
            raise UserError(
                f"{folder / STUDENT_FILE} is damaged ({first_line(error)}): copy it again, or make one with "
                "loop-rl distill"
            ) from error
        except RuntimeError as error:
            raise UserError(
                f"{folder / STUDENT_FILE} belongs to another model: {' '.join(str(error).split())}"
            ) from None
        return student.to(model.device, model.dtype).eval()


def teacher_endpoint(core: LoopedModel, depth: int | None = None) -> Endpoint:
    """The teacher's own recurrences: the context's depth of them, or `depth`."""

    def endpoint(prelude: PreludeOutput, row_seeds: Tensor | None, context: Context) -> Tensor:
        z = core.draw_initial_state(context.position_ids, row_seeds, prelude)
        for recurrence in range(context.depth if depth is None else depth):
            z = core.recur(z, prelude, context, recurrence)
        return z

    return endpoint


def student_endpoint(core: LoopedModel, student: PrefillStudent) -> Endpoint:
    """The student's prediction and one recurrence of the teacher on it, which writes the core's terminal banks."""

    def endpoint(prelude: PreludeOutput, row_seeds: Tensor | None, context: Context) -> Tensor:
        return core.recur(student(core, prelude, silent(context)), prelude, context)

    return endpoint


def silent(context: Context) -> Context:
    """A context of the same rows and mask that keeps no banks."""
    other = Context(context.config, context.position_ids, context.dtype, 1)
    other.mask, other.causal = context.mask, context.causal
    return other


def prefill(
    model: LoopedForCausalLM, ids: Tensor, attention_mask: Tensor, depth: int, endpoint: Endpoint | None = None
) -> tuple[TerminalPrefill, Tensor]:
    """Runs prompts int64 [B, T]; returns the context with their terminal banks, and the logits of every last column."""
    core = model.model
    context = TerminalPrefill(model.config, attention_mask, None, model.dtype, depth, record=True)
    prelude = core.prelude_forward(ids, context)
    z = (endpoint or teacher_endpoint(core))(prelude, None, context)
    return context, model.lm_head(core.coda_forward(z, context, prelude)[:, -1])
