"""A data set with the reward of its completions: what a run learns from, and what it is evaluated on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from loop_rl.data import Splits, default_stop, load_dataset
from loop_rl.errors import UserError
from loop_rl.evaluation.reward import Reward, RewardSpec, reward_spec
from loop_rl.recipe import DataSection, Recipe, RewardSection


@dataclass(frozen=True)
class Task:
    """The data set's name in the recipe, its questions, the reward of their completions, and what ends those."""

    data: str
    splits: Splits
    reward: RewardSpec
    stop: tuple[str, ...] = ()


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
    if len(task.splits.train) < recipe.rollout.prompts_per_step:
        raise UserError(
            f"rollout.prompts_per_step: a step of {recipe.rollout.prompts_per_step} prompts would ask some of the "
            f"{len(task.splits.train)} training questions of {recipe.data.name} twice; lower it, or use more questions"
        )
    return task


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
