"""What the shipped model promises: it can be improved, its states converge, and its endpoint gradients are good."""

import copy
import math

import pytest
import torch

from loop_rl.data import load_dataset
from loop_rl.evaluation import LocalScorer, RewardSpec, evaluate
from loop_rl.fixed_point import parse_estimator
from loop_rl.learner.batch import samples_of
from loop_rl.learner.objective import group_advantages
from loop_rl.learner.update import Learner, Objective
from loop_rl.models.loading import load_model
from loop_rl.recipe.rl import DataSection
from loop_rl.rollout.sampler import sample_groups
from loop_rl.rollout.sampling import Sampling
from rewards.gsm8k import gsm8k_reward
from tests.rounding import logp_rounding

SAMPLING = Sampling(8, 64, depth=6, eos_token_ids=(2,))


@pytest.fixture(scope="module")
def embedded():
    model, tokenizer = load_model("embedded")
    return model.eval(), tokenizer, load_dataset(DataSection(eval_size=100))


@pytest.fixture(scope="module")
def batch(embedded):
    model, tokenizer, splits = embedded
    examples = splits.train[:8]
    rollouts = sample_groups(model, [tokenizer(e.prompt).input_ids for e in examples], SAMPLING, list(range(8)))
    rewards = torch.zeros(8, 8)
    for i, rollout in enumerate(rollouts):
        texts = tokenizer.batch_decode([c.token_ids for c in rollout.completions], skip_special_tokens=True)
        rewards[i] = torch.tensor(gsm8k_reward([], texts, [], answer=[examples[i].answer] * 8))
    return samples_of(rollouts, group_advantages(rewards))


def gradient(model, samples, estimator: str) -> tuple[torch.Tensor, dict[str, float]]:
    model = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    metrics = Learner(model, parse_estimator(estimator), Objective(64), optimizer, 0.0, 64).update(samples)
    return torch.cat([p.grad.flatten() for p in model.parameters()]), metrics


def test_endpoint_gradients_match_full_bptt(embedded, batch) -> None:
    model = embedded[0]
    names = (
        "full_bptt",
        "recompute_neumann4",
        "reuse_neumann4",
        "reuse_neumann4_tail",
        "reuse_neumann3",
        "reuse_neumann3_tail",
    )
    measured = {name: gradient(model, batch, name) for name in names}
    full = measured["full_bptt"][0]

    def cosine(a: torch.Tensor, b: torch.Tensor) -> float:
        return float(torch.nn.functional.cosine_similarity(a, b, dim=0))

    def error(name: str) -> float:
        return float((measured[name][0] - full).norm() / full.norm())

    figures = {name: (cosine(measured[name][0], full), error(name)) for name in names[1:]}
    print(figures)
    assert cosine(measured["reuse_neumann4"][0], measured["recompute_neumann4"][0]) >= 0.995
    assert figures["reuse_neumann4"][0] >= 0.98
    assert error("reuse_neumann3_tail") < error("reuse_neumann3")
    assert error("reuse_neumann4_tail") < error("reuse_neumann4")
    bound = logp_rounding(model, batch[::8])  # the largest of a completion of each group, for a mean over all
    for _, metrics in measured.values():
        assert metrics["sampling/importance_sampling_ratio/mean"] == pytest.approx(1.0, abs=math.expm1(bound))
        assert metrics["sampling/sampling_logp_difference/mean"] <= bound
    assert measured["reuse_neumann4"][1]["residual/median"] < 0.05


def test_there_is_room_to_learn(embedded) -> None:
    model, tokenizer, splits = embedded
    reward = RewardSpec((("gsm8k", 1.0),))
    result = evaluate(
        lambda *args: sample_groups(model, *args),
        tokenizer,
        splits.test,
        LocalScorer([reward]),
        reward,
        SAMPLING,
        seed=0,
        batch=50,
    )
    pass_1, _ = result.metrics.passes[1]
    assert 0.2 <= pass_1 <= 0.6
