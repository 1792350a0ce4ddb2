"""Dr. GRPO as pure functions (DESIGN: mathematics; TRL's loss_type="dr_grpo", scale_rewards="none")."""

import torch
from torch import Tensor


def group_advantages(rewards: Tensor) -> Tensor:
    """A_i = r_i - mean of the group's scored rewards; no division by the standard deviation.

    Args:
        rewards: float [groups, G]; NaN where a completion was not scored.

    Returns:
        float64 [groups, G]; NaN where the reward is. A group of equal rewards gets exact zeros.
    """
    rewards = rewards.double()
    advantages = rewards - rewards.nanmean(dim=-1, keepdim=True)
    scored = ~rewards.isnan()
    highest = torch.where(scored, rewards, -torch.inf).amax(-1, keepdim=True)
    lowest = torch.where(scored, rewards, torch.inf).amin(-1, keepdim=True)
    return torch.where(scored & (highest == lowest), 0.0, advantages)


def k3_kl(logps: Tensor, reference_logps: Tensor) -> Tensor:
    """Per-token estimate of KL(policy || reference): exp(d) - d - 1, d = reference - policy; [...] -> [...]."""
    difference = reference_logps - logps
    return difference.exp() - difference - 1.0


def token_loss(
    logps: Tensor,
    behaviour_logps: Tensor,
    advantages: Tensor,
    mask: Tensor,
    epsilon: float,
    epsilon_high: float,
    reference_logps: Tensor | None = None,
    beta: float = 0.0,
    importance_sampling_cap: float | None = None,
    old_logps: Tensor | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The clipped surrogate of every token, masked; sum it and divide by N * L for the Dr. GRPO loss.

    -min(rho A, clip(rho, 1 - epsilon, 1 + epsilon_high) A) + beta rho k3, with rho = exp(logp - behaviour logp). The
    factor rho on the KL term makes its gradient unbiased off policy, as in TRL (use_bias_correction_kl). With
    `importance_sampling_cap`, rho is taken to the learner's own `old_logps` and the sampler's mismatch enters as a
    weight min(exp(old - behaviour), cap) without gradient (truncated importance sampling).

    Args:
        logps, behaviour_logps, reference_logps, old_logps: [B, C]; old_logps None is the batch's first update.
        advantages: [B]. mask: bool [B, C].
        Values at masked places may be anything, NaN included.

    Returns:
        [B, C], zero where masked, and detached per-token values for the metrics.
    """
    zero = torch.zeros_like(logps)
    logps = torch.where(mask, logps, zero)
    behaviour_logps = torch.where(mask, behaviour_logps.to(logps.dtype), zero)
    anchor, weight = behaviour_logps, None
    if importance_sampling_cap is not None:
        anchor = torch.where(mask, (logps if old_logps is None else old_logps).detach(), zero)
        weight = (anchor - behaviour_logps).exp().clamp(max=importance_sampling_cap)
    ratio = (logps - anchor).exp()
    clipped = ratio.clamp(1.0 - epsilon, 1.0 + epsilon_high)
    signed = advantages.to(logps.dtype)[:, None]
    loss = -torch.min(ratio * signed, clipped * signed)
    if weight is not None:
        loss = loss * weight
    metrics = {
        "ratio": (logps - behaviour_logps).exp().detach(),
        "clipped": ((ratio < 1.0 - epsilon) & (signed < 0) | (ratio > 1.0 + epsilon_high) & (signed > 0)).detach(),
    }
    if reference_logps is not None and beta:
        kl = k3_kl(logps, torch.where(mask, reference_logps.to(logps.dtype), zero))
        loss = loss + beta * ratio * kl
        metrics["kl"] = kl.detach()
    return torch.where(mask, loss, zero), metrics
