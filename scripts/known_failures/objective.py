"""Dr. GRPO's advantages, loss and masks."""

import math
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import torch

from known_failures.seen import Check, Given, Seen, covered, equal, near
from loop_rl.fixed_point import parse_estimator
from loop_rl.learner.batch import collate, samples_of
from loop_rl.learner.objective import group_advantages, token_loss
from loop_rl.learner.optimizer import make_optimizer, trainable
from loop_rl.learner.update import Learner, Objective
from loop_rl.models import LoopedForCausalLM
from loop_rl.models.loading import load_model
from loop_rl.rollout.record import Completion, Rollout
from loop_rl.rollout.sampling import Sampling, draw

_PROMPT = [5, 6, 7]
_OPTIM = SimpleNamespace(learning_rate=1e-3, adam_beta1=0.9, adam_beta2=0.999)


def _rollout(completions: list[list[int]], width: int, logp: float = -1.0) -> Rollout:
    made = [
        Completion(
            np.array(ids, dtype=np.int64),
            np.full(len(ids), logp, dtype=np.float32),
            np.zeros((max(len(ids) - 1, 0), width), dtype=np.float32),
            depth=2,
            finish_reason="stop",
            seed=place,
        )
        for place, ids in enumerate(completions)
    ]
    states = np.zeros((len(_PROMPT), width), dtype=np.float32)
    return Rollout(np.array(_PROMPT), states, made, seed=0, version=0)


def _learner(beta: float, micro_batch_size: int = 16, length: int = 8) -> tuple[Learner, LoopedForCausalLM]:
    model, _ = load_model("embedded")
    optimizer = make_optimizer(trainable(model), _OPTIM, weight_decay=0.0)
    objective = Objective(length, beta=beta)
    return Learner(model, parse_estimator("full_bptt"), objective, optimizer, micro_batch_size=micro_batch_size), model


def dr_grpo_loss(given: Given) -> Iterator[Seen]:
    """the loss by hand, the same for every split and width of padding"""
    advantages = group_advantages(torch.tensor([given["rewards"]], dtype=torch.float64))[0]
    lengths, limit = given["completion_lengths"], given["max_completion_length"]
    for width in given["pad_to"]:
        for size in given["micro_batch_sizes"]:
            total = 0.0
            for start in range(0, len(lengths), size):
                rows = slice(start, start + size)
                mask = torch.arange(width)[None] < torch.tensor(lengths[rows])[:, None]
                logps = torch.zeros(mask.shape, dtype=torch.float64)  # equal ones: a ratio of 1
                total += float(token_loss(logps, logps, advantages[rows], mask, 0.2, 0.2)[0].sum())
            loss = total / (len(lengths) * limit)
            yield near(f"micro-batches of {size}, padded to {width}", given["expected"]["loss"], loss, 1e-12)
    gradients = []
    for size in given["micro_batch_sizes"]:
        learner, model = _learner(0.0, size, limit)
        learner.max_grad_norm = math.inf
        learner.optimizer.step = lambda: None
        rollout = _rollout([[8] * length for length in lengths], model.config.hidden_size)
        learner.update(samples_of([rollout], advantages[None]))
        gradients.append(torch.cat([p.grad.flatten() for p in learner.parameters if p.grad is not None]).double())
    for size, one in zip(given["micro_batch_sizes"], gradients, strict=True):
        apart = float((one - gradients[0]).norm() / gradients[0].norm())
        yield near(f"gradient with micro-batches of {size}, beside 1", 0.0, apart, 1e-5)


def nothing_to_learn(given: Given) -> Iterator[Seen]:
    """finite metrics, and the weights as they were"""
    for beta in given["kl_coef"]:
        for name, ids, advantage in (("not scored", [8, 9], math.nan), ("without a token", [], 0.0)):
            learner, model = _learner(beta)
            before = [p.detach().clone() for p in learner.parameters]
            rollout = _rollout([ids] * len(given["rewards"]), model.config.hidden_size)
            samples = samples_of([rollout], torch.full((1, len(given["rewards"])), advantage))
            metrics = learner.update(learner.prepare(samples)[0], 0)
            bad = [key for key, value in metrics.items() if value is not None and not math.isfinite(value)]
            yield equal(f"beta {beta}, {name}: metrics that are not finite", [], bad)
            yield equal(f"beta {beta}, {name}: loss", 0.0, metrics["loss"])
            same = all(torch.equal(p, q) for p, q in zip(before, learner.parameters, strict=True))
            yield equal(f"beta {beta}, {name}: weights unchanged", True, same)


def masked_places(given: Given) -> Iterator[Seen]:
    """finite, as if the masked places held 0"""
    values, mask = (
        torch.tensor([[float(v) for v in row] for row in given["logprobs"]]),
        torch.tensor(given["mask"]).bool(),
    )
    advantages, found = torch.tensor(given["advantages"]), []
    for one in (values, torch.where(mask, values, 0.0)):
        logps = one.clone().requires_grad_()
        loss = token_loss(logps, torch.where(mask, one, torch.nan) + 0.1, advantages, mask, 0.2, 0.2)[0].sum()
        loss.backward()
        found.append((float(loss), logps.grad.tolist()))
    yield equal("loss and gradient", found[1], found[0])
    yield equal("finite", True, math.isfinite(found[0][0]) and all(map(math.isfinite, sum(found[0][1], []))))


def advantages(given: Given) -> Iterator[Seen]:
    """the advantages that the case names, exact zeros for equal rewards"""
    groups = given.get("groups") or [given["rewards"]]
    wanted = given["expected"]["advantages"]
    for group, want in zip(groups, wanted if "groups" in given else [wanted], strict=True):
        rewards = torch.tensor([[math.nan if value is None else value for value in group]], dtype=torch.float32)
        found = [None if math.isnan(value) else value for value in group_advantages(rewards)[0].tolist()]
        right = all(
            a == b if b in (None, 0.0) else a is not None and abs(a - b) < 1e-6
            for a, b in zip(found, want, strict=True)
        )
        yield Seen(f"{group}", want, found, right)


def lengths_make_the_mask(given: Given) -> Iterator[Seen]:
    """the mask that the case names"""
    ids = [row[:length] for row, length in zip(given["completion_ids_padded"], given["true_lengths"], strict=True)]
    batch = collate(samples_of([_rollout(ids, 4)], torch.ones(1, len(ids))), with_states=False)
    yield equal("mask", given["expected"]["mask"], batch.mask.int().tolist())


def empty_completion(given: Given) -> Iterator[Seen]:
    """the step completes"""
    rewards = torch.tensor([[float(one["reward"]) for one in given["group"]]])
    found = group_advantages(rewards)
    yield equal("advantages", [-0.5, -0.5, 0.5, 0.5], found[0].tolist())
    learner, model = _learner(0.0)
    metrics = learner.update(
        samples_of([_rollout([one["ids"] for one in given["group"]], model.config.hidden_size)], found)
    )
    yield equal(
        "learned from", sum(bool(one["ids"]) for one in given["group"]), int(metrics["completions/learned_from"])
    )
    yield Seen("gradient norm", "finite", metrics["grad_norm"], math.isfinite(metrics["grad_norm"]))


def kl_gradient(given: Given) -> Iterator[Seen]:
    """a gradient without advantages"""
    learner, model = _learner(given["kl_coef"])
    with torch.no_grad():  # the policy is another one than the reference
        model.lm_head.weight.mul_(1.1)
    samples = samples_of([_rollout([[8, 9], [9, 2]], model.config.hidden_size)], torch.tensor([given["advantages"]]))
    metrics = learner.update(learner.prepare(samples)[0])
    yield Seen("gradient norm", "> 0", metrics["grad_norm"], metrics["grad_norm"] > 0)


def tempered(given: Given) -> Iterator[Seen]:
    """logits, and not log-probabilities, are divided by the temperature"""
    sampling = Sampling(1, 1, temperature=given["temperature"])
    tokens, logps = draw(torch.tensor([given["logits"]]), sampling, torch.zeros(1, dtype=torch.float64))
    yield equal("token", given["sampled_token"], int(tokens[0]))
    yield near("log-probability", given["expected"]["logprob"], float(logps[0]), 1e-6)


EARLIER: dict[str, Check] = {
    "grpo-01": dr_grpo_loss,
    "grpo-02": covered(  # of the two ways to divide, Dr. GRPO has the other one
        "learner/test_update.py::test_micro_batches_do_not_change_the_gradient",
        "learner/test_ranks.py::test_weights_and_metrics_are_those_of_one_rank",
    ),
    "grpo-03": nothing_to_learn,
    "grpo-04": masked_places,
    "grpo-05": advantages,
    "grpo-06": lengths_make_the_mask,
    "grpo-09": advantages,
    "grpo-11": empty_completion,
    "grpo-13": kl_gradient,
    "logprob-01": tempered,
}
