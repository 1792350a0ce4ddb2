"""The learned prior against autograd of the written objective, a naive controller, and what it should find."""

import json
import math
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from loop_rl.errors import UserError
from loop_rl.recipe.pretrain import PriorSection
from loop_rl.training.depth_prior import FrozenPrior, fixed, poisson_lognormal, saved, uniform
from loop_rl.training.learned_prior import (
    WARMUP_UPDATES,
    LearnedPrior,
    depth_reward,
    entropy,
    make_prior,
    prior_gradient,
    prior_metrics,
)

FORMS = ("ce", "log_ce", "exp_ce", "inverse_perplexity")


def objective(logits, depths, advantages, tokens, mean, entropy_weight, mean_weight):
    """As the paper writes it: token-weighted policy gradient, entropy, squared distance of the mean."""
    log_p = logits.log_softmax(0)
    p = log_p.exp()
    prediction = sum(n * a * log_p[r - 1] for r, a, n in zip(depths, advantages, tokens, strict=True)) / sum(tokens)
    spread = -(p * log_p).sum()
    expected = sum(r * p[r - 1] for r in range(1, len(p) + 1))
    return -prediction - entropy_weight * spread + mean_weight * (expected - mean) ** 2


@given(st.integers(0, 10_000), st.integers(2, 64), st.integers(1, 6))
def test_gradient_is_autograds(seed, cap, count):
    rng = random.Random(seed)
    logits = torch.tensor([rng.gauss(0, 2) for _ in range(cap)], dtype=torch.float64, requires_grad=True)
    depths = [rng.randint(1, cap) for _ in range(count)]
    advantages = [rng.gauss(0, 1) for _ in range(count)]
    tokens = [rng.randint(1, 999) for _ in range(count)]
    weights = (rng.choice([0.0, 0.01, 0.1]), rng.choice([0.0, 1.0]))
    (expected,) = torch.autograd.grad(objective(logits, depths, advantages, tokens, 5.0, *weights), logits)
    got = prior_gradient(logits.detach().softmax(0), depths, advantages, tokens, 5.0, *weights)
    assert torch.allclose(got, expected, rtol=1e-10, atol=1e-10)


def test_entropy_and_its_derivative():
    p = poisson_lognormal(5.0)
    logits = p.log().requires_grad_()
    h = entropy(logits.softmax(0))
    assert float(h.detach()) == pytest.approx(-sum(x * math.log(x) for x in p.tolist()), abs=1e-12)
    h.backward()
    assert torch.allclose(logits.grad, -p * (p.log() + h.detach()), atol=1e-14)


@pytest.mark.parametrize(
    ("form", "expected"),
    [("ce", -2.0), ("log_ce", -math.log(2.0)), ("exp_ce", -math.exp(2.0)), ("inverse_perplexity", math.exp(-2.0))],
)
def test_reward_forms(form, expected):
    assert depth_reward(2.0, form) == expected
    assert depth_reward(1.9, form) > depth_reward(2.0, form)
    assert math.isfinite(depth_reward(0.0, form)) and math.isfinite(depth_reward(1e6, form))


@pytest.mark.parametrize("form", FORMS)
def test_updates_follow_a_naive_controller(form):
    """Replays the recorded losses through the written objective, torch's Adam and moments summed from scratch."""
    start = poisson_lognormal(3.0, 0.5, 12)
    prior = LearnedPrior(start, 3.0, entropy_weight=0.05, reward=form)
    logits = start.log().clone().requires_grad_()
    adam = torch.optim.Adam([logits], lr=1e-3, betas=(0.9, 0.999))
    rng = random.Random(1)
    history = []
    for update in range(WARMUP_UPDATES + 20):
        depths = [rng.randint(1, 12) for _ in range(3)]
        losses = [2.0 + 1.0 / r + rng.gauss(0, 0.1) for r in depths]
        tokens = [rng.randint(1, 99) for _ in range(3)]
        if update >= WARMUP_UPDATES:
            decay = [0.99 ** (len(history) - 1 - at) for at in range(len(history))]

            def moments(pick, decay=decay):
                first = second = 0.0
                for weight, (batch_losses, batch_tokens) in zip(decay, history, strict=True):
                    for loss, count in zip(batch_losses, batch_tokens, strict=True):
                        first += weight * count / sum(batch_tokens) * pick(loss)
                        second += weight * count / sum(batch_tokens) * pick(loss) ** 2
                return first / sum(decay), math.sqrt(second / sum(decay) - (first / sum(decay)) ** 2)

            _, loss_deviation = moments(lambda loss: loss)
            baseline, deviation = moments(lambda loss: depth_reward(loss, form))
            advantages = [loss_deviation / deviation * (depth_reward(loss, form) - baseline) for loss in losses]
            adam.zero_grad()
            objective(logits, depths, advantages, tokens, 3.0, 0.05, 1.0).backward()
            adam.step()
        prior.observe(depths, losses, tokens)
        history.append((losses, tokens))
        if update < WARMUP_UPDATES:
            assert torch.equal(prior.logits.detach(), start.log())
    assert torch.allclose(prior.logits.detach(), logits.detach(), atol=1e-9)
    assert not torch.allclose(prior.logits.detach(), start.log(), atol=1e-3)


def trained(entropy_weight, loss_of, updates=3000, learning_rate=1e-2):
    prior = LearnedPrior(poisson_lognormal(5.0), 5.0, entropy_weight, learning_rate=learning_rate)
    generator = torch.Generator().manual_seed(0)
    for _ in range(updates):
        depths = [prior.draw(generator) for _ in range(4)]
        prior.observe(depths, [loss_of(depth) for depth in depths], [100] * 4)
    return prior


def test_mean_stays_while_mass_moves_to_what_predicts_well():
    """One depth is far better than its neighbours: it gains mass, at the mean asked for; entropy keeps a spread."""
    sharp, broad = (trained(weight, lambda r: 1.0 if r == 5 else 1.5) for weight in (0.0, 0.5))
    before = float(poisson_lognormal(5.0)[4])
    assert float(sharp.probabilities[4]) > 2 * before
    assert prior_metrics(sharp)["prior/mean"] == pytest.approx(5.0, abs=0.3)
    assert prior_metrics(broad)["prior/mean"] == pytest.approx(5.0, abs=0.3)
    assert prior_metrics(broad)["prior/entropy"] > prior_metrics(sharp)["prior/entropy"] + 0.5


def test_resuming_changes_nothing():
    def losses(depths):
        return [1.0 + 0.1 * depth for depth in depths]

    whole, generator = LearnedPrior(uniform(10), 5.0), torch.Generator().manual_seed(3)
    parts = LearnedPrior(uniform(10), 5.0)
    for update in range(60):
        depths = [whole.draw(generator) for _ in range(2)]
        whole.observe(depths, losses(depths), [3, 4])
        parts.observe(depths, losses(depths), [3, 4])
        if update == 45:
            state = parts.state_dict()
            parts = LearnedPrior(uniform(10), 5.0)
            parts.load_state_dict(state)
    assert torch.equal(whole.probabilities, parts.probabilities)
    with pytest.raises(UserError, match="prior.cap"):
        LearnedPrior(uniform(12), 5.0).load_state_dict(state)


def test_what_is_not_finite_or_empty_teaches_nothing():
    prior = LearnedPrior(uniform(10), 5.0)
    prior.observe([3, 4], [1.0, math.nan], [5, 5])
    prior.observe([3], [0.0], [0])
    assert prior.updates == 0 and prior.losses.weight == 0


def test_arms_by_name(tmp_path):
    assert isinstance(make_prior(PriorSection(name="fixed", mean=6)), FrozenPrior)
    assert make_prior(PriorSection(name="uniform", cap=10)).probabilities.tolist() == [0.1] * 10
    learned = make_prior(PriorSection(name="uniform", cap=10, mean=5, learn=True, entropy_weight=0.1, reward="ce"))
    assert isinstance(learned, LearnedPrior) and (learned.entropy_weight, learned.reward) == (0.1, "ce")
    rows = [{"step": 1, "prior/probabilities": [1.0, 0.0]}, {"step": 2, "prior/probabilities": [0.25, 0.75]}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert make_prior(PriorSection(name="saved", run=str(tmp_path))).probabilities.tolist() == [0.25, 0.75]


def test_refusals_name_the_key(tmp_path):
    with pytest.raises(UserError, match="whole number"):
        fixed(5.5)
    with pytest.raises(UserError, match="nothing to learn"):
        make_prior(PriorSection(name="fixed", mean=6, learn=True))
    with pytest.raises(UserError, match="prior.run"):
        saved(None)
    with pytest.raises(UserError, match="prior/probabilities"):
        saved(str(tmp_path))
    with pytest.raises(UserError, match="prior.mean"):
        LearnedPrior(uniform(4), 5.0)
