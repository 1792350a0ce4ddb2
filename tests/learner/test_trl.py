"""Our full-BPTT Dr. GRPO loss and gradient against TRL's GRPOTrainer on one fixed batch, in float64 on both sides."""

from types import SimpleNamespace

import pytest
import torch
from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from loop_rl.fixed_point import parse_estimator
from loop_rl.learner.batch import Sample, collate, samples_of
from loop_rl.learner.objective import group_advantages, token_loss
from loop_rl.learner.scoring import score
from loop_rl.models.loading import EMBEDDED
from loop_rl.rollout.sampler import sample_groups
from loop_rl.rollout.sampling import Sampling
from tests.tiny import tiny_model

LENGTH, TEMPERATURE = 7, 0.7
# 512 classes, two rows of a hundred operations each: some thousand roundings of float64, of a loss that cancels.
EXACT = 1e-11


@pytest.mark.parametrize("beta", [0.0, 0.05])
def test_loss_and_gradient_equal_trl(beta: float, tmp_path) -> None:
    # TRL passes no seeds: zero initial states make both sides start alike
    model = tiny_model(torch.float64, initial_state_std=0.0, vocab_size=512)
    prompts = [[5, 6, 7], [8, 9, 10]]
    sampling = Sampling(4, LENGTH, TEMPERATURE, eos_token_ids=tuple(range(20, 80)))
    rollouts = sample_groups(model, prompts, sampling, [1, 2])
    rewards = torch.tensor([[1.0, 0, 0, 1], [0.5, 0, 0, 0]])
    samples = samples_of(rollouts, group_advantages(rewards))
    batch = collate(samples, False)
    torch.manual_seed(1)
    with torch.no_grad():  # move away from the behaviour so that ratios differ from 1 and some are clipped
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.02)
    reference = batch.behaviour_logps.double() + 0.1 * torch.randn(batch.behaviour_logps.shape).double()

    ours = score(model, batch, parse_estimator("full_bptt"), TEMPERATURE).logps
    per_token, metrics = token_loss(
        ours, batch.behaviour_logps, batch.advantages, batch.mask, 0.1, 0.28, reference, beta
    )
    loss = per_token.sum() / (len(samples) * LENGTH)
    loss.backward()
    mine = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    assert metrics["clipped"][batch.mask].any()

    trainer = _trainer(model, tmp_path)
    trainer.beta = beta
    inputs = _inputs(samples, batch, reference)
    seen = _in_float64(model)
    expected = trainer.compute_loss(model, inputs)
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=EXACT)
    scale = max(float(g.abs().max()) for g in mine.values())
    for name, p in model.named_parameters():
        assert (mine[name] - p.grad).abs().max() <= EXACT * scale, name
    # TRL's own head keeps its logits and its sums in float32, so a log-probability is off by some roundings of a logit.
    bound = 8 * torch.finfo(torch.float32).eps * (1 + float(seen.logits.abs().max()) / TEMPERATURE)
    assert (seen.log_probs - ours)[batch.mask].abs().max() <= bound


def _in_float64(model: torch.nn.Module) -> SimpleNamespace:
    """TRL's head computes in float32: lets it be asked, and gives TRL's loss the same quantities in float64.

    Returns what is filled in by each call: the logits, and the log-probabilities of TRL's own head.
    """
    heads, seen = model.forward, SimpleNamespace()

    def forward(*args, fused_lm_head: bool = False, labels: torch.Tensor | None = None, **kwargs):
        if not fused_lm_head or labels is None:
            return heads(*args, **kwargs)
        with torch.no_grad():
            asked = heads(*args, fused_lm_head=True, labels=labels, **kwargs)
        logits = heads(*args, **kwargs).logits[:, :-1]
        seen.logits, seen.log_probs = logits.detach(), asked.log_probs[:, -LENGTH:]
        logps = (logits / TEMPERATURE).log_softmax(-1)
        kept = (labels[:, 1:] != -100).double()
        chosen = logps.gather(-1, labels[:, 1:].clamp(min=0)[..., None])[..., 0] * kept
        return SimpleNamespace(log_probs=chosen, entropy=-(logps.exp() * logps).sum(-1) * kept)

    model.forward = forward
    return seen


def _trainer(model: torch.nn.Module, folder) -> GRPOTrainer:
    args = GRPOConfig(
        output_dir=str(folder),
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        max_grad_norm=0,
        loss_type="dr_grpo",
        scale_rewards="none",
        epsilon=0.1,
        epsilon_high=0.28,
        temperature=TEMPERATURE,
        max_completion_length=LENGTH,
        num_generations=4,
        per_device_train_batch_size=8,
        report_to="none",
    )
    tokenizer = AutoTokenizer.from_pretrained(EMBEDDED)
    trainer = GRPOTrainer(
        model,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=args,
        train_dataset=Dataset.from_dict({"prompt": ["a"] * 8}),
        processing_class=tokenizer,
    )
    trainer.current_gradient_accumulation_steps = 1
    return trainer


def _inputs(samples: list[Sample], batch, reference: torch.Tensor) -> dict[str, torch.Tensor]:
    return {
        "prompt_ids": torch.stack([torch.from_numpy(s.rollout.prompt_ids.copy()) for s in samples]),
        "prompt_mask": torch.ones(len(samples), 3, dtype=torch.long),
        "completion_ids": batch.targets,
        "completion_mask": batch.mask.long(),
        "advantages": batch.advantages,
        "old_per_token_logps": batch.behaviour_logps.double(),
        "ref_per_token_logps": reference,
        "num_items_in_batch": batch.mask.sum(),
    }
