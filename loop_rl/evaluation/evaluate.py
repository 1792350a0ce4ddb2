"""pass@1 and pass@k of a model on questions with a reward, by whatever samples: a pool of workers or this process."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from loop_rl.data import Example
from loop_rl.evaluation.metrics import BREAKDOWNS, EvalMetrics, breakdown, metrics_of
from loop_rl.evaluation.sample import Generate, Sampled, sample_and_submit
from loop_rl.reward.reward import Rewards, RewardSpec
from loop_rl.reward.scorer import Scorer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from loop_rl.rollout.sampler import Sampling

BATCH = 32  # prompts sampled at once


class Parts(Protocol):
    """Where finished batches are kept, so that an evaluation that was stopped can go on."""

    def read(self, number: int, rows: int) -> list[dict[str, Any]] | None:
        """A batch's rows, if it is kept and has that many."""

    def write(self, number: int, rows: list[dict[str, Any]]) -> None:
        """Keep a batch."""


@dataclasses.dataclass(frozen=True)
class EvalResult:
    """What the samples say: all of them, and by level and subject where the data has these columns.

    rows: a dict a sample, with index (the question's), sample, seed, prompt, completion, answer, reward, correct,
    reason, finish_reason, mean_depth (recurrences of a token); the breakdown's columns as text; each function's reward
    where there are several.
    """

    metrics: EvalMetrics
    by: dict[str, dict[str, EvalMetrics]]
    samples: int
    temperature: float
    rows: list[dict[str, Any]] = dataclasses.field(repr=False)


def question_seeds(seed: int, indices: Sequence[int]) -> list[int]:
    """A seed for each question's group, of the run's seed and the question alone: not of the subset or the batches."""
    return [int(np.random.SeedSequence([seed, index]).generate_state(1)[0] >> 1) for index in indices]


def evaluate(
    generate: Generate,
    tokenizer: PreTrainedTokenizerBase,
    examples: Sequence[Example],
    scorer: Scorer,
    reward: RewardSpec,
    sampling: Sampling,
    seed: int,
    batch: int = BATCH,
    on_batch: Callable[[int], None] | None = None,
    parts: Parts | None = None,
) -> EvalResult:
    """Samples `sampling.num_generations` completions for every example and scores them.

    Args:
        generate: (prompts as token ids, sampling, a seed for each, on_group) -> a Rollout for each prompt, in order.
        batch: prompts of one call of `generate`. A batch is scored to its end while the next one is sampled.
        on_batch: told the number of questions that a batch finished.
        parts: where finished batches are taken from and kept.

    Raises:
        UserError: a reward function that fails or returns no proper rewards.
        ValueError: no examples, or `generate` returned other than one group of the wanted size for each prompt.
    """
    if not examples:
        raise ValueError("no examples to evaluate on")
    sampling = dataclasses.replace(sampling, save_states=False)  # nothing is learned from these
    size = sampling.num_generations
    rows: dict[int, list[dict[str, Any]]] = {}

    def keep(number: int, some: Sequence[Example], sampled: Sampled) -> None:
        rows[number] = _rows(some, sampled, scorer.gather(sampled.tickets))
        if parts is not None:
            parts.write(number, rows[number])
        if on_batch is not None:
            on_batch(len(some))

    before = None
    for number, start in enumerate(range(0, len(examples), batch)):
        some = examples[start : start + batch]
        kept = parts.read(number, len(some) * size) if parts is not None else None
        if kept is not None:
            rows[number] = kept
            if on_batch is not None:
                on_batch(len(some))
            continue
        seeds = question_seeds(seed, [example.index for example in some])
        sampled = sample_and_submit(generate, tokenizer, scorer, reward, some, sampling, seeds)
        if before is not None:
            keep(*before)
        before = number, some, sampled
    if before is not None:
        keep(*before)
    everything = [row for number in sorted(rows) for row in rows[number]]
    return EvalResult(
        metrics_of(everything, size), breakdown(everything, size), size, float(sampling.temperature), everything
    )


def _rows(examples: Sequence[Example], sampled: Sampled, scores: Sequence[Rewards]) -> list[dict[str, Any]]:
    rows = []
    for example, rollout, texts, score in zip(examples, sampled.rollouts, sampled.texts, scores, strict=True):
        said = {column: example.columns.get(column) for column in BREAKDOWNS}
        about = {column: str(value) for column, value in said.items() if value is not None}
        several = score.parts if len(score.parts) > 1 else {}
        for place, completion in enumerate(rollout.completions):
            rows.append(
                {
                    "index": example.index,
                    "sample": place,
                    "seed": completion.seed,
                    "prompt": example.prompt,
                    "completion": texts[place],
                    "answer": example.answer,
                    "reward": score.rewards[place],
                    "correct": score.correct[place],
                    "reason": score.reasons[place],
                    "finish_reason": completion.finish_reason,
                    "mean_depth": completion.mean_depth,
                    **about,
                    **{f"reward/{name}": values[place] for name, values in several.items()},
                }
            )
    return rows
