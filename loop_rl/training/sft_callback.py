"""What TRL's trainer leaves to a callback: clipping, skipping updates, metrics, and checkpoints in a run folder."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from loop_rl.recipe.sft import SftRecipe
from loop_rl.runs.checkpoints import (
    check_finite,
    load_training_state,
    reading,
    save_checkpoint,
    save_training_state,
)
from loop_rl.runs.disk import writing
from loop_rl.runs.progress import Progress
from loop_rl.runs.rows import append_row
from loop_rl.training.learned_prior import prior_metrics
from loop_rl.training.text import check_skipped, shown_metrics, summary

if TYPE_CHECKING:
    from loop_rl.training.sft import LoopedSFTTrainer

_STATE_FILE = "training_state.pt"
# What TRL's trainer keeps beside the model in a checkpoint.
TRAINER_FILES = (
    "optimizer.pt",
    "scheduler.pt",
    "scaler.pt",
    "rng_state.pth",
    "trainer_state.json",
    "training_args.bin",
)
# Those without which the Trainer would go on, and with other updates.
_RESUMED = ("optimizer.pt", "scheduler.pt", "rng_state.pth")


class RunKeeper(TrainerCallback):
    """Clips each update's gradient, drops one that is not finite, and keeps the run's metrics and checkpoints.

    A checkpoint's folder `model` is the Trainer's own, with its optimizer and its order of the data: loading it gives
    the model, and the Trainer resumes from it.
    """

    def __init__(
        self,
        recipe: SftRecipe,
        trainer: LoopedSFTTrainer,
        run: Path,
        stopped: Callable[[], bool],
        bar: Progress,
    ) -> None:
        """stopped: whether to end after the update under way."""
        self.recipe, self.trainer, self.run, self.stopped, self.bar = recipe, trainer, run, stopped, bar
        self.counters = {"step": 0, "skipped": 0, "skipped_in_a_row": 0}
        self.saved: Path | None = None
        self.begun = False  # an update: what came before was starting or loading a checkpoint
        self.started = self.run_started = time.perf_counter()
        self.norm = self.rate = math.nan

    @property
    def step(self) -> int:
        """Updates made so far."""
        return self.counters["step"]

    def restore(self, checkpoint: Path) -> None:
        """Restores what the Trainer does not know of."""
        self.counters = load_training_state(checkpoint / _STATE_FILE, self._resumable())

    def resume(self, checkpoint: Path) -> None:
        """Trains on from the checkpoint; UserError where the Trainer can't use it."""
        with reading(checkpoint):
            for name in _RESUMED:
                if not (checkpoint / "model" / name).is_file():
                    raise FileNotFoundError(f"no {name}")
        try:
            self.trainer.train(resume_from_checkpoint=str(checkpoint / "model"))
        except Exception:
            if self.begun:
                raise
            with reading(checkpoint):
                raise

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> TrainerControl:
        self.started, self.begun = time.perf_counter(), True
        self.trainer.micro_batches.clear()
        return control

    def on_pre_optimizer_step(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: nn.Module,
        optimizer: Any,
        **_: Any,
    ) -> TrainerControl:
        self.norm = float(nn.utils.clip_grad_norm_(model.parameters(), self.recipe.optim.max_grad_norm))
        self.rate = optimizer.param_groups[0]["lr"]
        if not self._finite():
            optimizer.zero_grad()  # without gradients the optimizer leaves weights and moments as they are
        return control

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> TrainerControl:
        updated = self._finite()
        self.counters["step"] = state.global_step
        self.counters["skipped"] += not updated
        self.counters["skipped_in_a_row"] = 0 if updated else self.counters["skipped_in_a_row"] + 1
        row, metrics = self._row(updated), self.run / "metrics.jsonl"
        with writing(metrics):
            row = append_row(metrics, row)
        self.bar.step(self.step, *shown_metrics(row))
        check_skipped(self.counters, self.run)
        train, stopped = self.recipe.train, self.stopped()
        control.should_training_stop |= stopped
        control.should_save = (
            stopped or self.step >= train.max_steps or bool(train.save_steps and self.step % train.save_steps == 0)
        )
        if self.step >= train.max_steps:
            self.bar.say(summary(row, time.perf_counter() - self.run_started))
        return control

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> TrainerControl:
        check_finite(self.trainer.model.state_dict(), f"update {self.step}")
        written = Path(args.output_dir) / f"checkpoint-{state.global_step}"

        def save(folder: Path) -> None:
            shutil.move(written, folder / "model")
            save_training_state(folder / _STATE_FILE, self._resumable(), self.counters)

        self.saved = save_checkpoint(self.run / "checkpoints", self.step, save, self.recipe.train.keep_checkpoints)
        return control

    def _resumable(self) -> dict[str, Any]:
        return {"generator": self.trainer.generator, "prior": self.trainer.prior}

    def _finite(self) -> bool:
        return math.isfinite(self.norm) and all(math.isfinite(part.loss) for part in self.trainer.micro_batches)

    def _row(self, updated: bool) -> dict[str, Any]:
        """The update's row of metrics; the prior learns from it where weights changed."""
        parts = self.trainer.micro_batches
        depths, counts = [part.depth for part in parts], [part.tokens for part in parts]
        if updated:
            self.trainer.prior.observe(depths, [part.loss / max(part.tokens, 1) for part in parts], counts)
        seconds = time.perf_counter() - self.started
        return {
            "step": self.step,
            "loss": sum(part.loss for part in parts) / max(sum(counts), 1),
            "depth": sum(depths) / len(depths),
            "depths": depths,
            "tokens": counts,
            **prior_metrics(self.trainer.prior),
            "learning_rate": self.rate,
            "grad_norm": self.norm,
            "skipped": self.counters["skipped"],
            "tokens_per_second": sum(part.read for part in parts) / seconds,
            "time/step": seconds,
        }
