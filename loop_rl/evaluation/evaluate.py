"""pass@1 and pass@k of a model on questions with a reward, by whatever samples: a pool of workers or this process."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from loop_rl.data import Example
from loop_rl.evaluation.pass_at_k import mean_and_error, pass_at_k
from loop_rl.evaluation.reward_function import RewardFunction, score

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from loop_rl.rollout.record import Rollout
    from loop_rl.rollout.sampler import Sampling

Generate = Callable[["list[list[int]]", "Sampling", "list[int]"], "list[Rollout]"]

CORRECT = 1.0  # the full reward: partial credit is no pass
K = 8


@dataclasses.dataclass(frozen=True)
class EvalResult:
    """What the samples say. Means are over questions with a scored sample; None where there are too few samples.

    pass_8 needs 8 scored samples of a question and is the mean over the questions that have them. `stderr` is pass_1's
    standard error over questions. `truncated` is the share of samples cut at the length cap, `not_scored` the number
    of samples whose reward is None. `rows`: a dict a sample, with prompt, completion, answer and reward.
    """

    pass_1: float | None
    pass_8: float | None
    stderr: float | None
    mean_reward: float | None
    questions: int
    samples: int
    temperature: float
    truncated: float
    not_scored: int
    rows: list[dict[str, Any]] = dataclasses.field(repr=False)


def question_seeds(seed: int, indices: Sequence[int]) -> list[int]:
    """A seed for each question's group, of the run's seed and the question alone: not of the subset or the batches."""
    return [int(np.random.SeedSequence([seed, index]).generate_state(1)[0] >> 1) for index in indices]


def evaluate(
    generate: Generate,
    tokenizer: PreTrainedTokenizerBase,
    examples: Sequence[Example],
    reward_function: RewardFunction,
    sampling: Sampling,
    seed: int,
    batch: int = 32,
    on_batch: Callable[[int], None] | None = None,
) -> EvalResult:
    """Samples `sampling.num_generations` completions for every example and scores them.

    Args:
        generate: (prompts as token ids, sampling, a seed for each) -> a Rollout for each prompt, in order.
        batch: prompts of one call of `generate`.
        on_batch: told the number of questions that a batch finished.

    Raises:
        UserError: a reward function that fails or returns no proper rewards.
        ValueError: no examples, or `generate` returned other than one group of the wanted size for each prompt.
    """
    if not examples:
        raise ValueError("no examples to evaluate on")
    sampling = dataclasses.replace(sampling, save_states=False)  # nothing is learned from these
    seeds = question_seeds(seed, [example.index for example in examples])
    rows: list[dict[str, Any]] = []
    for start in range(0, len(examples), batch):
        part = examples[start : start + batch]
        prompts = [tokenizer(example.prompt).input_ids for example in part]
        groups = generate(prompts, sampling, seeds[start : start + batch])
        if [len(group.completions) for group in groups] != [sampling.num_generations] * len(part):
            raise ValueError(f"wanted {len(part)} groups of {sampling.num_generations} completions")
        rows += _score(part, groups, tokenizer, reward_function)
        if on_batch is not None:
            on_batch(len(part))
    return _summarize(rows, len(examples), sampling)


def _score(
    examples: Sequence[Example], groups: list[Rollout], tokenizer: PreTrainedTokenizerBase, function: RewardFunction
) -> list[dict[str, Any]]:
    pairs = [
        (example, completion)
        for example, group in zip(examples, groups, strict=True)
        for completion in group.completions
    ]
    ids = [[int(token) for token in completion.token_ids] for _, completion in pairs]
    texts = tokenizer.batch_decode(ids, skip_special_tokens=True)
    rewards = score(function, [example for example, _ in pairs], texts, ids)
    return [
        {
            "index": example.index,
            "prompt": example.prompt,
            "completion": text,
            "answer": example.answer,
            "reward": reward,
            "finish_reason": completion.finish_reason,
        }
        for (example, completion), text, reward in zip(pairs, texts, rewards, strict=True)
    ]


def _summarize(rows: list[dict[str, Any]], questions: int, sampling: Sampling) -> EvalResult:
    ones, eights = [], []
    size = sampling.num_generations
    for start in range(0, len(rows), size):
        scored = [row["reward"] for row in rows[start : start + size] if row["reward"] is not None]
        correct = sum(reward >= CORRECT for reward in scored)
        if scored:
            ones.append(pass_at_k(len(scored), correct, 1))
        if len(scored) >= K:
            eights.append(pass_at_k(len(scored), correct, K))
    pass_1, stderr = mean_and_error(ones)
    rewards = [row["reward"] for row in rows if row["reward"] is not None]
    return EvalResult(
        pass_1=pass_1,
        pass_8=mean_and_error(eights)[0],
        stderr=stderr,
        mean_reward=mean_and_error(rewards)[0],
        questions=questions,
        samples=size,
        temperature=float(sampling.temperature),
        truncated=sum(row["finish_reason"] == "length" for row in rows) / len(rows),
        not_scored=len(rows) - len(rewards),
        rows=rows,
    )
