"""The update: what must not change it, and what it must survive."""

import copy
import dataclasses
import math

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model

from loop_rl.fixed_point import parse_estimator
from loop_rl.learner.batch import collate, samples_of
from loop_rl.learner.objective import group_advantages
from loop_rl.learner.scoring import score
from loop_rl.learner.update import Learner, Objective
from loop_rl.models.adapters import merged_weights
from tests.rounding import logp_rounding
from tests.tiny import tiny_model, tiny_rollouts

REWARDS = torch.tensor([[1.0, 0, 0, 1], [0, 0, 0, 0], [1, 0, 1, 1]], dtype=torch.float64)
ESTIMATORS = [
    "full_bptt",
    "truncated_bptt2",
    "recompute_neumann4",
    "reuse_neumann4",
    "reuse_neumann3_tail",
    "reuse_implicit",
]


def gradients(model, samples, estimator: str = "full_bptt", micro: int = 100, **objective) -> dict[str, torch.Tensor]:
    model = copy.deepcopy(model)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.0)
    settings = Objective(**{"max_completion_length": 7, **objective})
    learner = Learner(model, parse_estimator(estimator), settings, optimizer, 0.0, micro)
    learner.update(samples)
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def assert_equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor], tolerance: float = 1e-12) -> None:
    assert a.keys() == b.keys() and a
    scale = max(x.abs().max() for x in a.values())
    assert scale > 0
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=0, atol=float(scale) * tolerance, msg=name)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_micro_batches_do_not_change_the_gradient(estimator: str) -> None:
    model = tiny_model(torch.float64)
    samples = samples_of(tiny_rollouts(model), group_advantages(REWARDS))
    whole = gradients(model, samples, estimator)
    for micro in (1, 2, 5):
        assert_equal(gradients(model, samples, estimator, micro), whole)


def test_zero_advantages_are_counted_and_cost_nothing() -> None:
    model = tiny_model(torch.float64)
    samples = samples_of(tiny_rollouts(model), group_advantages(REWARDS))
    useful = [s for s in samples if s.advantage]
    assert len(useful) == 8
    with_zeros, without = gradients(model, samples), gradients(model, useful)
    assert_equal(with_zeros, {name: g * len(useful) / len(samples) for name, g in without.items()})


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.3])
def test_the_learner_scores_what_the_sampler_assigned(estimator: str, temperature: float) -> None:
    model = tiny_model()
    samples = samples_of(tiny_rollouts(model, temperature=temperature), group_advantages(REWARDS))
    batch = collate(samples, True)
    logps = score(model, batch, parse_estimator(estimator), temperature).logps
    difference = (logps - batch.behaviour_logps)[batch.mask]
    bound = logp_rounding(model, samples, temperature)
    assert difference.abs().max() <= bound
    assert abs(difference.exp().mean() - 1) <= 2 * bound


def test_the_loss_equals_the_written_formula() -> None:
    model = tiny_model(torch.float64)
    rollouts, advantages = tiny_rollouts(model), group_advantages(REWARDS)
    learner = Learner(
        model, parse_estimator("full_bptt"), Objective(7), torch.optim.SGD(model.parameters(), lr=0.0), 0.0, 3
    )
    expected = -sum(
        float(advantages[i, j]) * len(c.token_ids) for i, r in enumerate(rollouts) for j, c in enumerate(r.completions)
    ) / (12 * 7)
    assert learner.update(samples_of(rollouts, advantages))["loss"] == pytest.approx(expected, rel=1e-6)


def test_reuse_at_a_converged_state_equals_full_bptt() -> None:
    model = tiny_model(torch.float64, initializer_range=0.05)
    samples = samples_of(tiny_rollouts(model, depth=150), group_advantages(REWARDS))
    full = gradients(model, samples, "full_bptt")
    assert_equal(gradients(model, samples, "reuse_neumann150"), full, 1e-8)
    assert_equal(gradients(model, samples, "reuse_implicit"), full, 1e-5)


def test_unscored_and_empty_completions_are_left_out() -> None:
    model = tiny_model(torch.float64)
    rollouts = tiny_rollouts(model)
    samples = samples_of(rollouts, group_advantages(REWARDS))
    unscored = dataclasses.replace(samples[0], advantage=math.nan)
    assert_equal(gradients(model, [unscored, *samples[1:]]), gradients(model, samples[1:]))
    nothing = dataclasses.replace(samples[0].completion, token_ids=np.zeros(0, dtype=np.int64))
    empty = dataclasses.replace(samples[0], completion=nothing)
    expected = {name: g * 11 / 12 for name, g in gradients(model, samples[1:]).items()}
    assert_equal(gradients(model, [empty, *samples[1:]]), expected)


def test_a_batch_without_signal_leaves_the_weights() -> None:
    model = tiny_model()
    samples = samples_of(tiny_rollouts(model), group_advantages(torch.zeros(3, 4)))
    before = copy.deepcopy(model.state_dict())
    for beta in (0.0, 0.01):
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.0)
        learner = Learner(model, parse_estimator("reuse_neumann4"), Objective(7, beta=beta), optimizer)
        metrics = learner.update(samples if not beta else [])
        assert metrics["loss"] == 0 and metrics["skipped_update"] == 1
        defined = {name for name, value in metrics.items() if value is not None}
        counts = {"completions/learned_from", "completions/learned_tokens"}
        times = {"time/update", "time/collate", "time/optimizer"}
        assert defined == {"loss", "skipped_update"} | counts | times
        assert all(metrics[name] == 0 for name in counts)
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())


def test_a_gradient_that_is_not_finite_skips_the_step() -> None:
    model = tiny_model()
    samples = samples_of(tiny_rollouts(model), group_advantages(REWARDS))
    bad = dataclasses.replace(samples[0].completion, states=samples[0].completion.states * np.float32(np.nan))
    bad = dataclasses.replace(
        bad, token_ids=samples[1].completion.token_ids, states=samples[1].completion.states * np.nan
    )
    broken = [dataclasses.replace(s, completion=bad if i == 1 else s.completion) for i, s in enumerate(samples)]
    before = copy.deepcopy(model.state_dict())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    metrics = Learner(model, parse_estimator("reuse_neumann4"), Objective(7), optimizer).update(broken)
    assert metrics["skipped_update"] == 1 and not optimizer.state
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())


def test_masks_come_from_lengths_not_from_the_pad_id() -> None:
    # the end-of-sequence id is also the pad id, as in many checkpoints: the last token is still learned
    model = tiny_model(torch.float64, pad_token_id=2)
    samples = samples_of(tiny_rollouts(model), group_advantages(REWARDS))
    batch = collate(samples, False)
    assert batch.mask.sum(-1).tolist() == [len(s.completion.token_ids) for s in samples]


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_lora_trains_only_adapters_and_its_merged_weights_are_the_model(estimator: str) -> None:
    model = tiny_model(torch.float64)
    samples = samples_of(tiny_rollouts(model), group_advantages(REWARDS))
    adapted = get_peft_model(model, LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM"))
    trainable = [p for p in adapted.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=0.05)
    learner = Learner(adapted, parse_estimator(estimator), Objective(7), optimizer)
    assert learner.update(samples)["grad_norm"] > 0
    assert learner.update(samples)["grad_norm"] > 0
    merged = tiny_model(torch.float64)
    merged.load_state_dict(merged_weights(adapted.get_base_model()))
    ids = torch.tensor([[5, 6, 7, 8]])
    torch.testing.assert_close(merged(ids).logits, adapted(ids).logits, rtol=0, atol=1e-12)
    assert (merged(ids).logits - tiny_model(torch.float64)(ids).logits).abs().max() > 1e-4


def test_dropout_of_adapters_is_off_in_scoring() -> None:
    model = tiny_model()
    samples = samples_of(tiny_rollouts(model), group_advantages(REWARDS))
    settings = LoraConfig(r=2, lora_dropout=0.5, target_modules="all-linear", task_type="CAUSAL_LM")
    adapted = get_peft_model(model, settings)
    with torch.no_grad():  # adapters that do something
        for name, p in adapted.named_parameters():
            if "lora_B" in name:
                p.add_(torch.randn_like(p) * 0.1)
    sampler = tiny_model()
    sampler.load_state_dict(merged_weights(adapted.get_base_model()))
    samples = samples_of(tiny_rollouts(sampler), group_advantages(REWARDS))
    optimizer = torch.optim.SGD([p for p in adapted.parameters() if p.requires_grad], lr=0.0)
    learner = Learner(adapted, parse_estimator("full_bptt"), Objective(7), optimizer)
    bound = logp_rounding(sampler, samples)
    assert learner.update(samples)["sampling/sampling_logp_difference/mean"] <= bound
    assert learner.gradient_cosine(samples) == pytest.approx(1.0, abs=1e-6)  # of a gradient with itself


def test_kl_to_the_start_of_training_grows_and_is_reported() -> None:
    model = tiny_model()
    samples = samples_of(tiny_rollouts(model), group_advantages(REWARDS))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    learner = Learner(model, parse_estimator("full_bptt"), Objective(7, beta=0.1), optimizer)
    with pytest.raises(ValueError, match="prepare"):
        learner.update(samples)
    samples, times = learner.prepare(samples)
    assert list(times) == ["time/reference"]
    bound = logp_rounding(model, samples)
    for sample in samples:  # the reference is the model that sampled
        np.testing.assert_allclose(sample.reference_logps, sample.completion.logps, rtol=0, atol=bound)
    assert learner.update(samples)["kl"] == pytest.approx(0.0, abs=bound)
    assert learner.update(samples)["kl"] > bound


def test_old_logps_anchor_later_updates() -> None:
    model = tiny_model()
    samples = samples_of(tiny_rollouts(model), group_advantages(REWARDS))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    settings = Objective(7, importance_sampling_cap=2.0)
    learner = Learner(model, parse_estimator("full_bptt"), settings, optimizer)
    assert learner.prepare(samples, iterations=1)[0] == learner.useful(samples)
    bound = logp_rounding(model, samples)
    marked, times = learner.prepare(samples, iterations=2)
    assert list(times) == ["time/old_logps"]
    for sample in marked:
        np.testing.assert_allclose(sample.old_logps, sample.completion.logps, rtol=0, atol=bound)
    assert learner.update(marked)["clip_ratio/region_mean"] == 0
    assert learner.update(marked)["clip_ratio/region_mean"] > 0
