"""One optimizer update: micro-batches scored and backpropagated, gradients summed over ranks, one guarded step."""

import copy
import dataclasses
import logging
import math
import time
from dataclasses import dataclass

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor

from loop_rl.fixed_point import Estimator, FullBPTT
from loop_rl.learner.batch import MicroBatch, Sample, collate, micro_batches
from loop_rl.learner.metrics import Measurements, Metrics, cosine
from loop_rl.learner.objective import token_loss
from loop_rl.learner.optimizer import trainable
from loop_rl.learner.scoring import Scores, plain, score, with_initial_states

log = logging.getLogger(__name__)

_FULL_BPTT = FullBPTT()


@dataclass(frozen=True)
class Objective:
    """Settings of Dr. GRPO; names and meanings are TRL's. `max_completion_length` is L of the loss's 1/(N L)."""

    max_completion_length: int
    temperature: float = 1.0
    epsilon: float = 0.2
    epsilon_high: float | None = None
    beta: float = 0.0
    importance_sampling_cap: float | None = None


class Learner:
    """Holds the trained model, its optimizer and, with beta, the reference model (the start of training).

    The gradient is that of the whole batch: every micro-batch's loss is divided by N * L of all ranks, so splitting
    into micro-batches or ranks changes nothing. Completions of zero advantage are counted in N and skipped unless
    beta needs them. The model is put in evaluation mode: dropout, which the sampler has not, would make ratios differ
    from 1 without any change of the weights.
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
        self.model, self.estimator, self.objective, self.optimizer = model.eval(), estimator, objective, optimizer
        self.max_grad_norm, self.micro_batch_size = max_grad_norm, micro_batch_size
        self.accelerator = accelerator or Accelerator(cpu=not torch.cuda.is_available())
        self.parameters = trainable(model)
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

    def prepare(self, samples: list[Sample], iterations: int = 1) -> tuple[list[Sample], Metrics]:
        """The useful samples with what stays the same over the updates of their batch, computed once; and its times.

        That is the reference model's log-probabilities, with beta (`time/reference`), and the learner's own, for
        truncated importance sampling over several iterations (`time/old_logps`).
        """
        samples, metrics = self.useful(samples), {}
        if self.objective.beta:
            start = self._clock()
            samples = self._marked(samples, "reference_logps")
            metrics["time/reference"] = self._clock() - start
        if iterations > 1 and self.objective.importance_sampling_cap is not None:
            start = self._clock()
            samples = self._marked(samples, "old_logps")
            metrics["time/old_logps"] = self._clock() - start
        return samples, metrics

    def update(self, samples: list[Sample], completions: int | None = None) -> Metrics:
        """Score, backpropagate and step on one batch; every rank calls it with its share (`batch.shares`).

        Args:
            samples: what this rank learns from, with beta `prepare`d; those that are not useful are left out.
            completions: N of the loss, the scored completions of all ranks; None: those of `samples`.

        Returns:
            Metrics of all ranks, the same on each; None where one is undefined, as most are when nothing is learned.
            Times in seconds, the longest rank's: `time/update` is scoring + backward, `time/collate` making the
            micro-batches and their z0, `time/optimizer` summing gradients over ranks, clipping and stepping.
            `skipped_update` is 1 when the weights stayed: no rank had anything to learn from, or the gradient was not
            finite. `completions/learned_tokens` are the tokens that `time/update` was spent on.

        Raises:
            ValueError: beta, and samples without the reference model's log-probabilities.
        """
        if completions is None:
            completions = sum(not math.isnan(s.advantage) for s in samples)
        useful = self.useful(samples)
        scale = 1.0 / (max(completions, 1) * self.objective.max_completion_length)
        measured = Measurements()
        measured.sums["learned_from"] = float(len(useful))
        self.optimizer.zero_grad(set_to_none=True)
        for rows in micro_batches(useful, self.micro_batch_size):
            start = self._clock()
            batch = self._collated(rows, self.estimator)
            collated = self._clock()
            scores = self._backward(batch, scale, measured)
            done = self._clock()
            measured.took("collate", collated - start)
            measured.took("update", done - collated)
            measured.residuals.append(scores.residuals()[batch.attention_mask.bool()].float().cpu().numpy())
            for name, norms in zip(("last_term", "term_before"), scores.last_terms, strict=False):
                measured.add(name, norms.double().square())
        start = self._clock()
        measured = measured.gathered()
        norm = self._step() if measured.sums["learned_from"] else None
        measured.took("optimizer", self._clock() - start)
        return self._metrics(measured, scale, norm)

    def gradient_cosine(self, samples: list[Sample]) -> float | None:
        """Cosine of the estimator's gradient to full BPTT's on one micro-batch, the longest completions; None without
        any to learn from. Costs one update of that micro-batch with each; the parameters' gradients stay untouched.
        """
        useful = [s for s in self.useful(samples) if s.advantage]
        if not useful:
            return None
        rows = next(micro_batches(useful, self.micro_batch_size))
        if self.objective.beta:
            rows = self._marked(rows, "reference_logps")
        gradients = []
        for estimator in (self.estimator, _FULL_BPTT):
            batch = self._collated(rows, estimator)
            loss = self._loss(score(self.model, batch, estimator, self.objective.temperature), batch)[0].sum()
            gradients.append(torch.autograd.grad(loss, self.parameters, allow_unused=True))
        return cosine(*gradients)

    @torch.no_grad()
    def replay_difference(self, samples: list[Sample]) -> float | None:
        """Mean over tokens of |log-probability replayed from z0 - the sampler's|, on one micro-batch, the longest
        completions; None without any.

        An estimator that reuses states starts from the sampler's own, so that `sampling/` can't show a difference that
        lies before the endpoint: other weights or another initial state in the sampler, or states that got lost.
        """
        rows = [s for s in samples if len(s.completion.token_ids)]
        if not rows:
            return None
        batch = self._collated(next(micro_batches(rows, self.micro_batch_size)), _FULL_BPTT)
        logps = score(self.model, batch, _FULL_BPTT, self.objective.temperature).logps
        return float((logps - batch.behaviour_logps)[batch.mask].abs().double().mean())

    def _collated(self, rows: list[Sample], estimator: Estimator) -> MicroBatch:
        batch = collate(rows, estimator.needs_states).to(self.accelerator.device)
        return with_initial_states(self.model, batch, estimator)

    @torch.no_grad()
    def _marked(self, samples: list[Sample], name: str) -> list[Sample]:
        """The samples, each with its `old_logps` or `reference_logps`."""
        own = name == "old_logps"
        estimator = self.estimator if own else _FULL_BPTT
        found: dict[int, Tensor] = {}
        for rows in micro_batches(samples, self.micro_batch_size):
            batch = self._collated(rows, estimator)
            for row, logps in zip(rows, self._logps(batch, estimator, own).cpu(), strict=True):
                found[id(row)] = logps[: len(row.completion.token_ids)]
        return [dataclasses.replace(sample, **{name: found[id(sample)]}) for sample in samples]

    def _logps(self, batch: MicroBatch, estimator: Estimator, own: bool) -> Tensor:
        """The learner's, or the reference model's."""
        model = self.model if own or self.reference is None else self.reference
        if own or self.reference is not None:
            return score(model, batch, estimator, self.objective.temperature).logps
        with self.model.disable_adapter():
            return score(model, batch, estimator, self.objective.temperature).logps

    def _backward(self, batch: MicroBatch, scale: float, measured: Measurements) -> Scores:
        scores = score(self.model, batch, self.estimator, self.objective.temperature)
        per_token, parts = self._loss(scores, batch)
        self.accelerator.backward(per_token.sum() * scale)
        measured.add("tokens", batch.mask)
        measured.add("loss", per_token.detach(), batch.mask)
        measured.add("entropy", scores.entropy, batch.mask)
        measured.add("log_ratio", (scores.logps.detach() - batch.behaviour_logps).abs(), batch.mask)
        for name, values in parts.items():
            measured.add(name, values, batch.mask)
        return scores

    def _loss(self, scores: Scores, batch: MicroBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """The objective's summands [B, C], and what is measured of them, per token."""
        objective = self.objective
        if objective.beta and batch.reference_logps is None:
            raise ValueError("beta needs the reference model's log-probabilities: `prepare` the samples first")
        return token_loss(
            scores.logps,
            batch.behaviour_logps,
            batch.advantages,
            batch.mask,
            objective.epsilon,
            objective.epsilon if objective.epsilon_high is None else objective.epsilon_high,
            batch.reference_logps,
            objective.beta,
            importance_sampling_cap=objective.importance_sampling_cap,
            old_logps=batch.old_logps,
        )

    def _sum_gradients(self) -> None:
        """Sum over ranks by hand: ranks may hold different numbers of micro-batches, which DDP's hooks can't bear.

        A parameter without a gradient on any rank stays without, so that the optimizer leaves it and its moments.
        """
        if self.accelerator.num_processes == 1:
            return
        held = gather_object([[p.grad is not None for p in self.parameters]])
        for p, anywhere in zip(self.parameters, map(any, zip(*held, strict=True)), strict=True):
            if anywhere:
                # float32 where master weights are kept, whatever the parameter's dtype
                dtype = getattr(p, "grad_dtype", None) or p.dtype
                gradient = torch.zeros_like(p, dtype=dtype) if p.grad is None else p.grad
                p.grad = self.accelerator.reduce(gradient, "sum")

    def _step(self) -> float | None:
        """Sum over ranks, clip and step; the norm. A gradient that is not finite leaves weights and moments: None."""
        self._sum_gradients()
        limit = self.max_grad_norm if self.max_grad_norm > 0 else math.inf
        norm = float(torch.nn.utils.clip_grad_norm_(self.parameters, limit))
        if not math.isfinite(norm):
            log.warning("an update was skipped: its gradient is not finite")
            self.optimizer.zero_grad(set_to_none=True)
            return None
        self.optimizer.step()
        return norm

    def _metrics(self, measured: Measurements, scale: float, norm: float | None) -> Metrics:
        metrics: Metrics = {
            "loss": measured.sums.get("loss", 0.0) * scale,
            "grad_norm": norm,
            "skipped_update": float(norm is None),
            "entropy": measured.ratio("entropy"),
            "clip_ratio/region_mean": measured.ratio("clipped"),
            "sampling/importance_sampling_ratio/mean": measured.ratio("ratio"),
            "sampling/sampling_logp_difference/mean": measured.ratio("log_ratio"),
            "residual/median": measured.quantile(0.5),
            "residual/q90": measured.quantile(0.9),
            "completions/learned_from": measured.sums["learned_from"],
            "completions/learned_tokens": measured.sums.get("tokens", 0.0),
            **{f"time/{name}": measured.seconds.get(name, 0.0) for name in ("update", "collate", "optimizer")},
        }
        if self.objective.beta:
            metrics["kl"] = measured.ratio("kl")
        if self.estimator.vjps != 0:
            squares = measured.ratio("last_term", "term_before")
            metrics["neumann/term_ratio"] = None if squares is None else math.sqrt(squares)
        return metrics

    def _clock(self) -> float:
        """Seconds, once the device has done all that it was asked."""
        if self.accelerator.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()


def rollout_weights(model: torch.nn.Module) -> dict[str, Tensor]:
    """What a sampler computes with: the looped model's state dict, LoRA adapters beside the layers they adapt."""
    return plain(model).state_dict()


def trained_weights(model: torch.nn.Module) -> dict[str, Tensor]:
    """Those of the rollout weights that an update may change: all of them, or the adapters."""
    frozen = {n for n, p in plain(model).named_parameters(remove_duplicate=False) if not p.requires_grad}
    return {name: value for name, value in rollout_weights(model).items() if name not in frozen}
