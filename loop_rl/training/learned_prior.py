"""The learned depth prior: a categorical distribution over depths that follows the losses it causes (paper, 4.1, B.3).

Every micro-batch draws a depth r from p = softmax(phi). After an update the prior takes one Adam step on

    -E_n[A log p(r)]  -  entropy_weight H(p)  +  mean_weight (E_p[R] - mean)^2

where E_n weighs the update's micro-batches by their tokens and A is the advantage of a micro-batch's reward over the
earlier updates' baseline. The losses are those that training computed anyway: nothing is run for the prior's sake.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from loop_rl.errors import UserError
from loop_rl.recipe.pretrain import PriorSection, RewardForm
from loop_rl.training.depth_prior import DepthPrior, FrozenPrior, draw_depth, fixed, poisson_lognormal, saved, uniform

WARMUP_UPDATES = 32
FLOOR = 1e-12
#: how much of the running moments an update keeps; the paper leaves the baseline's memory open
MOMENT_DECAY = 0.99


def depth_reward(loss: float, form: RewardForm) -> float:
    """What a micro-batch with this mean cross-entropy (nats per token) is worth; larger is better (paper, B.3)."""
    if form == "ce":
        return -loss
    if form == "log_ce":
        return -math.log(max(loss, FLOOR))
    if form == "exp_ce":
        return -math.exp(min(loss, 700.0))  # past that, float64 overflows
    return math.exp(-loss)


def entropy(p: Tensor) -> Tensor:
    """H(p) in nats; entries of 0 count nothing."""
    return torch.special.entr(p).sum()


def prior_gradient(
    p: Tensor,
    depths: Sequence[int],
    advantages: Sequence[float],
    tokens: Sequence[int],
    mean: float,
    entropy_weight: float,
    mean_weight: float,
) -> Tensor:
    """The objective's gradient with respect to the logits phi of p = softmax(phi); [cap] float64.

    Args:
        p: [cap] float64; p[r - 1] is the probability of depth r.
        depths, advantages, tokens: one entry a micro-batch of the update, over all ranks.
    """
    values = torch.arange(1, len(p) + 1, dtype=p.dtype)
    weights = torch.tensor(tokens, dtype=p.dtype) * torch.tensor(advantages, dtype=p.dtype) / sum(tokens)
    # d log p(r) / d phi = onehot(r) - p
    pull = p * weights.sum()
    pull.index_add_(0, torch.tensor(depths) - 1, -weights)
    # d H / d phi = -p (log p + H)
    spread = torch.special.xlogy(p, p) + p * entropy(p)
    expected = p @ values
    budget = 2.0 * (expected - mean) * p * (values - expected)
    return pull + entropy_weight * spread + mean_weight * budget


class RunningMoments:
    """Exponentially weighted mean and variance of a stream of weighted batches, without start-up bias."""

    def __init__(self) -> None:
        self.weight = self.first = self.second = 0.0

    def add(self, mean: float, square: float) -> None:
        """One update's mean and mean square."""
        self.weight = MOMENT_DECAY * self.weight + 1.0
        self.first += (mean - self.first) / self.weight
        self.second += (square - self.second) / self.weight

    @property
    def deviation(self) -> float:
        """The standard deviation, FLOOR at least."""
        return max(math.sqrt(max(self.second - self.first**2, 0.0)), FLOOR)


class LearnedPrior:
    """Logits over depths 1..cap with their Adam optimizer and the baseline of the losses.

    The first WARMUP_UPDATES updates collect the baseline and leave the logits alone. State is float64.
    """

    def __init__(
        self,
        start: Tensor,
        mean: float,
        entropy_weight: float = 0.0,
        mean_weight: float = 1.0,
        reward: RewardForm = "inverse_perplexity",
        learning_rate: float = 1e-3,
    ) -> None:
        """start: [cap] float64, the distribution to begin with; every entry positive."""
        if not 1.0 < mean < len(start):
            raise UserError(f"prior.mean is {mean}: it must lie strictly between 1 and prior.cap ({len(start)})")
        self.logits = torch.nn.Parameter(start.double().log())
        self.mean, self.entropy_weight, self.mean_weight, self.reward = mean, entropy_weight, mean_weight, reward
        self.optimizer = torch.optim.Adam([self.logits], lr=learning_rate, betas=(0.9, 0.999))
        self.losses, self.rewards = RunningMoments(), RunningMoments()
        self.updates = 0

    @property
    def probabilities(self) -> Tensor:
        """[cap] float64; entry r - 1 is the probability of depth r."""
        return self.logits.detach().softmax(0)

    def draw(self, generator: torch.Generator) -> int:
        """One depth in 1..cap, at the cost of one number of the generator."""
        return draw_depth(self.probabilities, generator)

    def observe(self, depths: Sequence[int], losses: Sequence[float], tokens: Sequence[int]) -> None:
        """Learn from one update's micro-batches.

        Args:
            losses: mean cross-entropy (nats per token) of each micro-batch; an update with one that is not finite, or
                without any token, teaches nothing.
            tokens: tokens that each loss is the mean of.
        """
        if not sum(tokens) or not all(map(math.isfinite, losses)):
            return
        rewards = [depth_reward(loss, self.reward) for loss in losses]
        if self.updates >= WARMUP_UPDATES:
            scale = self.losses.deviation / self.rewards.deviation
            advantages = [scale * (reward - self.rewards.first) for reward in rewards]
            self.logits.grad = prior_gradient(
                self.probabilities, depths, advantages, tokens, self.mean, self.entropy_weight, self.mean_weight
            )
            self.optimizer.step()
        for moments, values in ((self.losses, losses), (self.rewards, rewards)):
            share = [count / sum(tokens) for count in tokens]
            moments.add(
                sum(w * x for w, x in zip(share, values, strict=True)),
                sum(w * x * x for w, x in zip(share, values, strict=True)),
            )
        self.updates += 1

    def state_dict(self) -> dict[str, Any]:
        return {
            "logits": self.logits.detach().clone(),
            "optimizer": self.optimizer.state_dict(),
            "losses": vars(self.losses).copy(),
            "rewards": vars(self.rewards).copy(),
            "updates": self.updates,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises UserError when the state belongs to a prior over other depths."""
        if state["logits"].shape != self.logits.shape:
            raise UserError(
                f"the checkpoint's depth prior has {len(state['logits'])} depths, prior.cap is {len(self.logits)}"
            )
        self.logits.data.copy_(state["logits"])
        self.optimizer.load_state_dict(state["optimizer"])
        vars(self.losses).update(state["losses"])
        vars(self.rewards).update(state["rewards"])
        self.updates = state["updates"]


def make_prior(section: PriorSection) -> DepthPrior:
    """The prior that a recipe's section describes: a starting distribution, learned from there or frozen."""
    if section.name == "fixed":
        if section.learn:
            raise UserError("prior.learn: a fixed depth has nothing to learn; start from poisson_lognormal or uniform")
        return FrozenPrior(fixed(section.mean))
    starts = {
        "poisson_lognormal": lambda: poisson_lognormal(section.mean, section.sigma, section.cap),
        "uniform": lambda: uniform(section.cap),
        "saved": lambda: saved(section.run),
    }
    start = starts[section.name]()
    if not section.learn:
        return FrozenPrior(start)
    return LearnedPrior(
        start, section.mean, section.entropy_weight, section.mean_weight, section.reward, section.learning_rate
    )


def prior_metrics(prior: DepthPrior) -> dict[str, Any]:
    """A prior's state for a row of metrics: mean depth, entropy (nats), and the whole distribution."""
    p = prior.probabilities
    depths = torch.arange(1, len(p) + 1, dtype=p.dtype)
    return {
        "prior/mean": float(p @ depths),
        "prior/entropy": float(entropy(p)),
        "prior/probabilities": [float(f"{x:.6g}") for x in p.tolist()],
    }
