"""Rollouts whose prompts a student reads."""

import dataclasses

import numpy as np
import pytest
import torch

from loop_rl.fixed_point import parse_estimator
from loop_rl.learner.batch import collate, samples_of
from loop_rl.learner.scoring import score
from loop_rl.models.prefill import PrefillStudent
from loop_rl.recipe.rl import Recipe
from loop_rl.rollout.ray_engine import RolloutPool
from loop_rl.rollout.sampler import sample_groups
from loop_rl.rollout.sampling import Sampling
from tests.tiny import PROMPTS, tiny_model

SAMPLING = Sampling(3, 6, eos_token_ids=(2, 3, 4), cache="terminal")


def student_of(model):
    torch.manual_seed(4)
    return PrefillStudent(model.model, from_teacher=False).to(model.dtype)


def test_prompts_end_in_the_states_that_the_student_leads_to():
    """A row alone, unpadded: its prompt states are F at the student's prediction."""
    model = tiny_model(torch.float64)
    student = student_of(model)
    rollouts = sample_groups(model, PROMPTS, SAMPLING, [11, 12, 13], student=student)
    core = model.model
    from loop_rl.models.attention.padded import PaddedContext

    for prompt, rollout in zip(PROMPTS, rollouts, strict=True):
        ids = torch.tensor([prompt])
        context = PaddedContext(model.config, torch.ones_like(ids), dtype=torch.float64)
        with torch.no_grad():
            prelude = core.prelude_forward(ids, context)
            expected = core.recur(student(core, prelude, context), prelude, context)[0]
        np.testing.assert_allclose(rollout.prompt_states, expected.numpy(), atol=1e-10)


@pytest.mark.parametrize("tolerance", [None, 0.2])
def test_reuse_scores_what_was_sampled(tolerance):
    model = tiny_model(torch.float64)
    sampling = dataclasses.replace(SAMPLING, tolerance=tolerance)
    rollouts = sample_groups(model, PROMPTS, sampling, [11, 12, 13], student=student_of(model))
    used = {depth for r in rollouts for c in r.completions if c.depths is not None for depth in c.depths.tolist()}
    assert (len(used) > 1) == (tolerance is not None)
    batch = collate(samples_of(rollouts, torch.zeros(3, 3)), with_states=True)
    logps = score(model, batch, parse_estimator("reuse_neumann3"), 1.0).logps
    assert (logps - batch.behaviour_logps)[batch.mask].abs().max() < 1e-6  # the record's float32


def test_a_pool_samples_as_this_process_does(ray_instance):
    model = tiny_model()
    student = student_of(model)
    with RolloutPool(model.config, learner_gpus=0, student=student) as pool:
        pool.send_weights(model.state_dict(), 1)
        there = pool.generate(PROMPTS, SAMPLING, [11, 12, 13])
    here = sample_groups(model, PROMPTS, SAMPLING, [11, 12, 13], student=student)
    for one, other in zip(there, here, strict=True):
        np.testing.assert_array_equal(one.prompt_states, other.prompt_states)
        for a, b in zip(one.completions, other.completions, strict=True):
            np.testing.assert_array_equal(a.token_ids, b.token_ids)


def test_what_does_not_go_together_is_refused():
    model = tiny_model()
    with pytest.raises(ValueError, match="terminal"):
        sample_groups(model, PROMPTS, Sampling(1, 2), [1, 2, 3], student=student_of(model))
    with pytest.raises(ValueError, match="rollout.cache"):
        Recipe.model_validate({"rollout": {"prefill": "student"}})
    with pytest.raises(ValueError, match="reuse estimator"):
        Recipe.model_validate(
            {"rollout": {"prefill": "student", "cache": "terminal"}, "learner": {"estimator": "full_bptt"}}
        )
    with pytest.raises(ValueError, match="depth_tolerance"):
        Recipe.model_validate({"rollout": {"depth_tolerance": 0.02}, "learner": {"estimator": "truncated_bptt2"}})
