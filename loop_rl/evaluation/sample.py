"""Groups sampled and handed to a scorer one by one as they end, so that scoring goes on beside sampling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from loop_rl.data import Example
from loop_rl.data.prompts import all_prompt_ids
from loop_rl.reward.reward import RewardSpec
from loop_rl.reward.scorer import Scorer
from loop_rl.rollout.text import CompletionText

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from loop_rl.rollout.record import Rollout
    from loop_rl.rollout.sampling import Sampling

# (prompts as token ids, sampling, a seed for each, told each group's place and itself as it ends) -> the groups.
Generate = Callable[["list[list[int]]", "Sampling", "list[int]", "Callable[[int, Rollout], None]"], "list[Rollout]"]


@dataclass(frozen=True)
class Sampled:
    """A group for each example, in order: its rollout, its completions as text, and its ticket at the scorer."""

    rollouts: list[Rollout]
    texts: list[list[str]]
    tickets: list[Any]


def sample_and_submit(
    generate: Generate,
    tokenizer: PreTrainedTokenizerBase,
    scorer: Scorer,
    reward: RewardSpec,
    examples: Sequence[Example],
    sampling: Sampling,
    seeds: list[int],
) -> Sampled:
    """Samples a group of `sampling.num_generations` completions for every example, and submits each as it ends.

    Raises:
        ValueError: `generate` returned other than one group of the wanted size for each prompt.
    """
    texts: list[list[str]] = [[] for _ in examples]
    tickets: list[Any] = [None] * len(examples)

    def on_group(index: int, rollout: Rollout) -> None:
        ids = [[int(token) for token in completion.token_ids] for completion in rollout.completions]
        texts[index] = [reader.text(one) for one in ids]
        tickets[index] = scorer.submit(reward, [examples[index]] * len(ids), texts[index], ids)

    reader = CompletionText(tokenizer, sampling)
    prompts = all_prompt_ids(tokenizer, [example.prompt for example in examples])
    rollouts = generate(prompts, sampling, seeds, on_group)
    if list(map(len, texts)) != [sampling.num_generations] * len(examples) or len(rollouts) != len(examples):
        raise ValueError(f"wanted {len(examples)} groups of {sampling.num_generations} completions")
    return Sampled(rollouts, texts, tickets)
