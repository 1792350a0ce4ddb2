"""From rollouts and advantages to padded micro-batches."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from loop_rl.rollout.record import Completion, Rollout
from loop_rl.rollout.sampler import to_torch


@dataclass(frozen=True)
class Sample:
    """One completion with what the learner needs to score it.

    old_logps: float [C], the learner's own log-probabilities before the batch's first update, where they are needed.
    reference_logps: float [C], those of the reference model, with a KL penalty.
    """

    rollout: Rollout
    completion: Completion
    advantage: float
    old_logps: Tensor | None = None
    reference_logps: Tensor | None = None

    @property
    def length(self) -> int:
        """Tokens fed: prompt and completion without its last token."""
        return len(self.rollout.prompt_ids) + len(self.completion.token_ids) - 1


@dataclass(frozen=True)
class MicroBatch:
    """Rows padded on the right; T tokens fed, C the longest completion.

    input_ids, attention_mask: int64 [B, T]. positions: int64 [B, C], the column whose state predicts each completion
    token. targets: int64 [B, C]. mask: bool [B, C], from lengths. behaviour_logps: float32 [B, C]. advantages:
    float64 [B]. states: [B, T, width], the saved endpoints, or None. seeds: int64 [B, T], of every token's initial
    state. z0: [B, T, width], the initial states, where they were drawn before scoring. old_logps, reference_logps:
    [B, C] or None.
    """

    input_ids: Tensor
    attention_mask: Tensor
    positions: Tensor
    targets: Tensor
    mask: Tensor
    behaviour_logps: Tensor
    advantages: Tensor
    states: Tensor | None
    seeds: Tensor
    depth: int
    old_logps: Tensor | None = None
    reference_logps: Tensor | None = None
    depths: Tensor | None = None
    z0: Tensor | None = None

    def to(self, device: torch.device) -> "MicroBatch":
        moved = {k: v.to(device) if isinstance(v, Tensor) else v for k, v in vars(self).items()}
        return MicroBatch(**moved)


def samples_of(rollouts: list[Rollout], advantages: Tensor) -> list[Sample]:
    """One sample a completion, in order; `advantages` float [groups, G]."""
    return [
        Sample(rollout, completion, float(advantages[i, j]))
        for i, rollout in enumerate(rollouts)
        for j, completion in enumerate(rollout.completions)
    ]


def shares(samples: list[Sample], ranks: int) -> list[list[Sample]]:
    """Each rank's part of the samples, about equal in tokens; its rollouts hold the completions of its own alone.

    The longest go first, each to the rank that has the fewest tokens, so the parts are the same however often they are
    made.
    """
    parts: list[list[Sample]] = [[] for _ in range(ranks)]
    tokens = [0] * ranks
    for sample in sorted(samples, key=lambda sample: -sample.length):
        rank = tokens.index(min(tokens))
        parts[rank].append(sample)
        tokens[rank] += sample.length
    return [_alone(part) for part in parts]


def _alone(samples: list[Sample]) -> list[Sample]:
    """The samples with groups that hold no other completions."""
    own: dict[int, list[Completion]] = {}
    for sample in samples:
        own.setdefault(id(sample.rollout), []).append(sample.completion)
    groups = {id(s.rollout): s.rollout for s in samples}
    parts = {key: replace(groups[key], completions=completions) for key, completions in own.items()}
    return [replace(sample, rollout=parts[id(sample.rollout)]) for sample in samples]


def collate(samples: list[Sample], with_states: bool) -> MicroBatch:
    """Pad samples of one depth into a micro-batch."""
    ids, seeds, states, positions, targets, logps, used = [], [], [], [], [], [], []
    for sample in samples:
        prompt = torch.from_numpy(sample.rollout.prompt_ids.copy())
        tokens = torch.from_numpy(sample.completion.token_ids.copy())
        ids.append(torch.cat((prompt, tokens[:-1])))
        own = torch.full((len(tokens) - 1,), sample.completion.seed)
        seeds.append(torch.cat((torch.full((len(prompt),), sample.rollout.seed), own)))
        positions.append(torch.arange(len(tokens)) + len(prompt) - 1)
        targets.append(tokens)
        logps.append(torch.from_numpy(sample.completion.logps.copy()))
        if with_states:
            states.append(torch.cat((to_torch(sample.rollout.prompt_states), to_torch(sample.completion.states))))
        if sample.completion.depths is not None:
            both = (sample.rollout.prompt_depths, sample.completion.depths)
            used.append(torch.cat([torch.from_numpy(part.astype(np.int64)) for part in both]))
    depths = {sample.completion.depth for sample in samples}
    if len(depths) != 1:
        raise ValueError(f"a micro-batch holds completions of one depth, got {sorted(depths)}")

    def pad(rows: list[Tensor]) -> Tensor:
        return pad_sequence(rows, batch_first=True)

    def padded(name: str) -> Tensor | None:
        return None if getattr(samples[0], name) is None else pad([getattr(sample, name) for sample in samples])

    return MicroBatch(
        input_ids=pad(ids),
        attention_mask=pad([torch.ones_like(row) for row in ids]),
        positions=pad(positions),
        targets=pad(targets),
        mask=pad([torch.ones_like(row, dtype=torch.bool) for row in targets]),
        behaviour_logps=pad(logps),
        advantages=torch.tensor([sample.advantage for sample in samples], dtype=torch.float64),
        states=pad(states) if with_states else None,
        seeds=pad(seeds),
        depth=depths.pop(),
        old_logps=padded("old_logps"),
        reference_logps=padded("reference_logps"),
        depths=pad(used) if used else None,
    )


def micro_batches(samples: list[Sample], size: int) -> Iterator[list[Sample]]:
    """At most `size` samples of one depth and like length, longest first, so that little of a batch is padding."""
    ordered = sorted(samples, key=lambda sample: (-sample.completion.depth, -sample.length))
    for _, same_depth in groupby(ordered, key=lambda sample: sample.completion.depth):
        rows = list(same_depth)
        for start in range(0, len(rows), size):
            yield rows[start : start + size]
