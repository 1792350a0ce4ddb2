"""Term ratios, gradient cosines and limits, against what they are by definition."""

import math

import numpy as np
import pytest
import torch

from loop_rl.fixed_point import parse_estimator
from loop_rl.learner.batch import collate, samples_of
from loop_rl.learner.health import breach
from loop_rl.learner.objective import group_advantages
from loop_rl.learner.scoring import score
from loop_rl.learner.update import Learner, Objective
from loop_rl.recipe.rl import HealthSection
from tests.learner.test_update import REWARDS, gradients
from tests.tiny import tiny_model, tiny_rollouts


def learner_of(model, estimator, micro=100):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    return Learner(model, parse_estimator(estimator), Objective(7), optimizer, 0.0, micro)


def test_term_ratios_are_those_of_the_products():
    """On z -> a z the product of J^T with any vector is a times it."""
    seen = []
    saved = torch.ones(3, 2)
    z = parse_estimator("reuse_neumann4").endpoint(
        lambda z: 0.3 * z, states=saved, on_vjp=lambda v, product: seen.append(float(product.norm() / v.norm()))
    )
    z.sum().backward()
    assert seen == pytest.approx([0.3] * 3)


def test_an_update_reports_the_ratio_of_its_last_terms():
    model = tiny_model(torch.float64)
    samples = samples_of(tiny_rollouts(model), group_advantages(REWARDS))
    metrics = learner_of(model, "reuse_neumann4").update(samples)
    batch = collate([s for s in samples if s.advantage], True)
    scores = score(model, batch, parse_estimator("reuse_neumann4"), 1.0)
    loss = -(scores.logps * batch.advantages[:, None] * batch.mask).sum()
    loss.backward()
    last, before = (norms.norm() for norms in scores.last_terms)
    assert metrics["neumann/term_ratio"] == pytest.approx(float(last / before), rel=1e-6)  # kept as float32
    for name in ("full_bptt", "reuse_neumann1"):
        assert "neumann/term_ratio" not in learner_of(model, name).update(samples)


def test_every_estimator_reports_the_residual_at_the_endpoint():
    """|F(z^R) - z^R| / |z^R| by definition, over the tokens of all rows that are learned from."""
    model = tiny_model(torch.float64)
    rollouts = tiny_rollouts(model)
    samples = samples_of(rollouts, group_advantages(REWARDS))
    expected = []
    for s in [s for s in samples if s.advantage]:
        ids = torch.from_numpy(np.concatenate((s.rollout.prompt_ids, s.completion.token_ids[:-1])))[None]
        seeds = torch.full(ids.shape, s.rollout.seed)
        seeds[:, len(s.rollout.prompt_ids) :] = s.completion.seed
        z0 = model.model.draw_initial_state(torch.arange(ids.shape[1])[None], seeds)
        with torch.no_grad():
            at, after = (model.model(ids, depth=depth, initial_state=z0).endpoint for depth in (4, 5))
        expected.append(((after - at).norm(dim=-1) / at.norm(dim=-1))[0])
    values = torch.cat(expected)
    for name in ("full_bptt", "truncated_bptt2", "recompute_neumann4", "reuse_neumann4", "reuse_implicit"):
        metrics = learner_of(model, name, micro=3).update(samples)
        # kept as float32
        assert metrics["residual/median"] == pytest.approx(float(values.quantile(0.5)), rel=1e-6), name
        assert metrics["residual/q90"] == pytest.approx(float(values.quantile(0.9)), rel=1e-6), name


def test_a_replay_sees_what_reuse_cannot():
    model = tiny_model(torch.float64)
    samples = samples_of(tiny_rollouts(model), group_advantages(REWARDS))
    learner = learner_of(model, "reuse_neumann4")
    assert learner.replay_difference(samples) < 1e-6
    with torch.no_grad():  # the sampler's weights were others
        model.model.embed_tokens.weight.add_(torch.randn_like(model.model.embed_tokens.weight))
    assert learner.update(samples)["sampling/sampling_logp_difference/mean"] < 1e-6
    replayed = learner_of(model, "full_bptt").update(samples)["sampling/sampling_logp_difference/mean"]
    useful = [s for s in samples if s.advantage]
    assert learner.replay_difference(useful) == pytest.approx(replayed) and replayed > 0.1
    assert learner.replay_difference([]) is None
    limits = HealthSection()
    assert "sampling/replay_logp_difference" in breach({"sampling/replay_logp_difference": replayed}, limits)


@pytest.mark.parametrize("estimator", ["reuse_neumann2", "full_bptt"])
def test_the_cosine_is_that_of_the_updates_gradients(estimator):
    model = tiny_model(torch.float64)
    samples = samples_of(tiny_rollouts(model), group_advantages(REWARDS))
    learner = learner_of(model, estimator)
    found = learner.gradient_cosine(samples)
    ours, full = gradients(model, samples, estimator), gradients(model, samples, "full_bptt")
    one, other = (torch.cat([g[name].flatten() for name in full]) for g in (ours, full))
    assert found == pytest.approx(float(torch.nn.functional.cosine_similarity(one, other, dim=0)), abs=1e-9)
    assert all(p.grad is None for p in model.parameters())
    assert (found == pytest.approx(1.0)) == (estimator == "full_bptt")
    silent = samples_of(tiny_rollouts(model), torch.zeros(3, 4))
    assert learner.gradient_cosine(silent) is None


def test_limits():
    limits = HealthSection(max_residual=0.1, max_term_ratio=0.9, min_cosine=0.95, cosine_steps=1)
    healthy = {"residual/q90": 0.1, "neumann/term_ratio": 0.9, "gradient/cosine": 0.95}
    assert breach(healthy, limits) is None and breach({}, limits) is None
    for name, value in (("residual/q90", 0.11), ("neumann/term_ratio", 1.5), ("gradient/cosine", 0.9)):
        said = breach({**healthy, name: value}, limits)
        assert name in said and said.count(";") == 0
    assert "residual/q90" in breach({"residual/q90": math.nan}, limits)
    assert breach({"residual/q90": 9.0}, HealthSection()) is None
    assert breach(dict.fromkeys(healthy), limits) is None, "what is undefined breaks no limit"
