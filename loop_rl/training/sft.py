"""Supervised fine-tuning by TRL's SFTTrainer: a depth for each micro-batch, and truncated backpropagation."""

import shutil
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase, PrinterCallback
from trl import SFTConfig, SFTTrainer

from loop_rl.errors import UserError
from loop_rl.learner.language import IGNORED
from loop_rl.learner.schedule import wsd_factor
from loop_rl.models import LoopedForCausalLM
from loop_rl.models.loading import load_model
from loop_rl.recipe.sft import SftRecipe
from loop_rl.runs.checkpoints import checkpoint_step
from loop_rl.runs.disk import INCOMPLETE, writing
from loop_rl.runs.folder import (
    checkpoint_to_resume,
    is_finished,
    publish_model,
    say_finished,
    start_run,
    warn_of_schedule,
)
from loop_rl.runs.lock import run_lock
from loop_rl.runs.progress import Progress
from loop_rl.runs.stop import stop_requests
from loop_rl.training.depth_prior import DepthPrior, mean_depth
from loop_rl.training.learned_prior import make_prior
from loop_rl.training.pretrain import truncated_loss
from loop_rl.training.sft_callback import TRAINER_FILES, RunKeeper
from loop_rl.training.sft_data import sft_rows
from loop_rl.training.text import MAY_CHANGE, make_text_optimizer, stopped


def sft(recipe: SftRecipe, resume: bool = False, progress: bool = True) -> Path:
    """Trains the recipe's model; returns its run folder, with model and tokenizer in its subfolder `model`.

    Interrupting and resuming are as in pretraining. Raises UserError for what the user can fix.
    """
    train = recipe.train
    if torch.cuda.device_count() > 1:
        raise UserError("sft trains on one GPU: set CUDA_VISIBLE_DEVICES to one of them")
    if train.threads is not None:
        torch.set_num_threads(train.threads)
    run = Path(recipe.run.folder) / recipe.run.name
    with run_lock(run):
        checkpoint = checkpoint_to_resume(run, recipe, MAY_CHANGE, resume)
        if checkpoint is None or not is_finished(checkpoint, train.max_steps):
            if checkpoint is not None:
                warn_of_schedule(run, "train.max_steps", train.max_steps)
            publish_model(run, _train(recipe, run, checkpoint, progress), TRAINER_FILES)
        elif not publish_model(run, checkpoint, TRAINER_FILES):
            say_finished(run, checkpoint, train.max_steps)
    return run


def _train(recipe: SftRecipe, run: Path, checkpoint: Path | None, progress: bool) -> Path:
    """The updates that are left after the checkpoint, or all of them; returns the last checkpoint."""
    model, tokenizer = load_model(recipe.model.path, "float32")
    if recipe.data.length > model.config.max_position_embeddings:
        raise UserError(
            f"data.length ({recipe.data.length}) exceeds the model's max_position_embeddings "
            f"({model.config.max_position_embeddings}); lower it"
        )
    files = run / f"{INCOMPLETE}trainer"
    trainer = make_trainer(recipe, model, tokenizer, files)
    model.config.depth = mean_depth(trainer.prior)  # its checkpoints say what was trained
    step = 0 if checkpoint is None else checkpoint_step(checkpoint)
    try:
        with stop_requests() as stop, Progress(recipe.train.max_steps, step, progress, unit="update") as bar:
            keeper = RunKeeper(recipe, trainer, run, stop.is_set, bar)
            trainer.add_callback(keeper)
            if checkpoint is not None:
                keeper.restore(checkpoint)
            start_run(run, recipe, trainer.args.device, None if checkpoint is None else keeper.step)
            if checkpoint is None:
                trainer.train()
            else:
                keeper.resume(checkpoint)
    finally:
        shutil.rmtree(files, ignore_errors=True)
    if keeper.saved is None or keeper.step < recipe.train.max_steps:
        raise stopped(keeper.step, keeper.saved)
    return keeper.saved


class MicroBatchLoss(NamedTuple):
    """depth: recurrences. loss: summed, in nats. tokens: that it is the sum of. read: tokens that went in."""

    depth: int
    loss: float
    tokens: int
    read: int


class LoopedSFTTrainer(SFTTrainer):
    """TRL's trainer with the loss of a looped model; `micro_batches` has those of the update under way."""

    def __init__(self, *arguments: Any, prior: DepthPrior, backprop_depth: int, seed: int, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.prior, self.backprop_depth = prior, backprop_depth
        self.generator = torch.Generator().manual_seed(seed)
        self.micro_batches: list[MicroBatchLoss] = []

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Tensor],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Tensor:
        """Summed cross-entropy over the update's tokens, so that micro-batches weigh by theirs.

        Rows are padded on the right, where causality hides the pads, and their labels are ignored.
        """
        if return_outputs:
            raise ValueError("the loss is computed without outputs; evaluate with `loop-rl eval`")
        ids, labels = inputs["input_ids"], inputs["labels"]
        depth = self.prior.draw(self.generator)
        seeds = torch.randint(2**31, (len(ids),), generator=self.generator)
        looped = self.accelerator.unwrap_model(model)
        total = truncated_loss(looped, ids, labels, depth, self.backprop_depth, seeds)
        tokens = int((labels[:, 1:] != IGNORED).sum())
        self.micro_batches.append(MicroBatchLoss(depth, float(total.detach()), tokens, ids.numel()))
        return total / max(int(tokens if num_items_in_batch is None else num_items_in_batch), 1)

    def _save_checkpoint(self, *arguments: Any, **keywords: Any) -> None:
        with writing(Path(self.args.output_dir)):
            super()._save_checkpoint(*arguments, **keywords)


def make_trainer(
    recipe: SftRecipe, model: LoopedForCausalLM, tokenizer: PreTrainedTokenizerBase, folder: Path
) -> LoopedSFTTrainer:
    """The trainer of a recipe, which keeps its files in `folder`; what is logged and saved is for a callback to do."""
    optim, train = recipe.optim, recipe.train
    optimizer = make_text_optimizer(model, optim)

    def factor(step: int) -> float:
        return wsd_factor(step, train.max_steps, optim.warmup_fraction, optim.decay_fraction)

    trainer = LoopedSFTTrainer(
        model,
        SFTConfig(
            output_dir=str(folder),
            max_steps=train.max_steps,
            per_device_train_batch_size=train.batch_size,
            gradient_accumulation_steps=train.accumulation,
            max_grad_norm=0.0,  # the callback clips, since it must see the norm before the update
            seed=train.seed,
            max_length=recipe.data.length,
            dataset_kwargs={"skip_prepare_dataset": True},
            logging_strategy="no",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=not torch.cuda.is_available(),
            bf16=False,
            activation_checkpointing=False,
            dataloader_pin_memory=False,
        ),
        train_dataset=sft_rows(recipe.data, tokenizer),
        processing_class=tokenizer,
        optimizers=(optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, factor)),
        prior=make_prior(recipe.prior),
        backprop_depth=train.backprop_depth,
        seed=train.seed,
    )
    trainer.remove_callback(PrinterCallback)
    return trainer
