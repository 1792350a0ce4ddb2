"""Dr. GRPO's pure functions against numbers worked by hand and a naive loop."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from loop_rl.learner.objective import group_advantages, k3_kl, token_loss

NAN = math.nan


def test_advantages_are_rewards_less_the_scored_mean() -> None:
    a = group_advantages(torch.tensor([[1.0, 0.0, NAN, 1.0]]))
    torch.testing.assert_close(a[0, [0, 1, 3]], torch.tensor([1 / 3, -2 / 3, 1 / 3]).double())
    assert a[0, 2].isnan()


@pytest.mark.parametrize("group", [[0.3] * 7, [1.0] * 4, [0.0] * 4, [0.1, 0.1, 0.1], [0.7, NAN, 0.7]])
def test_equal_rewards_give_exact_zeros(group: list[float]) -> None:
    a = group_advantages(torch.tensor([group], dtype=torch.float32))
    assert all(x == 0.0 or math.isnan(x) for x in a[0].tolist())


def test_a_lone_winner() -> None:
    a = group_advantages(torch.tensor([[0.3] * 7 + [0.9]], dtype=torch.float64))
    torch.testing.assert_close(a[0], torch.tensor([-0.075] * 7 + [0.525]).double())


def test_loss_is_divided_by_completions_times_limit() -> None:
    rewards, lengths = [1.0, 0.0, 1.0, 0.0], [2, 4, 1, 3]
    advantages = group_advantages(torch.tensor([rewards]))[0]
    for width in (4, 6, 8):
        mask = torch.arange(width) < torch.tensor(lengths)[:, None]
        logps = torch.full((4, width), -1.0, dtype=torch.float64)
        loss, _ = token_loss(logps, logps, advantages, mask, 0.2, 0.2)
        assert loss.sum().item() / (4 * 8) == pytest.approx(0.0625, abs=1e-12)


def test_masked_places_may_hold_anything() -> None:
    logps = torch.tensor([[-0.1, -0.2, NAN], [-0.3, -math.inf, NAN]], requires_grad=True)
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]]).bool()
    clean = torch.tensor([[-0.1, -0.2, 0.0], [-0.3, 0.0, 0.0]])
    advantages = torch.tensor([0.5, -0.5])
    loss, metrics = token_loss(logps, logps.detach(), advantages, mask, 0.2, 0.2, logps.detach(), 0.1)
    expected, _ = token_loss(clean, clean, advantages, mask, 0.2, 0.2, clean, 0.1)
    torch.testing.assert_close(loss.sum(), expected.sum())
    loss.sum().backward()
    assert logps.grad.isfinite().all()


def test_the_kl_term_has_a_gradient_without_advantages() -> None:
    logps = torch.tensor([[-1.0, -2.0]], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([[-1.5, -1.0]]).double()
    loss, metrics = token_loss(
        logps, logps.detach(), torch.zeros(1), torch.ones(1, 2).bool(), 0.2, 0.2, reference, beta=0.1
    )
    loss.sum().backward()
    assert logps.grad.abs().min() > 0
    d = (reference - logps).detach()
    torch.testing.assert_close(metrics["kl"], d.exp() - d - 1)


@given(st.lists(st.tuples(*[st.floats(-5, 0)] * 2, st.floats(-2, 2)), min_size=1, max_size=20), st.floats(0.05, 0.5))
@settings(max_examples=60, deadline=None)
def test_surrogate_equals_a_naive_loop(rows: list[tuple[float, float, float]], high: float) -> None:
    logps, behaviour, advantages = (torch.tensor(column, dtype=torch.float64) for column in zip(*rows, strict=True))
    loss, metrics = token_loss(
        logps[:, None], behaviour[:, None], advantages, torch.ones(len(rows), 1).bool(), 0.2, high
    )
    for i, (logp, old, a) in enumerate(rows):
        ratio = math.exp(logp - old)
        assert loss[i].item() == pytest.approx(-min(ratio * a, min(max(ratio, 0.8), 1 + high) * a), abs=1e-12)


def test_k3_is_never_negative_and_zero_at_equality() -> None:
    x = torch.linspace(-4, 0, 50, dtype=torch.float64)
    assert (k3_kl(x, x.flip(0)) >= 0).all()
    assert (k3_kl(x, x) == 0).all()


def test_truncated_importance_sampling_caps_the_weight() -> None:
    logps = torch.tensor([[-1.0, -1.0]], dtype=torch.float64, requires_grad=True)
    behaviour = torch.tensor([[-4.0, -1.1]]).double()
    loss, _ = token_loss(
        logps, behaviour, torch.tensor([1.0]), torch.ones(1, 2).bool(), 0.2, 0.2, importance_sampling_cap=2.0
    )
    torch.testing.assert_close(loss, -torch.tensor([[2.0, math.exp(0.1)]]).double())
    loss.sum().backward()  # the ratio is to the learner's own log-probabilities, so nothing is clipped
    torch.testing.assert_close(logps.grad, loss.detach())
