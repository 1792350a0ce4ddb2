"""Runs pooled over their training seeds, where they can be: one estimator, one setting, the same held-out questions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from loop_rl.report.answers import read_answers
from loop_rl.report.runs import RunLog

# Keys in which two runs of one setting may differ: which sample of the setting they are, and where they leave it.
_OF_THE_SAMPLE = {
    "run.name",
    "run.folder",
    "run.seed",
    "run.save_steps",
    "run.keep_checkpoints",
    "run.wandb",
    "data.seed",
    "data.folder",
}
# What an evaluation says of itself, by the recipe's names. A resumed run may have changed them.
_OF_THE_EVALUATION = {
    "samples": "eval.samples",
    "temperature": "eval.temperature",
    "questions": "questions",
    "depth": "depth",
    "cache": "rollout.cache",
    "depth_tolerance": "rollout.depth_tolerance",
}
# What of a recipe decides how a model answers.
_OF_THE_ANSWERS = ("model.", "data.", "reward.name", "reward.functions", "rollout.")
_NOT_OF_THE_ANSWERS = {
    "data.train_size",
    "rollout.num_generations",
    "rollout.prompts_per_step",
    "rollout.temperature",
    "rollout.top_p",
    "rollout.top_k",
    "rollout.workers",
    "rollout.cluster",
}


@dataclass(frozen=True)
class RunGroup:
    """The runs of one estimator on one setting, which differ in their training seeds only."""

    label: str
    runs: tuple[RunLog, ...]

    @property
    def estimator(self) -> str:
        return self.runs[0].estimator

    @property
    def data(self) -> str:
        return self.runs[0].data

    @property
    def settings(self) -> dict[str, str]:
        return settings_of(self.runs[0])

    @property
    def last_eval(self) -> int | None:
        """The last step at which any of the runs was evaluated: those that are not there yet are not pooled."""
        return max((run.last_eval for run in self.runs if run.last_eval is not None), default=None)


def settings_of(run: RunLog) -> dict[str, str]:
    """All that decides the run but its seeds and its estimator; as text, so that lists compare and hash."""
    left_out = _OF_THE_SAMPLE | {"learner.estimator"}
    return {key: str(value) for key, value in run.recipe.items() if key not in left_out}


def differences(one: dict[str, str], other: dict[str, str]) -> list[str]:
    return sorted(key for key in one.keys() | other.keys() if one.get(key) != other.get(key))


def group_runs(runs: Sequence[RunLog]) -> list[RunGroup]:
    """Runs of RL pooled over seeds; labels name in what an estimator's groups differ.

    Runs that answered other questions, or answered them otherwise, are a group of their own.
    """

    def family(run: RunLog) -> tuple[str, str]:
        return run.data, run.estimator

    groups = [
        RunGroup(f"{pool[0].estimator}{told}", pool) for told, pool in _pools(runs, family, settings_of, last_step)
    ]
    return sorted(groups, key=lambda group: (group.data, _rank(group.estimator), group.estimator, group.label))


def starts(runs: Sequence[RunLog]) -> list[tuple[str, tuple[RunLog, ...]]]:
    """Runs of RL that started from one model and measured it alike at step 0; with what tells them from others."""

    def answering(run: RunLog) -> dict[str, str]:
        settings = settings_of(run).items()
        return {k: v for k, v in settings if k.startswith(_OF_THE_ANSWERS) and k not in _NOT_OF_THE_ANSWERS}

    pools = _pools(runs, lambda run: (run.data,), answering, lambda run: 0)
    return sorted(pools, key=lambda pool: pool[1][0].data)


def last_step(run: RunLog) -> int:
    """The step of a run's last evaluation; 0 without one."""
    return run.last_eval or 0


def _pools(
    runs: Sequence[RunLog],
    family: Callable[[RunLog], tuple[str, ...]],
    settings: Callable[[RunLog], dict[str, str]],
    step: Callable[[RunLog], int],
) -> list[tuple[str, tuple[RunLog, ...]]]:
    """Runs with the same family, settings, and way of being evaluated at `step`; with what tells a family's apart.

    A run without an evaluation goes to the largest pool that its settings allow.
    """
    answers = {run.folder: read_answers(run, step(run)) for run in runs}
    pools: dict[Any, dict[Any, list[RunLog]]] = {}
    known: dict[Any, str] = {}  # what runs answered, for those of the same settings whose own answers are lost
    for run in runs:
        found = answers[run.folder]
        if found is not None:
            known.setdefault(_assumed(run, step), found.questions)
    for run in sorted(runs, key=lambda run: not _said(run, step)):  # those without an evaluation last
        alike = pools.setdefault((family(run), *sorted(settings(run).items())), {})
        said, found = _said(run, step), answers[run.folder]
        if not said and alike:
            max(alike.values(), key=len).append(run)
            continue
        questions = known.get(_assumed(run, step)) if found is None else found.questions
        asked = _assumed(run, step) if questions is None else questions
        alike.setdefault((asked, *said.items()), []).append(run)
    everything = [tuple(pool) for alike in pools.values() for pool in alike.values()]
    return list(zip(_told_apart(everything, family, settings, step), everything, strict=True))


def _told_apart(
    pools: Sequence[tuple[RunLog, ...]],
    family: Callable[[RunLog], tuple[str, ...]],
    settings: Callable[[RunLog], dict[str, str]],
    step: Callable[[RunLog], int],
) -> list[str]:
    """For each pool, in parentheses, what its family's others have otherwise; its folders where nothing else tells."""
    about = [_shared(pool, settings, step) for pool in pools]
    rivals = [[at for at, other in enumerate(pools) if family(other[0]) == family(pool[0])] for pool in pools]
    told = []
    for own, others in zip(about, rivals, strict=True):
        differing = {key for other in others for key in differences(own, about[other]) if key in own}
        if any("data.seed" not in about[other] for other in others):  # one of them pools several
            differing.discard("data.seed")
        told.append(", ".join(f"{key}={own[key]}" for key in sorted(differing)))
    for at in [at for at, others in enumerate(rivals) if any(told[at] == told[o] for o in others if o != at)]:
        names = "other questions: " + ", ".join(run.folder.name for run in pools[at])
        told[at] = ", ".join(part for part in (told[at], names) if part)
    return [f" ({words})" if words else "" for words in told]


def _shared(
    pool: Sequence[RunLog], settings: Callable[[RunLog], dict[str, str]], step: Callable[[RunLog], int]
) -> dict[str, str]:
    """By name, what all runs of a pool that say it say alike."""
    found: dict[str, set[str]] = {}
    for run in pool:
        for key, value in {**settings(run), "data.seed": str(run.recipe.get("data.seed")), **_said(run, step)}.items():
            found.setdefault(key, set()).add(value)
    return {key: min(values) for key, values in found.items() if len(values) == 1}


def _said(run: RunLog, step: Callable[[RunLog], int]) -> dict[str, str]:
    """What an evaluation says of itself."""
    row = run.evals.get(step(run), {})
    return {name: str(row[key]) for key, name in _OF_THE_EVALUATION.items() if key in row}


def _assumed(run: RunLog, step: Callable[[RunLog], int]) -> tuple[str, ...]:
    """What decides the questions of an evaluation, as far as the run folder says."""
    size, seed = run.recipe.get("data.eval_size"), run.recipe.get("data.seed")
    return run.data, str(size), str(seed), _said(run, step).get("questions", "")


def _rank(estimator: str) -> int:
    """The place of its kind in tables; an unknown one, of a run folder that was edited, is last."""
    # late: it brings torch, which a refusal can do without
    from loop_rl.fixed_point import KINDS, parse_estimator, rank

    try:
        return rank(parse_estimator(estimator))
    except ValueError:
        return len(KINDS)
