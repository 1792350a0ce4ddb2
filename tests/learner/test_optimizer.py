"""Master weights: what they follow, what the model gets of them, and that they resume."""

import copy
import math
from types import SimpleNamespace

import pytest
import torch
from accelerate import Accelerator
from safetensors.torch import load_file
from transformers import AutoTokenizer

from loop_rl.fixed_point import parse_estimator
from loop_rl.learner.batch import samples_of
from loop_rl.learner.objective import group_advantages
from loop_rl.learner.optimizer import MasterWeightAdamW, make_optimizer, trainable
from loop_rl.learner.update import Learner, Objective, rollout_weights
from loop_rl.models.loading import EMBEDDED
from loop_rl.recipe.rl import Recipe
from loop_rl.runs.checkpoints import load_training_state, save_training_state
from loop_rl.training.trainer import Trainer
from tests.tiny import tiny_model, tiny_rollouts

RATE = 1e-6
OPTIM = SimpleNamespace(learning_rate=RATE, adam_beta1=0.9, adam_beta2=0.999)
UNIT = 2.0**-9  # bfloat16 rounds by at most this share of a number
REWARDS = torch.tensor([[1.0, 0, 0, 1], [0, 1, 0, 0], [1, 0, 1, 1]])


def parameter(values: torch.Tensor, dtype: torch.dtype) -> torch.nn.Parameter:
    return torch.nn.Parameter(values.to(dtype, copy=True))


def test_a_float32_model_gets_plain_adamw() -> None:
    weight = parameter(torch.ones(3), torch.float32)
    optimizer = make_optimizer([weight], OPTIM, weight_decay=0.0)
    assert type(optimizer) is torch.optim.AdamW and optimizer.param_groups[0]["params"] == [weight]


def test_master_weights_follow_float32_under_rounded_gradients() -> None:
    """Each gradient is off by at most UNIT of itself, so a step m / sqrt(v) by UNIT (mean |g| + |m|) / sqrt(v), and by
    Cauchy and Schwarz mean |g| <= sqrt(v sum_i w_i^2 / a_i), w and a the weights of both moments' averages."""
    torch.manual_seed(0)
    start, steps = torch.randn(500), 60
    exact = parameter(start, torch.float32)
    low = parameter(start, torch.bfloat16)
    plain = make_optimizer([exact], OPTIM, weight_decay=0.0)
    ours = make_optimizer([low], OPTIM, {low: start.clone()}, weight_decay=0.0)
    bound = 0.0
    for step in range(1, steps + 1):
        gradient = torch.randn(500) * 10 ** torch.linspace(-4, 0, 500)
        exact.grad, low.grad = gradient, gradient.bfloat16().float()
        plain.step(), ours.step()
        ages = torch.arange(step, dtype=torch.float64)
        w, a = (decay**ages / (decay**ages).sum() for decay in (0.9, 0.999))
        bound += RATE * 2 * UNIT * math.sqrt(float((w * w / a).sum())) * (1 + 4 * UNIT)
    master = ours.copies[0][0]
    # beside it, float32's own rounding of weights of this size, once a step on each side
    rounding = 2 * steps * torch.finfo(torch.float32).eps * start.abs()
    assert ((master - exact.detach()).abs() <= bound + rounding).all()
    assert (master != start).double().mean() > 0.99
    assert torch.equal(low.detach(), master.bfloat16())
    moved = (exact.detach() - start).abs().mean()
    assert bound < moved / 10, "the bound says something"


def learner_of(model: torch.nn.Module, start=None) -> Learner:
    optimizer = make_optimizer(trainable(model), OPTIM, start, weight_decay=0.0)
    return Learner(model, parse_estimator("full_bptt"), Objective(7), optimizer, micro_batch_size=5)


def test_an_update_moves_every_master_weight_as_in_float32() -> None:
    exact = tiny_model()
    samples = samples_of(tiny_rollouts(exact), group_advantages(REWARDS))
    low = copy.deepcopy(exact)
    start = {p: p.detach() for p in low.parameters()}
    low.bfloat16()
    ours, plain = learner_of(low, start), learner_of(exact)
    before = [p.detach().clone() for p in exact.parameters()]
    for _ in range(10):
        ours.update(samples), plain.update(samples)
    moved = [(p.detach() - old).flatten() for p, old in zip(exact.parameters(), before, strict=True)]
    ours_moved = [(master - old).flatten() for (master, _), old in zip(ours.optimizer.copies, before, strict=True)]
    changed = [torch.cat(parts) != 0 for parts in (ours_moved, moved)]
    assert changed[0].double().mean() > changed[1].double().mean() - 0.01
    assert float(torch.cat(ours_moved).norm()) == pytest.approx(float(torch.cat(moved).norm()), rel=0.1)
    for (master, weight), (name, p) in zip(ours.optimizer.copies, low.named_parameters(), strict=True):
        assert weight is p and p.dtype == torch.bfloat16 and torch.equal(p.detach(), master.bfloat16()), name


def test_gradients_accumulate_and_are_clipped_in_float32() -> None:
    low = parameter(torch.ones(2), torch.bfloat16)
    make_optimizer([low], OPTIM)
    for scale in (256.0, 1.0):  # 257 has 9 bits
        (low.float() * scale).sum().backward()
    assert low.grad.dtype == torch.float32 and low.grad.tolist() == [257.0, 257.0]
    norm = torch.nn.utils.clip_grad_norm_([low], 1.0)
    assert norm.dtype == torch.float32
    torch.testing.assert_close(low.grad.norm(), torch.tensor(1.0))


def test_resumed_training_is_bitwise_that_of_one_go(tmp_path) -> None:
    def made() -> tuple[torch.nn.Module, Learner]:
        model = tiny_model(torch.bfloat16)
        return model, learner_of(model)

    samples = samples_of(tiny_rollouts(tiny_model()), group_advantages(REWARDS))
    model, learner = made()
    for _ in range(2):
        learner.update(samples)
    save_training_state(tmp_path / "state.pt", {"optimizer": learner.optimizer}, {})
    again, other = made()
    again.load_state_dict(model.state_dict())
    load_training_state(tmp_path / "state.pt", {"optimizer": other.optimizer})
    for one in (learner, other):
        one.update(samples)
    for (a, _), (b, _) in zip(learner.optimizer.copies, other.optimizer.copies, strict=True):
        assert torch.equal(a, b) and learner.optimizer.state[a]["exp_avg"].dtype == torch.float32
        for name, value in learner.optimizer.state[a].items():
            assert torch.equal(value, other.optimizer.state[b][name]), name


def test_a_bfloat16_run_resumes_bitwise_and_saves_what_the_sampler_gets(tmp_path) -> None:
    fine = tiny_model(vocab_size=512)
    fine.save_pretrained(tmp_path / "model")
    AutoTokenizer.from_pretrained(EMBEDDED).save_pretrained(tmp_path / "model")
    recipe = Recipe.model_validate(
        {
            "model": {"path": str(tmp_path / "model"), "dtype": "bfloat16"},
            "data": {"train_size": 4, "eval_size": 1},
            "rollout": {"max_completion_length": 7, "prompts_per_step": 3},
        }
    )
    trainer = Trainer(recipe)
    assert all(torch.equal(m, p) for (m, _), p in zip(trainer.learner.optimizer.copies, fine.parameters(), strict=True))
    rollouts, advantages = tiny_rollouts(trainer.looped), group_advantages(REWARDS)
    trainer.learn(rollouts, advantages)
    trainer.save(tmp_path / "saved")
    saved = load_file(tmp_path / "saved" / "model" / "model.safetensors")
    sampled = rollout_weights(trainer.model)
    assert all(torch.equal(saved[name], sampled[name]) for name in saved) and saved["lm_head.weight"].itemsize == 2
    resumed = Trainer(recipe)
    resumed.load(tmp_path / "saved")
    for one in (trainer, resumed):
        one.learn(rollouts, advantages)
    for (a, _), (b, _) in zip(trainer.learner.optimizer.copies, resumed.learner.optimizer.copies, strict=True):
        assert torch.equal(a, b)


def test_a_state_without_master_weights_starts_them_from_the_model(caplog) -> None:
    weight = parameter(torch.tensor([1.0]), torch.bfloat16)
    old = torch.optim.AdamW([weight])
    weight.grad = torch.ones_like(weight)
    old.step()
    optimizer = make_optimizer([parameter(torch.tensor([2.0]), torch.bfloat16)], OPTIM)
    optimizer.load_state_dict(old.state_dict())
    assert "no master weights" in caplog.text and optimizer.copies[0][0].item() == 2.0
    assert optimizer.state[optimizer.copies[0][0]]["exp_avg"].dtype == torch.float32


def test_accelerate_and_schedulers_drive_it() -> None:
    weight = parameter(torch.ones(4), torch.bfloat16)
    optimizer = make_optimizer([weight], OPTIM)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5)
    wrapped = Accelerator(cpu=True).prepare(optimizer)
    assert isinstance(optimizer, MasterWeightAdamW) and wrapped.param_groups[0]["lr"] == RATE / 2
    (weight.float() * 3).sum().backward()
    wrapped.step()
    schedule.step()
    # AdamW's first step is the rate, whatever the gradient; weight decay is 0.01 by default
    expected = 1 - RATE / 2 * (1 + 0.01)
    bound = 2 * torch.finfo(torch.float32).eps  # two steps are taken off a number near 1, decay and gradient
    assert bound < RATE / 2, "the bound says something"
    torch.testing.assert_close(optimizer.copies[0][0], torch.full((4,), expected), rtol=0, atol=bound)
    wrapped.zero_grad()
    assert weight.grad is None
