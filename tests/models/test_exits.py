"""The exit distribution against a walk through the loop, token by token."""

import math

import pytest
import torch

from loop_rl.models.exits import exit_distribution, exit_recurrence
from tests.models.tiny_looped import tiny_model, tokens


def walk(logits: list[float]) -> list[float]:
    remaining, found = 1.0, []
    for logit in logits[:-1]:
        leave = 1 / (1 + math.exp(-logit))
        found.append(remaining * leave)
        remaining *= 1 - leave
    return [*found, remaining]


def test_each_recurrence_takes_its_share_and_the_last_the_rest():
    logits = torch.randn(5, 2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = exit_distribution(logits)
    assert found.shape == (2, 3, 5)
    for row in range(2):
        for token in range(3):
            expected = torch.tensor(walk(logits[:, row, token].tolist()), dtype=torch.float64)
            torch.testing.assert_close(found[row, token], expected, rtol=0, atol=1e-12)
    assert torch.equal(exit_distribution(logits[:1]), torch.ones(2, 3, 1, dtype=torch.float64))


def test_exit_at_the_first_recurrence_that_reaches_the_threshold():
    distribution = torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.6, 0.1, 0.1, 0.2], [0.0, 0.0, 0.0, 1.0]])
    assert exit_recurrence(distribution, 0.5).tolist() == [2, 0, 3]
    assert exit_recurrence(distribution, 0.05).tolist() == [0, 0, 3]


def test_threshold_one_is_the_whole_depth_though_the_gate_saturates():
    logits = torch.full((4, 1), 7.0, dtype=torch.bfloat16)
    saturated = exit_distribution(logits)
    assert saturated[0, 0] == 1, "sigmoid(7) rounds to 1 in bfloat16"
    assert exit_recurrence(saturated, 1.0).tolist() == [3]


def test_a_model_without_a_gate_says_so():
    with pytest.raises(ValueError, match="no exit gate"):
        tiny_model().model.exit_distribution(tokens(1, 3))


def test_the_model_s_distribution_is_that_of_its_states():
    model, ids = tiny_model(exit_gate=True), tokens(2, 4)
    states = [model.model(ids, depth=depth).endpoint for depth in (1, 2, 3)]
    logits = torch.stack([model.model.exit_gate(z)[..., 0] for z in states])
    torch.testing.assert_close(model.model.exit_distribution(ids), exit_distribution(logits), rtol=0, atol=1e-12)
