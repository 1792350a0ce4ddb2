"""Next-token pretraining of a looped model with sampled depths and truncated backpropagation through the loop."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from loop_rl.errors import UserError
from loop_rl.fixed_point import TruncatedBPTT
from loop_rl.learner.language import next_token_loss
from loop_rl.models import LoopedConfig, LoopedForCausalLM
from loop_rl.recipe.pretrain import PretrainRecipe
from loop_rl.runs.checkpoints import reading
from loop_rl.sizes.flops import row_flops
from loop_rl.sizes.memory import check_trainable
from loop_rl.training.depth_prior import mean_depth
from loop_rl.training.learned_prior import make_prior, prior_metrics
from loop_rl.training.text import TextTrainer, data_tokenizer, train_on_text


def pretrain(recipe: PretrainRecipe, resume: bool = False, progress: bool = True) -> Path:
    """Train the recipe's model and return its run folder, with model and tokenizer in its subfolder `model`.

    Ctrl-C (or SIGTERM) ends the update under way, saves a checkpoint and raises KeyboardInterrupt; resuming from any
    checkpoint gives bitwise the weights of a run that was never stopped. Raises UserError for what the user can fix.
    """
    if recipe.data.length > recipe.model.max_position_embeddings:
        raise UserError(
            f"data.length ({recipe.data.length}) exceeds model.max_position_embeddings "
            f"({recipe.model.max_position_embeddings}); lower one or raise the other"
        )
    return train_on_text(recipe, lambda checkpoint: Pretrainer(recipe, checkpoint), resume, progress)


class Pretrainer(TextTrainer):
    """A looped model on text, each micro-batch at a depth drawn from the prior."""

    recipe: PretrainRecipe

    def __init__(self, recipe: PretrainRecipe, checkpoint: Path | None = None) -> None:
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        tokenizer = data_tokenizer(recipe.data.tokenizer)
        if checkpoint is None:
            config = make_config(recipe, tokenizer)
            check_trainable(config)
            torch.manual_seed(recipe.train.seed)
            model = LoopedForCausalLM(config)
        else:
            with reading(checkpoint):
                model = LoopedForCausalLM.from_pretrained(checkpoint / "model", dtype=torch.float32)
        self.model = model.to(device).train()
        super().__init__(recipe, self.model, tokenizer)
        self.prior = make_prior(recipe.prior)
        self.counters["flops"] = 0
        self.row_flops = row_flops(self.model, recipe.data.length)
        self.depths: list[int] = []

    def loss(self, ids: Tensor, labels: Tensor) -> Tensor:
        depth = self.prior.draw(self.generator)
        self.depths.append(depth)
        seeds = torch.randint(2**31, (len(ids),), generator=self.generator)
        return truncated_loss(self.model, ids, labels, depth, self.recipe.train.backprop_depth, seeds)

    def metrics(self, counts: list[int], losses: list[float], updated: bool) -> dict[str, Any]:
        depths, self.depths = self.depths, []
        if updated:
            self.prior.observe(depths, losses, counts)
        train = self.recipe.train
        row = sum(self.row_flops.training(depth, train.backprop_depth) for depth in depths)
        self.counters["flops"] += train.batch_size * row
        return {
            "depth": sum(depths) / len(depths),
            "depths": depths,
            "tokens": counts,
            **prior_metrics(self.prior),
            "flops": self.counters["flops"],
        }

    def save_model(self, folder: Path) -> None:
        """Model (safetensors) and tokenizer, as from_pretrained reads them."""
        self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)

    def resumable(self) -> dict[str, Any]:
        return {**super().resumable(), "prior": self.prior}


def truncated_loss(
    model: LoopedForCausalLM, ids: Tensor, labels: Tensor, depth: int, backprop_depth: int, row_seeds: Tensor
) -> Tensor:
    """Summed cross-entropy (nats) of the next tokens, with truncated backpropagation through the loop.

    ids, labels: int64 [rows, tokens], labels not shifted. The gradient goes through the last min(depth,
    backprop_depth) recurrences; the state before them is detached, the injected input is not. row_seeds: [rows].
    """
    return next_token_loss(model, ids, labels, TruncatedBPTT(backprop_depth), depth, row_seeds)


def make_config(recipe: PretrainRecipe, tokenizer: PreTrainedTokenizerBase) -> LoopedConfig:
    """The recipe's model section with the tokenizer's special ids; UserError when the vocabulary is too small."""
    values = recipe.model.model_dump()
    values["depth"] = values["depth"] or mean_depth(make_prior(recipe.prior))
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
