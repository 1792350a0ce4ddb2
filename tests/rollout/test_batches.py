"""The token budget: how it splits the groups, and that it bounds what is decoded at once and changes nothing else."""

import dataclasses
import weakref

import numpy as np
import pytest
import torch

from loop_rl.models.attention.decoding import DecodeContext
from loop_rl.models.attention.padded import PaddedContext
from loop_rl.models.attention.terminal import cache_floats
from loop_rl.rollout import batches as module
from loop_rl.rollout.batches import batches, token_budget
from loop_rl.rollout.sampler import sample_groups, stream_groups
from loop_rl.rollout.sampling import Sampling, draw
from tests.tiny import PROMPTS, tiny_model

SEEDS = [11, 12, 13]


def test_batches_are_as_many_whole_groups_as_the_budget_holds() -> None:
    def split(lengths, budget):
        return [(list(some), [list(part) for part in parts]) for some, parts in batches(lengths, 4, 6, budget)]

    whole = [[0, 1, 2, 3]]
    assert split([2, 2, 2], 10**9) == [([0, 1, 2], whole)]
    assert split([2, 2, 2], 64) == [([0, 1], whole), ([2], whole)]  # 2 groups of 4 rows of 2 + 6 tokens
    assert split([2, 2, 2], 63) == [([0], whole), ([1], whole), ([2], whole)]
    assert split([2, 3, 2], 64) == [([0], whole), ([1], whole), ([2], whole)]  # padded to the longer prompt
    assert split([2], 31) == [([0], [[0, 1, 2], [3]])]
    assert split([2, 4], 16) == [([0], [[0, 1], [2, 3]]), ([1], [[0], [1], [2], [3]])]
    assert split([2], 1) == [([0], [[0], [1], [2], [3]])]  # at least one row
    assert split([], 1) == []


@pytest.mark.parametrize("cache", ["full", "terminal"])
@pytest.mark.parametrize(("budget", "count"), [(1, 15), (40, 5), (130, 2), (195, 1)])
def test_rollouts_do_not_depend_on_the_budget(monkeypatch, budget: int, count: int, cache: str) -> None:
    model = tiny_model(torch.float64)
    settings = Sampling(5, 7, eos_token_ids=(2, 3, 4), cache=cache)
    free = sample_groups(model, PROMPTS, settings, SEEDS)
    settings = dataclasses.replace(settings, max_batch_tokens=budget)
    shapes = []
    opened = DecodeContext.__init__

    def recorded(self, *arguments) -> None:
        opened(self, *arguments)
        shapes.append(self.real.shape)

    monkeypatch.setattr(DecodeContext, "__init__", recorded)
    places, rollouts = zip(*stream_groups(model, PROMPTS, settings, SEEDS, version=3), strict=True)
    assert sorted(places) == [0, 1, 2] and {rollout.version for rollout in rollouts} == {3}
    assert all(rows * tokens <= budget or rows == 1 for rows, tokens in shapes)
    assert sum(rows for rows, _ in shapes) == 15 and len(shapes) == count
    for place, rollout in zip(places, rollouts, strict=True):
        np.testing.assert_allclose(rollout.prompt_states, free[place].prompt_states, rtol=0, atol=1e-12)
        assert [c.seed for c in rollout.completions] == [c.seed for c in free[place].completions]
        for one, other in zip(rollout.completions, free[place].completions, strict=True):
            np.testing.assert_array_equal(one.token_ids, other.token_ids)
            np.testing.assert_allclose(one.states, other.states, rtol=0, atol=1e-12)
            assert one.finish_reason == other.finish_reason


def test_the_default_budget_is_what_a_quarter_of_the_memory_holds(monkeypatch) -> None:
    model = tiny_model()
    monkeypatch.setattr(module, "total_memory", lambda device: 4 * 10**6)
    for cache in ("full", "terminal"):
        held = cache_floats(model.config, 9, cache == "terminal") * 4
        sampling = Sampling(2, 3, depth=9, cache=cache)
        assert token_budget(model.config, sampling, torch.float32, model.device) == 10**6 // held
    assert token_budget(model.config, Sampling(2, 3, max_batch_tokens=7), torch.float32, model.device) == 7


def test_dropping_rows_never_holds_two_copies_of_the_banks(monkeypatch) -> None:
    """When a bank is compacted, those before it are gone already."""
    config = tiny_model(depth=8).config
    mask = torch.ones(2, 3, dtype=torch.long)
    prefill = PaddedContext(config, mask, depth=8, record=True)
    for bank in range(config.bank_count(8)):
        prefill.extend(bank, torch.randn(2, 2, 3, 8), torch.randn(2, 2, 3, 8))
    context = DecodeContext(prefill, mask, 8, 20)
    assert not prefill.banks
    before = {bank: [x[:, :, :3].clone() for x in pair] for bank, pair in context.banks.items()}
    old = [weakref.ref(x) for pair in context.banks.values() for x in pair]
    kept, alive = context._kept, []

    def counted(x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        alive.append(sum(ref() is not None for ref in old))
        return kept(x, rows)

    monkeypatch.setattr(context, "_kept", counted)
    rows = torch.tensor([1, 4, 15])
    context.keep(rows)
    assert alive == [len(old) - call // 2 * 2 for call in range(len(old))]
    for bank, pair in context.banks.items():
        for now, x in zip(pair, before[bank], strict=True):
            assert now.shape == (3, 2, 23, 8)
            assert torch.equal(now[:, :, :3], x[rows])


def test_drawing_in_parts_is_drawing_at_once(monkeypatch) -> None:
    logits = torch.randn(50, 40, generator=torch.Generator().manual_seed(0))
    uniform = torch.rand(50, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    whole = draw(logits, Sampling(1, 1, top_p=0.9), uniform)
    for size in (1, 40, 130):
        monkeypatch.setattr("loop_rl.rollout.sampling._DRAWN_AT_ONCE", size)
        for one, other in zip(draw(logits, Sampling(1, 1, top_p=0.9), uniform), whole, strict=True):
            assert torch.equal(one, other)
