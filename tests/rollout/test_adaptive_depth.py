"""Adaptive depth: against token-by-token decoding written out, the learner's replay, and the batch around it."""

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from loop_rl.fixed_point import parse_estimator
from loop_rl.learner.batch import collate, samples_of
from loop_rl.learner.scoring import score
from loop_rl.rollout.sampler import sample_groups
from loop_rl.rollout.sampling import Sampling
from tests.models.attention.test_terminal import Written, model_of
from tests.tiny import PROMPTS, tiny_model, tiny_rollouts

TOLERANCE = 0.2


def depths_of(rollouts):
    return [completion.depths for rollout in rollouts for completion in rollout.completions]


def test_decoding_is_the_written_reference_under_terminal_sharing():
    model = model_of(depth=8)
    model.config.eos_token_id = None
    sampling = Sampling(1, 8, temperature=0, cache="terminal", tolerance=TOLERANCE)
    (rollout,) = sample_groups(model, [[7]], sampling, [3])
    completion = rollout.completions[0]
    reference = Written(model, 8)
    tokens = [7, *completion.token_ids.tolist()]
    used = [*rollout.prompt_depths.tolist(), *completion.depths.tolist()]
    for t in range(8):
        seed = rollout.seed if t == 0 else completion.seed
        z0 = model.model.draw_initial_state(torch.tensor([[t]]), torch.tensor([seed]))[0, 0]
        with torch.no_grad():
            logits = reference.token(tokens[t], t, z0, TOLERANCE)
        assert int(logits.argmax()) == tokens[t + 1]
        assert float(logits.log_softmax(0).max()) == pytest.approx(float(completion.logps[t]), abs=1e-6)
        assert reference.used == used[t]
    assert len(set(used)) > 1


@pytest.mark.parametrize("cache", ["full", "terminal"])
def test_a_tolerance_of_zero_is_the_fixed_depth(cache):
    model = tiny_model(torch.float64)
    fixed = tiny_rollouts(model, cache=cache)
    adaptive = tiny_rollouts(model, cache=cache, tolerance=0.0)
    for one, other in zip(fixed, adaptive, strict=True):
        assert (other.prompt_depths == 4).all()
        np.testing.assert_allclose(one.prompt_states, other.prompt_states, rtol=0, atol=1e-12)
        for a, b in zip(one.completions, other.completions, strict=True):
            np.testing.assert_array_equal(a.token_ids, b.token_ids)
            np.testing.assert_allclose(a.states, b.states, rtol=0, atol=1e-12)
            assert (b.depths == 4).all() and a.depths is None


@pytest.mark.parametrize("estimator", ["full_bptt", "recompute_neumann3", "reuse_neumann3"])
@pytest.mark.parametrize("cache", ["full", "terminal"])
def test_the_learner_scores_what_was_sampled(estimator, cache):
    """Replay repeats each token's own number of recurrences; only reuse can score a rollout with shared banks."""
    model = tiny_model(torch.float64, depth=12)
    rollouts = tiny_rollouts(model, cache=cache, tolerance=TOLERANCE)
    assert len(set(np.concatenate(depths_of(rollouts)).tolist())) > 1
    batch = collate(samples_of(rollouts, torch.zeros(3, 4)), with_states=estimator.startswith("reuse"))
    logps = score(model, batch, parse_estimator(estimator), 1.0).logps
    error = (logps - batch.behaviour_logps)[batch.mask].abs().max()
    if cache == "full" or estimator.startswith("reuse"):
        assert error < 1e-6  # the record's float32
    else:
        assert error > 1e-6


def test_the_gradient_of_a_replayed_batch_is_the_sum_of_its_rows():
    model = tiny_model(torch.float64, depth=12)
    rollouts = tiny_rollouts(model, group=1, tolerance=TOLERANCE)
    samples = samples_of(rollouts, torch.zeros(3, 1))
    together = collate(samples, with_states=False)
    parameters = list(model.parameters())

    def gradient(batch):
        scores = score(model, batch, parse_estimator("full_bptt"), 1.0)
        return torch.autograd.grad(scores.logps[batch.mask].sum(), parameters, allow_unused=True)

    alone = [gradient(collate([sample], with_states=False)) for sample in samples]
    for parameter, whole, *parts in zip(parameters, gradient(together), *alone, strict=True):
        if whole is not None:
            assert torch.allclose(whole, sum(parts), atol=1e-9), parameter.shape


def test_what_a_row_uses_does_not_depend_on_the_batch():
    model = tiny_model(torch.float64, depth=12)
    sampling = Sampling(3, 7, eos_token_ids=(2, 3, 4), tolerance=TOLERANCE)
    together = sample_groups(model, PROMPTS, sampling, [11, 12, 13])
    for prompt, seed, whole in zip(PROMPTS, [11, 12, 13], together, strict=True):
        (alone,) = sample_groups(model, [prompt], sampling, [seed])
        np.testing.assert_array_equal(whole.prompt_depths, alone.prompt_depths)
        for a, b in zip(whole.completions, alone.completions, strict=True):
            np.testing.assert_array_equal(a.token_ids, b.token_ids)
            np.testing.assert_array_equal(a.depths, b.depths)


def test_floor_and_cap():
    model = tiny_model(torch.float64, depth=5)
    used = np.concatenate(depths_of(tiny_rollouts(model, tolerance=1e9, min_depth=3)))
    assert (used == 3).all()
    used = np.concatenate(depths_of(tiny_rollouts(model, tolerance=1e-12)))
    assert (used == 5).all()


def test_the_cost_of_a_reuse_update_does_not_depend_on_the_depth_used():
    """Matrix products of scoring and backward, by torch's counter: the same at any depth; a replay's grow with it."""
    model = tiny_model(depth=12)

    def flops(estimator, depth):
        rollouts = tiny_rollouts(model, tolerance=1e-12, depth=depth)
        batch = collate(samples_of(rollouts, torch.ones(3, 4)), with_states=True)
        with FlopCounterMode(display=False) as counter:
            score(model, batch, parse_estimator(estimator), 1.0).logps[batch.mask].sum().backward()
        return counter.get_total_flops() / batch.input_ids.numel()

    reuse, replay = ([flops(name, depth) for depth in (2, 12)] for name in ("reuse_neumann4", "full_bptt"))
    assert reuse[0] == pytest.approx(reuse[1], rel=0.1)  # the completions' lengths differ a little
    assert replay[1] > 3 * replay[0]
