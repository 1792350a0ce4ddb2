"""A data set with the reward of its completions: what a run learns from, and what it is evaluated on."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from loop_rl.data import Example, Splits, default_stop, load_dataset
from loop_rl.data.prompts import all_prompt_ids
from loop_rl.errors import UserError
from loop_rl.recipe.reward import RewardSection
from loop_rl.recipe.rl import DataSection, Recipe
from loop_rl.reward.reward import Reward, RewardSpec, reward_spec

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Task:
    """The data set's name in the recipe, its questions, the reward of their completions, and what ends those.

    left_out: held-out questions whose prompts are longer than data.max_prompt_length; None without that limit.
    """

    data: str
    splits: Splits
    reward: RewardSpec
    stop: tuple[str, ...] = ()
    left_out: int | None = None


def load_task(data: DataSection, reward: RewardSection, stop: Sequence[str] | None = None) -> Task:
    """The questions and the reward, each checked and the one for the other; `stop` None: as the prompts need it.

    Raises:
        UserError: data or a reward that can't be loaded, a reference or columns that the reward can't use.
    """
    spec = reward_spec(reward, data)
    loaded = Reward(spec)
    splits = load_dataset(data, reward=spec.functions[0][0])
    loaded.check([*splits.train[:1], *splits.test[:1]])
    return Task(data.name, splits, spec, default_stop(data) if stop is None else tuple(stop))


def training_task(recipe: Recipe) -> Task:
    """The recipe's own data and reward; UserError, too, for data without questions to train on."""
    task = load_task(recipe.data, recipe.reward, recipe.rollout.stop)
    if not task.splits.train:
        raise UserError(
            f"data.name: {recipe.data.name} has no questions to train on, only held-out ones; train on another set "
            f"and add this one as eval.data, or measure a model on it: loop-rl eval MODEL --data {recipe.data.name}"
        )
    check_enough(task, recipe)
    return task


def check_enough(task: Task, recipe: Recipe) -> None:
    """UserError where a step asks for more questions than there are to train on."""
    if len(task.splits.train) < recipe.rollout.prompts_per_step:
        raise UserError(
            f"rollout.prompts_per_step: a step of {recipe.rollout.prompts_per_step} prompts would ask some of the "
            f"{len(task.splits.train)} training questions of {recipe.data.name} twice; lower it, or use more questions"
        )


def further_tasks(recipe: Recipe) -> list[Task]:
    """The sets of eval.data beside the run's own, each with its own prompts and reward, in the same folder and seed."""
    folder, seed, size = recipe.data.folder, recipe.data.seed, recipe.eval.size
    return [
        load_task(
            DataSection(name=name, folder=folder, seed=seed, eval_size=size), RewardSection(), recipe.rollout.stop
        )
        for name in dict.fromkeys(recipe.eval.data)
        if name != recipe.data.name
    ]


def sizes(tasks: Sequence[Task]) -> str:
    """How many questions a run's tasks (its own first) have, as a YAML comment: to train on, and held out of each."""
    held_out = ", ".join(f"{len(task.splits.test)} of {task.data}" for task in tasks)
    return f"# questions: {len(tasks[0].splits.train)} to train on, held out {held_out}\n"


def short_enough(
    task: Task, tokenizer: PreTrainedTokenizerBase, limit: int | None, parts: Sequence[str] = ("train", "test")
) -> Task:
    """The task without the questions whose prompts have more than `limit` tokens; says once how many those are.

    parts: of the splits, those that are used.

    Raises:
        UserError: none is left of a part that had some.
    """
    if limit is None:
        return task
    kept, said = {}, []
    for part in parts:
        examples: list[Example] = getattr(task.splits, part)
        lengths = [len(ids) for ids in all_prompt_ids(tokenizer, [example.prompt for example in examples])]
        kept[part] = [example for example, length in zip(examples, lengths, strict=True) if length <= limit]
        if examples and not kept[part]:
            raise UserError(
                f"data.max_prompt_length: all {len(examples)} prompts of {task.data} ({part}) have more than {limit} "
                f"tokens, the shortest {min(lengths)}; raise it"
            )
        if len(kept[part]) < len(examples):
            said.append(f"{len(examples) - len(kept[part])} of {len(examples)} ({part})")
    if said:
        log.warning(
            "data.max_prompt_length: questions of %s with more than %d tokens are left out, %s",
            *(task.data, limit, ", ".join(said)),
        )
    splits = dataclasses.replace(task.splits, **kept)
    return dataclasses.replace(task, splits=splits, left_out=len(task.splits.test) - len(splits.test))


def about_left_out(task: Task) -> dict[str, int]:
    """For an evaluation's row: how many held-out questions were left out, where there is a limit."""
    return {} if task.left_out is None else {"left_out": task.left_out}
