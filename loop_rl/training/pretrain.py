"""Next-token pretraining of a looped model with sampled depths and truncated backpropagation through the loop."""

import json
import logging
import math
import shutil
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoTokenizer, PreTrainedTokenizerBase

import loop_rl
from loop_rl.errors import UserError
from loop_rl.fixed_point import parse_estimator
from loop_rl.learner.language import IGNORED, next_token_loss
from loop_rl.models import LoopedConfig, LoopedForCausalLM
from loop_rl.training.checkpoints import (
    checkpoint_step,
    latest_checkpoint,
    load_training_state,
    save_checkpoint,
    save_training_state,
)
from loop_rl.training.corpus import Corpus, load_corpus
from loop_rl.training.flops import row_flops
from loop_rl.training.learned_prior import make_prior, prior_metrics
from loop_rl.training.pretrain_recipe import PretrainRecipe
from loop_rl.training.run_folder import drop_rows_after, environment, progress_bar, saved_recipe, stop_requests
from loop_rl.training.schedule import wsd_factor

logger = logging.getLogger(__name__)

# A single non-finite update is skipped; this many in a row mean that the weights themselves are beyond repair.
MAX_SKIPPED_IN_A_ROW = 20
_STATE_FILE = "training_state.pt"


def pretrain(recipe: PretrainRecipe, resume: bool = False, progress: bool = True) -> Path:
    """Train the recipe's model and return its run folder, with model and tokenizer in its subfolder `model`.

    Ctrl-C (or SIGTERM) ends the update under way, saves a checkpoint and raises KeyboardInterrupt; resuming from any
    checkpoint gives bitwise the weights of a run that was never stopped. Raises UserError for what the user can mend.
    """
    if recipe.data.length > recipe.model.max_position_embeddings:
        raise UserError(
            f"data.length ({recipe.data.length}) exceeds model.max_position_embeddings "
            f"({recipe.model.max_position_embeddings}); lower one or raise the other"
        )
    if recipe.optim.warmup_fraction + recipe.optim.decay_fraction > 1:
        raise UserError("optim.warmup_fraction and optim.decay_fraction add up to more than 1; lower one of them")
    if recipe.train.threads is not None:
        torch.set_num_threads(recipe.train.threads)
    run = Path(recipe.run.folder) / recipe.run.name
    checkpoint = _open_run_folder(run, recipe, resume)
    trainer = Pretrainer(recipe, checkpoint)
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


class Pretrainer:
    """The state of one run; `update` does one optimizer update."""

    def __init__(self, recipe: PretrainRecipe, checkpoint: Path | None = None) -> None:
        self.recipe = recipe
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.tokenizer = load_tokenizer(recipe.data.tokenizer)
        if checkpoint is None:
            torch.manual_seed(recipe.train.seed)
            model = LoopedForCausalLM(make_config(recipe, self.tokenizer))
        else:
            model = LoopedForCausalLM.from_pretrained(checkpoint / "model", dtype=torch.float32)
        self.model = model.to(self.device).train()
        self.corpus = _load_corpus(recipe, self.tokenizer)
        self.prior = make_prior(recipe.prior)
        self.generator = torch.Generator().manual_seed(recipe.train.seed)
        self.optimizer = make_optimizer(self.model, recipe)
        self.step = self.skipped = self.skipped_in_a_row = 0
        self.flops = 0
        self.row_flops = row_flops(self.model, recipe.data.length)
        if checkpoint is not None:
            counters = load_training_state(checkpoint / _STATE_FILE, self._resumable())
            self.step, self.skipped = counters["step"], counters["skipped"]
            self.skipped_in_a_row, self.flops = counters["skipped_in_a_row"], counters["flops"]

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
        depths: list[int] = []
        losses: list[float] = []
        for ids, labels in batches:
            depths.append(self.prior.draw(self.generator))
            seeds = torch.randint(2**31, (len(ids),), generator=self.generator)
            ids, labels = ids.to(self.device), labels.to(self.device)
            part = truncated_loss(self.model, ids, labels, depths[-1], recipe.train.backprop_depth, seeds) / tokens
            part.backward()
            losses.append(float(part.detach()) * tokens)
        loss = sum(losses) / tokens
        norm = float(nn.utils.clip_grad_norm_(self.model.parameters(), recipe.optim.max_grad_norm))
        if math.isfinite(norm) and math.isfinite(loss):
            self.optimizer.step()
            self.prior.observe(depths, [x / max(n, 1) for x, n in zip(losses, counts, strict=True)], counts)
            self.skipped_in_a_row = 0
        else:
            self.skipped += 1
            self.skipped_in_a_row += 1
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        self.flops += sum(
            len(ids) * self.row_flops.training(depth, recipe.train.backprop_depth)
            for depth, (ids, _) in zip(depths, batches, strict=True)
        )
        seconds = time.perf_counter() - started
        row = {
            "step": self.step,
            "loss": loss,
            "depth": sum(depths) / len(depths),
            "depths": depths,
            "tokens": counts,
            **prior_metrics(self.prior),
            "flops": self.flops,
            "learning_rate": rate,
            "grad_norm": norm,
            "skipped": self.skipped,
            "tokens_per_second": sum(ids.numel() for ids, _ in batches) / seconds,
            "time/step": seconds,
        }
        return {
            key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in row.items()
        }

    def save_model(self, folder: Path) -> None:
        """Model (safetensors) and tokenizer, as from_pretrained reads them."""
        self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)

    def save(self, folder: Path) -> None:
        """Everything that resuming needs."""
        self.save_model(folder / "model")
        counters = {
            "step": self.step,
            "skipped": self.skipped,
            "skipped_in_a_row": self.skipped_in_a_row,
            "flops": self.flops,
        }
        save_training_state(folder / _STATE_FILE, self._resumable(), counters)

    def _resumable(self) -> dict[str, Any]:
        return {
            "optimizer": self.optimizer,
            "corpus": self.corpus,
            "prior": self.prior,
            "generator": self.generator,
        }


def truncated_loss(
    model: LoopedForCausalLM, ids: Tensor, labels: Tensor, depth: int, backprop_depth: int, row_seeds: Tensor
) -> Tensor:
    """Summed cross-entropy (nats) of the next tokens, with truncated backpropagation through the loop.

    ids, labels: int64 [rows, tokens], labels not shifted. The gradient goes through the last min(depth,
    backprop_depth) recurrences; the state before them is detached, the injected input is not. row_seeds: [rows].
    """
    estimator = parse_estimator(f"truncated_bptt{min(depth, backprop_depth)}")
    return next_token_loss(model, ids, labels, estimator, depth, row_seeds)


def make_config(recipe: PretrainRecipe, tokenizer: PreTrainedTokenizerBase) -> LoopedConfig:
    """The recipe's model section with the tokenizer's special ids; UserError when the vocabulary is too small."""
    values = recipe.model.model_dump()
    values["vocab_size"] = values["vocab_size"] or len(tokenizer)
    if values["vocab_size"] < len(tokenizer):
        raise UserError(
            f"model.vocab_size is {values['vocab_size']}, but the tokenizer has {len(tokenizer)} entries; "
            "raise it or leave it null"
        )
    return LoopedConfig(
        **values,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )


def make_optimizer(model: nn.Module, recipe: PretrainRecipe) -> torch.optim.AdamW:
    """AdamW with weight decay on matrices only: gains and biases have no scale that a decay should pull to zero."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optim = recipe.optim
    return torch.optim.AdamW(
        [
            {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": optim.weight_decay},
            {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
        ],
        lr=optim.learning_rate,
        betas=(optim.adam_beta1, optim.adam_beta2),
        fused=True,
    )


def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """The tokenizer in a folder, or the embedded model's; UserError when there is none."""
    folder = Path(loop_rl.__file__).parent / "embedded" if name == "embedded" else Path(name)
    if not (folder / "tokenizer_config.json").is_file():
        raise UserError(f"data.tokenizer: no tokenizer in {folder}; give a folder with tokenizer.json, or embedded")
    return AutoTokenizer.from_pretrained(folder)


def _load_corpus(recipe: PretrainRecipe, tokenizer: PreTrainedTokenizerBase) -> Corpus:
    data = recipe.data
    return load_corpus(data.name, tokenizer, data.length, data.problems, data.loss_on, data.seed)


def _train(trainer: Pretrainer, run: Path, progress: bool) -> None:
    train = trainer.recipe.train

    def checkpoint() -> Path:
        return save_checkpoint(run / "checkpoints", trainer.step, trainer.save, train.keep_checkpoints)

    with stop_requests() as stop, (run / "metrics.jsonl").open("a") as metrics, progress_bar(progress) as bar:
        text = "loss {loss:.3f}  depth {depth:.0f}  {tokens_per_second:,.0f} tokens/s"
        task = bar.add_task("starting", total=train.max_steps, completed=trainer.step)
        while trainer.step < train.max_steps and not stop.is_set():
            row = trainer.update()
            metrics.write(json.dumps(row) + "\n")
            metrics.flush()
            shown = {**row, "loss": math.nan if row["loss"] is None else row["loss"]}
            bar.update(task, completed=trainer.step, description=text.format(**shown))
            if trainer.skipped_in_a_row >= MAX_SKIPPED_IN_A_ROW:
                raise UserError(
                    f"{MAX_SKIPPED_IN_A_ROW} updates in a row had a gradient that is not finite (last: update "
                    f"{trainer.step}); lower optim.learning_rate, or resume from the last checkpoint in {run}"
                )
            if train.save_steps and trainer.step % train.save_steps == 0 and trainer.step < train.max_steps:
                checkpoint()
        saved = checkpoint()
    if trainer.step < train.max_steps:
        raise KeyboardInterrupt(f"stopped after update {trainer.step}; {saved} is complete, resume to go on")


def _open_run_folder(run: Path, recipe: PretrainRecipe, resume: bool) -> Path | None:
    """Make or check the run folder; returns the checkpoint to resume from, None to start from the beginning."""
    if not resume:
        if run.exists() and any(run.iterdir()):
            raise UserError(f"{run} already holds a run; resume it, delete it, or set another run.name")
        run.mkdir(parents=True, exist_ok=True)
        return None
    if not (run / "recipe.yaml").is_file():
        raise UserError(f"there is no run to resume in {run}; check run.folder and run.name, or start without resuming")
    before = saved_recipe(run)
    for section in ("model", "data", "prior"):
        if before.get(section) != getattr(recipe, section).model_dump():
            raise UserError(f"the section {section} differs from {run / 'recipe.yaml'}, so the run can't go on as it")
    checkpoint = latest_checkpoint(run / "checkpoints")
    if checkpoint is None:
        logger.warning("%s has no complete checkpoint; starting from the beginning", run)
    else:
        logger.info("resuming %s from step %d", run, checkpoint_step(checkpoint))
    return checkpoint
