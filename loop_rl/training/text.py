"""Training a module on rows of text: updates, schedule, counters, and the run folder around them, resumable at each."""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import AutoTokenizer, PreTrainedTokenizerBase

import loop_rl
from loop_rl.data.corpus import load_corpus
from loop_rl.errors import UserError
from loop_rl.learner import optimizer
from loop_rl.learner.language import IGNORED
from loop_rl.learner.schedule import wsd_factor
from loop_rl.recipe.pretrain import (
    PretrainDataSection,
    PretrainOptimSection,
    PretrainRunSection,
    TrainSection,
)
from loop_rl.runs.checkpoints import (
    check_finite,
    load_training_state,
    save_checkpoint,
    save_training_state,
)
from loop_rl.runs.disk import writing
from loop_rl.runs.folder import (
    checkpoint_to_resume,
    is_finished,
    publish_model,
    say_finished,
    start_run,
    warn_of_schedule,
)
from loop_rl.runs.lock import run_lock
from loop_rl.runs.progress import Progress, duration
from loop_rl.runs.rows import append_row
from loop_rl.runs.stop import stop_requests

# Keys that decide no result, and the length, of which a resumed run is warned.
MAY_CHANGE = ("run", "train.max_steps", "train.save_steps", "train.keep_checkpoints", "train.threads")
# A single non-finite update is skipped; this many in a row mean that the weights themselves are beyond repair.
MAX_SKIPPED_IN_A_ROW = 20
_STATE_FILE = "training_state.pt"


class TextRecipe(Protocol):
    """What is read of a recipe that trains on text."""

    data: PretrainDataSection
    optim: PretrainOptimSection
    train: TrainSection
    run: PretrainRunSection

    def model_dump(self) -> dict[str, Any]: ...
    def dump_yaml(self) -> str: ...


class TextTrainer(ABC):
    """The state of one run; `update` does one optimizer update of `trained`."""

    def __init__(self, recipe: TextRecipe, trained: nn.Module, tokenizer: PreTrainedTokenizerBase) -> None:
        self.recipe, self.trained, self.tokenizer = recipe, trained, tokenizer
        self.device = next(trained.parameters()).device
        data = recipe.data
        self.corpus = load_corpus(data.name, tokenizer, data.length, data.problems, data.loss_on, data.seed)
        self.generator = torch.Generator().manual_seed(recipe.train.seed)
        self.optimizer = make_text_optimizer(trained, recipe.optim)
        self.counters = {"step": 0, "skipped": 0, "skipped_in_a_row": 0}

    @property
    def step(self) -> int:
        return self.counters["step"]

    @abstractmethod
    def loss(self, ids: Tensor, labels: Tensor) -> Tensor:
        """Summed loss of a micro-batch, ids and labels int64 [rows, tokens]; called once for each, in order."""

    @abstractmethod
    def metrics(self, counts: list[int], losses: list[float], updated: bool) -> dict[str, Any]:
        """An update's further metrics, from tokens and mean loss of its micro-batches; `updated`: weights changed."""

    @abstractmethod
    def save_model(self, folder: Path) -> None:
        """What the run makes, as its users load it."""

    def resumable(self) -> dict[str, Any]:
        """By name, what resuming restores beside the weights and the counters."""
        return {"optimizer": self.optimizer, "corpus": self.corpus, "generator": self.generator}

    def update(self) -> dict[str, Any]:
        """One update over `accumulation` micro-batches; returns its row of metrics, NaN where undefined.

        The gradient is that of the mean over all tokens of the update, so micro-batches weigh by their tokens (the
        paper's appendix B.3). An update whose gradient is not finite leaves the weights as they were and is counted.
        """
        recipe, started = self.recipe, time.perf_counter()
        rate = recipe.optim.learning_rate * wsd_factor(
            self.step, recipe.train.max_steps, recipe.optim.warmup_fraction, recipe.optim.decay_fraction
        )
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        batches = [self.corpus.next_rows(recipe.train.batch_size) for _ in range(recipe.train.accumulation)]
        counts = [int((labels[:, 1:] != IGNORED).sum()) for _, labels in batches]
        tokens = max(sum(counts), 1)
        sums: list[float] = []
        for ids, labels in batches:
            part = self.loss(ids.to(self.device), labels.to(self.device)) / tokens
            part.backward()
            sums.append(float(part.detach()) * tokens)
        loss = sum(sums) / tokens
        norm = float(nn.utils.clip_grad_norm_(self.trained.parameters(), recipe.optim.max_grad_norm))
        updated = math.isfinite(norm) and math.isfinite(loss)
        if updated:
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.counters["skipped_in_a_row"] = 0 if updated else self.counters["skipped_in_a_row"] + 1
        self.counters["skipped"] += not updated
        self.counters["step"] += 1
        further = self.metrics(counts, [x / max(n, 1) for x, n in zip(sums, counts, strict=True)], updated)
        seconds = time.perf_counter() - started
        return {
            "step": self.step,
            "loss": loss,
            **further,
            "learning_rate": rate,
            "grad_norm": norm,
            "skipped": self.counters["skipped"],
            "tokens_per_second": sum(ids.numel() for ids, _ in batches) / seconds,
            "time/step": seconds,
        }

    def save(self, folder: Path) -> None:
        """Everything that resuming needs. Raises UserError for weights that are not finite."""
        check_finite(self.trained.state_dict(), f"update {self.step}")
        self.save_model(folder / "model")
        save_training_state(folder / _STATE_FILE, self.resumable(), self.counters)

    def restore(self, checkpoint: Path) -> None:
        """Restore a checkpoint of `save`; the weights are loaded by whoever made `trained`."""
        counters = load_training_state(checkpoint / _STATE_FILE, self.resumable())
        if counters.keys() != self.counters.keys():
            raise UserError(f"{checkpoint / _STATE_FILE} counts {sorted(counters)}, not {sorted(self.counters)}")
        self.counters = counters


def train_on_text(
    recipe: TextRecipe, make_trainer: Callable[[Path | None], TextTrainer], resume: bool, progress: bool
) -> Path:
    """Runs a recipe in its run folder and returns that; what the run makes is in its subfolder `model`.

    make_trainer: given the checkpoint to go on from, or None to start.

    Ctrl-C (or SIGTERM) ends the update under way, saves a checkpoint and raises KeyboardInterrupt. A run that is
    finished is left as it is.
    """
    if recipe.train.threads is not None:
        torch.set_num_threads(recipe.train.threads)
    run, max_steps = Path(recipe.run.folder) / recipe.run.name, recipe.train.max_steps
    with run_lock(run):
        checkpoint = checkpoint_to_resume(run, recipe, MAY_CHANGE, resume)
        if checkpoint is None or not is_finished(checkpoint, max_steps):
            if checkpoint is not None:
                warn_of_schedule(run, "train.max_steps", max_steps)
            trainer = make_trainer(checkpoint)
            if checkpoint is not None:
                trainer.restore(checkpoint)
            start_run(run, recipe, trainer.device, None if checkpoint is None else trainer.step)
            publish_model(run, _train(trainer, run, progress))
        elif not publish_model(run, checkpoint):
            say_finished(run, checkpoint, max_steps)
    return run


def make_text_optimizer(model: nn.Module, optim: PretrainOptimSection) -> torch.optim.AdamW:
    """AdamW with weight decay on matrices only: gains and biases have no scale that a decay should pull to zero."""
    parameters = optimizer.trainable(model)
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": optim.weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    return optimizer.make_optimizer(groups, optim, fused=True)


def data_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """The tokenizer in a folder, or the embedded model's; UserError when there is none."""
    folder = Path(loop_rl.__file__).parent / "embedded" if name == "embedded" else Path(name)
    if not (folder / "tokenizer_config.json").is_file():
        raise UserError(f"data.tokenizer: no tokenizer in {folder}; give a folder with tokenizer.json, or embedded")
    return AutoTokenizer.from_pretrained(folder)


def stopped(step: int, saved: Path | None) -> KeyboardInterrupt:
    """What a run raises that was asked to stop."""
    return KeyboardInterrupt(f"stopped after update {step}; {saved} is complete, --resume goes on")


def check_skipped(counters: dict[str, int], run: Path) -> None:
    """Raises UserError when too many updates in a row were skipped."""
    if counters["skipped_in_a_row"] >= MAX_SKIPPED_IN_A_ROW:
        raise UserError(
            f"{MAX_SKIPPED_IN_A_ROW} updates in a row had a gradient that is not finite (last: update "
            f"{counters['step']}); start a run with a lower optim.learning_rate, or --resume from the last checkpoint "
            f"in {run} if the machine was at fault"
        )


def summary(row: dict[str, Any], seconds: float) -> str:
    """The last line of a run: its last metrics, and the time it took."""
    loss = "none" if row["loss"] is None else f"{row['loss']:.3f}"
    return f"{row['step']} updates, {row['skipped']} of them skipped, in {duration(seconds)}; last loss {loss}"


def shown_metrics(row: dict[str, Any]) -> tuple[str, str]:
    """How an update went: for a bar, and what a line has room for beyond that."""
    loss = math.nan if row["loss"] is None else row["loss"]
    more = f"rate {row['learning_rate']:.2g}" + (f"  skipped {row['skipped']}" if row["skipped"] else "")
    return f"loss {loss:.3f}  {row['tokens_per_second']:,.0f} tokens/s", more


def _train(trainer: TextTrainer, run: Path, progress: bool) -> Path:
    """The updates that are left; returns the last checkpoint."""
    train, metrics = trainer.recipe.train, run / "metrics.jsonl"

    def checkpoint() -> Path:
        with stop.whole():
            return save_checkpoint(run / "checkpoints", trainer.step, trainer.save, train.keep_checkpoints)

    started, saved = time.monotonic(), None
    with stop_requests() as stop, Progress(train.max_steps, trainer.step, progress, unit="update") as bar:
        while trainer.step < train.max_steps and not stop.is_set():
            with stop.whole():
                row = trainer.update()
                with writing(metrics):
                    row = append_row(metrics, row)
            bar.step(trainer.step, *shown_metrics(row))
            check_skipped(trainer.counters, run)
            saved = None
            if train.save_steps and trainer.step % train.save_steps == 0:
                saved = checkpoint()
        saved = saved or checkpoint()
        if trainer.step < train.max_steps:
            raise stopped(trainer.step, saved)
        bar.say(summary(row, time.monotonic() - started))
    return saved
