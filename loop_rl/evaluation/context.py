"""Whether a recipe fits its model, told before anything is sampled: its depth, and its prompts in the context."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from loop_rl.data import Example
from loop_rl.data.prompts import all_prompt_ids
from loop_rl.errors import UserError
from loop_rl.evaluation.task import Task, check_enough, short_enough
from loop_rl.recipe.rl import Recipe

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from loop_rl.models import LoopedConfig

log = logging.getLogger(__name__)

# Times the model's own depth from which a forward pass is told to be long.
_LONG = 8


def forward_depth(recipe: Recipe, config: LoopedConfig) -> int:
    """Recurrences of a forward pass: the recipe's, or the model's own. Warns where they are many times its own.

    Raises:
        UserError: see `Recipe.depth_of`.
    """
    depth = recipe.depth_of(config.depth)
    if depth >= _LONG * config.depth:
        log.warning(
            "model.depth: a forward pass takes %d recurrences, %d times as many as the model's own depth of %d",
            *(depth, depth // config.depth, config.depth),
        )
    return depth


def check_context(
    questions: Iterable[tuple[str, Sequence[Example]]],
    tokenizer: PreTrainedTokenizerBase,
    config: LoopedConfig,
    max_completion_length: int,
) -> int:
    """The tokens of the longest prompt of these questions, each set with the name of its data.

    Raises:
        UserError: a prompt with a completion of `max_completion_length` tokens is longer than the model's context. Past
            it a model reads positions that it has never seen.
    """
    context, longest = config.max_position_embeddings, 0
    for data, examples in questions:
        lengths = [len(ids) for ids in all_prompt_ids(tokenizer, [example.prompt for example in examples])]
        most = max(lengths, default=0)
        longest = max(longest, most)
        over = sum(length + max_completion_length > context for length in lengths)
        if over:
            room = context - most
            leave_out = context - max_completion_length
            ways = [f"lower it to {room}"] if room > 0 else []
            ways += [f"leave out longer prompts (data.max_prompt_length={leave_out})"] if leave_out > 0 else []
            fix = ", or ".join(ways) or "use shorter prompts (data.template), or another model"
            raise UserError(
                f"rollout.max_completion_length: {over} of {len(lengths)} prompts of {data} with a completion of "
                f"{max_completion_length} tokens pass the model's context of {context} (max_position_embeddings); the "
                f"longest prompt has {most} tokens: {fix}"
            )
    return longest


def fitting_tasks(
    recipe: Recipe, tasks: Sequence[Task], tokenizer: PreTrainedTokenizerBase, config: LoopedConfig
) -> tuple[list[Task], int]:
    """A run's tasks (its own first) without prompts that are too long, and the tokens of the longest that is left.

    Raises:
        UserError: see `short_enough`, `check_enough` and `check_context`.
    """
    limit = recipe.data.max_prompt_length
    own = short_enough(tasks[0], tokenizer, limit)
    further = [short_enough(task, tokenizer, limit, ["test"]) for task in tasks[1:]]
    check_enough(own, recipe)
    asked = [(own.data, own.splits.train), *((task.data, task.splits.test) for task in (own, *further))]
    return [own, *further], check_context(asked, tokenizer, config, recipe.rollout.max_completion_length)
