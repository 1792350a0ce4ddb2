"""Training a module on rows of text: updates, schedule, counters, and the run folder around them, resumable at each."""

import json
import logging
import math
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import AutoTokenizer, PreTrainedTokenizerBase

import loop_rl
from loop_rl.errors import UserError
from loop_rl.learner import optimizer
from loop_rl.learner.language import IGNORED
from loop_rl.training.checkpoints import (
    checkpoint_step,
    latest_checkpoint,
    load_training_state,
    save_checkpoint,
    save_training_state,
)
from loop_rl.training.corpus import load_corpus
from loop_rl.training.pretrain_recipe import (
    PretrainDataSection,
    PretrainOptimSection,
    PretrainRunSection,
    TrainSection,
)
from loop_rl.training.rows import drop_rows_after
from loop_rl.training.run_folder import (
    environment,
    holds_a_run,
    progress_bar,
    saved_recipe,
)
from loop_rl.training.schedule import wsd_factor
from loop_rl.training.stop import stop_requests

logger = logging.getLogger(__name__)

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
        self.optimizer = make_optimizer(trained, recipe.optim)
        self.counters = {"step": 0, "skipped": 0, "skipped_in_a_row": 0}

    @property
    def step(self) -> int:
        return self.counters["step"]

    @abstractmethod
    def loss(self, ids: Tensor, labels: Tensor) -> Tensor:
        """Summed loss of a micro-batch, ids and labels int64 [rows, tokens]; called once for each, in order."""

    @abstractmethod
    def figures(self, counts: list[int], losses: list[float], updated: bool) -> dict[str, Any]:
        """An update's further metrics, from tokens and mean loss of its micro-batches; `updated`: weights changed."""

    @abstractmethod
    def save_model(self, folder: Path) -> None:
        """What the run makes, as its users load it."""

    def resumable(self) -> dict[str, Any]:
        """By name, what resuming restores beside the weights and the counters."""
        return {"optimizer": self.optimizer, "corpus": self.corpus, "generator": self.generator}

    def update(self) -> dict[str, Any]:
        """One update over `accumulation` micro-batches; returns its row of metrics.

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
        further = self.figures(counts, [x / max(n, 1) for x, n in zip(sums, counts, strict=True)], updated)
        seconds = time.perf_counter() - started
        row = {
            "step": self.step,
            "loss": loss,
            **further,
            "learning_rate": rate,
            "grad_norm": norm,
            "skipped": self.counters["skipped"],
            "tokens_per_second": sum(ids.numel() for ids, _ in batches) / seconds,
            "time/step": seconds,
        }
        return {
            key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in row.items()
        }

    def save(self, folder: Path) -> None:
        """Everything that resuming needs."""
        self.save_model(folder / "model")
        save_training_state(folder / _STATE_FILE, self.resumable(), self.counters)

    def take_up(self, checkpoint: Path) -> None:
        """Go on from a checkpoint of `save`; the weights are loaded by whoever made `trained`."""
        self.counters = load_training_state(checkpoint / _STATE_FILE, self.resumable())


def train_on_text(
    recipe: TextRecipe,
    make_trainer: Callable[[Path | None], TextTrainer],
    decided_by: tuple[str, ...],
    resume: bool,
    progress: bool,
) -> Path:
    """Runs a recipe in its run folder and returns that; what the run makes is in its subfolder `model`.

    Args:
        make_trainer: given the checkpoint to go on from, or None to start.
        decided_by: sections of the recipe that a resumed run must share with the one it goes on with.

    Ctrl-C (or SIGTERM) ends the update under way, saves a checkpoint and raises KeyboardInterrupt.
    """
    if recipe.optim.warmup_fraction + recipe.optim.decay_fraction > 1:
        raise UserError("optim.warmup_fraction and optim.decay_fraction add up to more than 1; lower one of them")
    if recipe.train.threads is not None:
        torch.set_num_threads(recipe.train.threads)
    run = Path(recipe.run.folder) / recipe.run.name
    checkpoint = open_run_folder(run, recipe, decided_by, resume)
    trainer = make_trainer(checkpoint)
    if checkpoint is not None:
        trainer.take_up(checkpoint)
    run.mkdir(parents=True, exist_ok=True)
    (run / "recipe.yaml").write_text(recipe.dump_yaml())
    (run / "environment.json").write_text(json.dumps(environment(trainer.device), indent=1) + "\n")
    drop_rows_after(run / "metrics.jsonl", trainer.step)
    _train(trainer, run, progress)
    temporary = run / ".incomplete_model"
    shutil.rmtree(temporary, ignore_errors=True)
    trainer.save_model(temporary)
    shutil.rmtree(run / "model", ignore_errors=True)
    temporary.rename(run / "model")
    return run


def make_optimizer(model: nn.Module, optim: PretrainOptimSection) -> torch.optim.AdamW:
    """AdamW with weight decay on matrices only: gains and biases have no scale that a decay should pull to zero."""
    parameters = optimizer.trainable(model)
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": optim.weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    return optimizer.make_optimizer(groups, optim, fused=True)


def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """The tokenizer in a folder, or the embedded model's; UserError when there is none."""
    folder = Path(loop_rl.__file__).parent / "embedded" if name == "embedded" else Path(name)
    if not (folder / "tokenizer_config.json").is_file():
        raise UserError(f"data.tokenizer: no tokenizer in {folder}; give a folder with tokenizer.json, or embedded")
    return AutoTokenizer.from_pretrained(folder)


def _train(trainer: TextTrainer, run: Path, progress: bool) -> None:
    train = trainer.recipe.train

    def checkpoint() -> Path:
        return save_checkpoint(run / "checkpoints", trainer.step, trainer.save, train.keep_checkpoints)

    with stop_requests() as stop, (run / "metrics.jsonl").open("a") as metrics, progress_bar(progress) as bar:
        text = "loss {loss:.3f}  {tokens_per_second:,.0f} tokens/s"
        task = bar.add_task("starting", total=train.max_steps, completed=trainer.step)
        while trainer.step < train.max_steps and not stop.is_set():
            row = trainer.update()
            metrics.write(json.dumps(row) + "\n")
            metrics.flush()
            shown = {**row, "loss": math.nan if row["loss"] is None else row["loss"]}
            bar.update(task, completed=trainer.step, description=text.format(**shown))
            if trainer.counters["skipped_in_a_row"] >= MAX_SKIPPED_IN_A_ROW:
                raise UserError(
                    f"{MAX_SKIPPED_IN_A_ROW} updates in a row had a gradient that is not finite (last: update "
                    f"{trainer.step}); lower optim.learning_rate, or resume from the last checkpoint in {run}"
                )
            if train.save_steps and trainer.step % train.save_steps == 0 and trainer.step < train.max_steps:
                checkpoint()
        saved = checkpoint()
    if trainer.step < train.max_steps:
        raise KeyboardInterrupt(f"stopped after update {trainer.step}; {saved} is complete, resume to go on")


def open_run_folder(run: Path, recipe: TextRecipe, decided_by: tuple[str, ...], resume: bool) -> Path | None:
    """Check the run folder; returns the checkpoint to resume from, None to start from the beginning."""
    if not resume:
        if holds_a_run(run):
            raise UserError(f"{run} already holds a run; resume it, delete it, or set another run.name")
        return None
    if not (run / "recipe.yaml").is_file():
        raise UserError(f"there is no run to resume in {run}; check run.folder and run.name, or start without resuming")
    before, now = saved_recipe(run), recipe.model_dump()
    for section in decided_by:
        if before.get(section) != now[section]:
            raise UserError(f"the section {section} differs from {run / 'recipe.yaml'}, so the run can't go on as it")
    checkpoint = latest_checkpoint(run / "checkpoints")
    if checkpoint is None:
        logger.warning("%s has no complete checkpoint; starting from the beginning", run)
    else:
        logger.info("resuming %s from step %d", run, checkpoint_step(checkpoint))
    return checkpoint
