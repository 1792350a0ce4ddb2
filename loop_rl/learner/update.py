"""One optimizer update: micro-batches scored and backpropagated, gradients summed over ranks, one guarded step."""

import copy
import dataclasses
import math
import time
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from accelerate import Accelerator
from torch import Tensor

from loop_rl.fixed_point import Estimator
from loop_rl.learner.batch import MicroBatch, Sample, collate, micro_batches
from loop_rl.learner.objective import token_loss
from loop_rl.learner.scoring import Scores, plain, score


@dataclass(frozen=True)
class Objective:
    """Settings of Dr. GRPO; names and meanings are TRL's. `max_completion_length` is L of the loss's 1/(N L)."""

    max_completion_length: int
    temperature: float = 1.0
    epsilon: float = 0.2
    epsilon_high: float | None = None
    beta: float = 0.0
    importance_sampling_cap: float | None = None


class Sums:
    """Sums over tokens, kept over micro-batches and ranks, from which the metrics' means are taken."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}

    def add(self, name: str, values: Tensor, mask: Tensor) -> None:
        kept = torch.where(mask, values.double(), 0.0)
        self.values[name] = self.values.get(name, 0.0) + float(kept.sum())

    def mean(self, name: str, count: str = "tokens") -> float:
        return self.values.get(name, 0.0) / max(self.values.get(count, 0.0), 1.0)

    def reduce(self, accelerator: Accelerator, names: Iterable[str]) -> None:
        """Sum over ranks; every rank names the same figures."""
        if accelerator.num_processes == 1:
            return
        ordered = list(names)
        packed = torch.tensor([self.values.get(name, 0.0) for name in ordered], dtype=torch.float64)
        packed = accelerator.reduce(packed.to(accelerator.device), "sum")
        self.values = dict(zip(ordered, packed.tolist(), strict=True))


_FIGURES = ("learned_from", "tokens", "loss", "ratio", "clipped", "kl", "entropy", "log_ratio")


class Learner:
    """Holds the trained model, its optimizer and, with beta, the reference model (the start of training).

    The gradient is that of the whole batch: every micro-batch's loss is divided by N * L of all ranks, so splitting
    into micro-batches or ranks changes nothing. Completions of zero advantage are counted in N and skipped unless
    beta needs them.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        estimator: Estimator,
        objective: Objective,
        optimizer: torch.optim.Optimizer,
        max_grad_norm: float = 1.0,
        micro_batch_size: int = 16,
        accelerator: Accelerator | None = None,
    ) -> None:
        self.model, self.estimator, self.objective, self.optimizer = model, estimator, objective, optimizer
        self.max_grad_norm, self.micro_batch_size = max_grad_norm, micro_batch_size
        self.accelerator = accelerator or Accelerator(cpu=not torch.cuda.is_available())
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.reference: torch.nn.Module | None = None
        if objective.beta and not hasattr(model, "disable_adapter"):
            self.reference = copy.deepcopy(model).eval().requires_grad_(False)

    def useful(self, samples: list[Sample]) -> list[Sample]:
        """Those that give a gradient: scored, with a token, and with an advantage unless beta asks for all."""
        return [
            s
            for s in samples
            if not math.isnan(s.advantage)
            and len(s.completion.token_ids)
            and (s.advantage != 0.0 or self.objective.beta)
        ]

    def update(self, samples: list[Sample], completions: int | None = None) -> dict[str, float]:
        """Score, backpropagate and step on one batch; every rank calls it with its share (`batch.shares`).

        Args:
            samples: what this rank learns from; those that are not useful are left out.
            completions: N of the loss, the scored completions of all ranks; None: those of `samples`.

        Returns:
            Metrics. `time/update` is scoring + backward (s), `time/optimizer` the rest.
        """
        start = time.perf_counter()
        objective = self.objective
        if completions is None:
            completions = sum(not math.isnan(s.advantage) for s in samples)
        useful = self.useful(samples)
        sums, residuals, ratios = Sums(), [], []
        sums.values["learned_from"] = float(len(useful))
        scale = 1.0 / (max(completions, 1) * objective.max_completion_length)
        self.optimizer.zero_grad(set_to_none=True)
        for rows in micro_batches(useful, self.micro_batch_size):
            batch = collate(rows, self.estimator.reuses)
            scores = self._backward(batch.to(self.accelerator.device), scale, sums)
            if scores.residuals is not None:
                residuals.append(scores.residuals[batch.attention_mask.bool()].float())
            ratios += [float(ratio) for ratio in scores.term_ratios[-1:]]
        self._sum_gradients()
        sums.reduce(self.accelerator, _FIGURES)
        scored_at = time.perf_counter()
        norm, stepped = self._step()
        done = time.perf_counter()
        quantiles = torch.cat(residuals) if residuals else None
        metrics = {
            "loss": sums.values.get("loss", 0.0) * scale,
            "grad_norm": norm,
            "skipped_update": float(not stepped),
            "entropy": sums.mean("entropy"),
            "clip_ratio/region_mean": sums.mean("clipped"),
            "sampling/importance_sampling_ratio/mean": sums.mean("ratio") if sums.values.get("tokens") else 1.0,
            "sampling/sampling_logp_difference/mean": sums.mean("log_ratio"),
            "completions/learned_from": sums.values["learned_from"],
            "time/update": scored_at - start,
            "time/optimizer": done - scored_at,
        }
        if objective.beta:
            metrics["kl"] = sums.mean("kl")
        if quantiles is not None and quantiles.numel():
            metrics["residual/median"] = float(quantiles.median())
            # torch sorts up to 2^24 values; evenly spaced ones stand for more.
            metrics["residual/q90"] = float(quantiles[:: 1 + quantiles.numel() // 2**24].quantile(0.9))
        if ratios:
            metrics["neumann/term_ratio"] = sum(ratios) / len(ratios)
        return metrics

    def gradient_cosine(self, samples: list[Sample]) -> float:
        """Cosine of the estimator's gradient to full BPTT's on one micro-batch, the longest completions; NaN without
        any to learn from. Costs one update of that micro-batch with each; the parameters' gradients stay untouched.
        """
        useful = [s for s in samples if s.advantage and not math.isnan(s.advantage) and len(s.completion.token_ids)]
        if not useful:
            return math.nan
        batch = collate(next(micro_batches(useful, self.micro_batch_size)), self.estimator.reuses)
        batch = batch.to(self.accelerator.device)
        products = []
        for estimator in (self.estimator, Estimator("full_bptt", "bptt")):
            scores = score(self.model, batch, estimator, self.objective.temperature)
            loss = self._loss(scores, batch)[0].sum()
            products.append(torch.autograd.grad(loss, self.parameters, allow_unused=True))
        ours, full = (
            torch.cat([torch.zeros(p.numel()) if g is None else g.flatten().double().cpu() for p, g in pairs])
            for pairs in (zip(self.parameters, product, strict=True) for product in products)
        )
        return float(torch.nn.functional.cosine_similarity(ours.double(), full.double(), dim=0))

    @torch.no_grad()
    def with_old_logps(self, samples: list[Sample]) -> list[Sample]:
        """The samples with the learner's present log-probabilities, for truncated importance sampling over several
        updates of one batch."""
        marked = []
        for rows in micro_batches([s for s in samples if len(s.completion.token_ids)], self.micro_batch_size):
            batch = collate(rows, self.estimator.reuses).to(self.accelerator.device)
            logps = score(self.model, batch, self.estimator, self.objective.temperature).logps.cpu()
            marked += [
                dataclasses.replace(row, old_logps=values[: len(row.completion.token_ids)])
                for row, values in zip(rows, logps, strict=True)
            ]
        return marked + [s for s in samples if not len(s.completion.token_ids)]

    def _backward(self, batch: MicroBatch, scale: float, sums: Sums) -> Scores:
        scores = score(self.model, batch, self.estimator, self.objective.temperature)
        per_token, figures = self._loss(scores, batch)
        self.accelerator.backward(per_token.sum() * scale)
        sums.add("tokens", torch.ones_like(per_token), batch.mask)
        sums.add("loss", per_token.detach(), batch.mask)
        sums.add("entropy", scores.entropy, batch.mask)
        sums.add("log_ratio", (scores.logps.detach() - batch.behaviour_logps).abs(), batch.mask)
        for name, values in figures.items():
            sums.add(name, values, batch.mask)
        return scores

    def _loss(self, scores: Scores, batch: MicroBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """The objective's summands [B, C], and the figures that go with them."""
        objective = self.objective
        return token_loss(
            scores.logps,
            batch.behaviour_logps,
            batch.advantages,
            batch.mask,
            objective.epsilon,
            objective.epsilon if objective.epsilon_high is None else objective.epsilon_high,
            self._reference_logps(batch) if objective.beta else None,
            objective.beta,
            importance_sampling_cap=objective.importance_sampling_cap,
            old_logps=batch.old_logps,
        )

    @torch.no_grad()
    def _reference_logps(self, batch: MicroBatch) -> Tensor:
        replay = Estimator("full_bptt", "bptt")
        if self.reference is not None:
            return score(self.reference, batch, replay, self.objective.temperature).logps
        with self.model.disable_adapter():
            return score(self.model, batch, replay, self.objective.temperature).logps

    def _sum_gradients(self) -> None:
        """Sum over ranks by hand: ranks may hold different numbers of micro-batches, which DDP's hooks can't bear."""
        if self.accelerator.num_processes == 1:
            return
        for p in self.parameters:
            gradient = torch.zeros_like(p) if p.grad is None else p.grad
            p.grad = self.accelerator.reduce(gradient, "sum")

    def _step(self) -> tuple[float, bool]:
        """Clip and step; a gradient that is not finite leaves weights and optimizer untouched."""
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        if not gradients:
            return 0.0, False
        limit = self.max_grad_norm if self.max_grad_norm > 0 else math.inf
        norm = float(torch.nn.utils.clip_grad_norm_(self.parameters, limit))
        if not math.isfinite(norm):
            self.optimizer.zero_grad(set_to_none=True)
            return norm, False
        self.optimizer.step()
        return norm, True


def rollout_weights(model: torch.nn.Module) -> dict[str, Tensor]:
    """The state dict of the plain looped model, LoRA adapters merged into copies of the layers they adapt."""
    base = plain(model)
    if base is model:
        return model.state_dict()
    merged: dict[str, Tensor] = {}
    for name, value in base.state_dict().items():
        if ".lora_" in name or ".modules_to_save." in name:
            continue
        merged[name.replace(".base_layer", "")] = value
    for name, module in base.named_modules():
        if hasattr(module, "get_delta_weight") and hasattr(module, "base_layer"):
            weight = module.base_layer.weight.detach().clone()
            for adapter in module.active_adapters:
                weight += module.get_delta_weight(adapter).detach().to(weight.dtype)
            merged[f"{name}.weight"] = weight
    return merged
