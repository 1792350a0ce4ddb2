"""Engines hold a model's adapters beside its weights, as the learner does, and are sent the adapters alone."""

import os
import signal

import numpy as np
import pytest
import ray
import torch

from loop_rl.fixed_point import parse_estimator
from loop_rl.learner.batch import collate, samples_of
from loop_rl.learner.scoring import score
from loop_rl.learner.update import rollout_weights, trained_weights
from loop_rl.models.adapters import adapted
from loop_rl.models.prefill import PrefillStudent
from loop_rl.recipe.rl import LoraSection
from loop_rl.rollout.local_engine import LocalEngine
from loop_rl.rollout.ray_engine import RolloutPool
from loop_rl.rollout.sampling import Sampling
from tests.rounding import rounding
from tests.tiny import PROMPTS, tiny_model

SEEDS = [11, 12, 13]
IDS = torch.tensor([[5, 6, 7, 8, 9]])


def change(model: torch.nn.Module, seed: int, size: float = 0.01) -> None:
    """Moves the adapters as training does, B from its zeros."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            if p.requires_grad:
                p.add_(size * torch.randn(p.shape, generator=generator))


def learner_model(dtype: torch.dtype, lora: LoraSection) -> torch.nn.Module:
    model = adapted(tiny_model().to(dtype), lora).eval()
    change(model, 1)
    return model


def engine_of(model: torch.nn.Module, lora: LoraSection, student: PrefillStudent | None = None) -> LocalEngine:
    looped = model.get_base_model()
    engine = LocalEngine(looped.config, str(looped.dtype).removeprefix("torch."), student, lora=lora)
    engine.send_weights(rollout_weights(model), 0)
    return engine


@pytest.mark.parametrize("parts", [None, ["core"]], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("how", ["full", "terminal", "student"])
@torch.no_grad()
def test_the_learner_scores_what_was_sampled(how, dtype, parts):
    lora = LoraSection(r=3, parts=parts)
    student = None
    if how == "student":
        student = PrefillStudent(tiny_model().to(dtype).model, from_teacher=False).to(dtype).eval()
    model = learner_model(dtype, lora)
    engine = engine_of(model, lora, student)
    assert torch.equal(engine.model(IDS).logits, model(input_ids=IDS).logits)  # the same arithmetic
    sampling = Sampling(4, 7, eos_token_ids=(2, 3, 4), cache="full" if how == "full" else "terminal", save_states=True)
    rollouts = engine.generate(PROMPTS, sampling, SEEDS)
    estimators = ["reuse_neumann2", *(["full_bptt"] if how == "full" else [])]
    for estimator in map(parse_estimator, estimators):
        batch = collate(samples_of(rollouts, torch.zeros(3, 4)), estimator.needs_states)

        def logps(model, batch=batch, estimator=estimator):
            return score(model, batch, estimator, 1.0).logps[batch.mask]

        bound = rounding(logps, model, dtype)
        assert (logps(model) - batch.behaviour_logps[batch.mask]).abs().max() <= bound


@torch.no_grad()
def test_later_weights_are_the_adapters_alone():
    lora = LoraSection(r=2)
    model = learner_model(torch.bfloat16, lora)
    engine = engine_of(model, lora)
    change(model, 5)
    sent = trained_weights(model)
    assert all(".lora_" in name for name in sent)
    assert len(sent) == sum(p.requires_grad for p in model.parameters())
    engine.send_weights(sent, 1)
    assert engine.version == 1
    for name, value in engine.model.state_dict().items():
        assert torch.equal(value, rollout_weights(model)[name])
    with pytest.raises(ValueError, match="has no nothing"):
        engine.send_weights({"nothing": torch.zeros(1)}, 2)
    whole = tiny_model()
    assert trained_weights(whole).keys() == whole.state_dict().keys()


def test_a_restarted_worker_gets_weights_and_adapters(ray_instance):
    lora = LoraSection(r=2)
    student = PrefillStudent(tiny_model().model, from_teacher=False).eval()
    sampling = Sampling(3, 6, eos_token_ids=(2, 3, 4), cache="terminal")
    model = learner_model(torch.float32, lora)
    config = model.get_base_model().config
    with RolloutPool(config, workers=1, learner_gpus=0, student=student, lora=lora) as pool:
        pool.send_weights(rollout_weights(model), 0)
        change(model, 6, 0.1)
        pool.send_weights(trained_weights(model), 1)
        first = pool.generate(PROMPTS, sampling, SEEDS)
        os.kill(int(ray.get(pool.workers[0].environment.remote())["pid"]), signal.SIGKILL)
        again = pool.generate(PROMPTS, sampling, SEEDS)
        assert pool.restarts >= 1
    here = engine_of(model, lora, student).generate(PROMPTS, sampling, SEEDS)
    for rollouts in (first, again):
        for one, other in zip(rollouts, here, strict=True):
            assert one.version == 1
            for a, b in zip(one.completions, other.completions, strict=True):
                np.testing.assert_array_equal(a.token_ids, b.token_ids)
                np.testing.assert_array_equal(a.logps, b.logps)
