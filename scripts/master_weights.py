"""How far bfloat16 training moves the embedded model, with master weights and without, beside float32.

The same batches of sampled completions and rewards are learned from three times, each from the same weights. Printed
for each: the share of weights that changed, how far they moved, and how far they ended from the float32 run, as a share
of what that one moved. With master weights it is these that are compared; the model is their rounded copy.

With --lora R, adapters of rank R on the bfloat16 model are trained instead, and printed is what of them a sampler sees
that computes with them merged into bfloat16 weights, and one that computes with them beside the weights.
"""

import argparse
import copy
from collections.abc import Mapping
from types import SimpleNamespace

import torch
from torch import Tensor

from loop_rl.data import load_dataset
from loop_rl.fixed_point import parse_estimator
from loop_rl.learner.batch import Sample, collate, samples_of
from loop_rl.learner.objective import group_advantages
from loop_rl.learner.optimizer import make_optimizer, trainable
from loop_rl.learner.scoring import score
from loop_rl.learner.update import Learner, Objective, rollout_weights, trained_weights
from loop_rl.models.adapters import adapted, adapted_layers, merged_weights
from loop_rl.models.loading import load_model
from loop_rl.recipe.rl import DataSection, LoraSection
from loop_rl.rollout.sampler import sample_groups
from loop_rl.rollout.sampling import Sampling
from rewards.gsm8k import gsm8k_reward

PROMPTS, GROUP, LENGTH = 4, 8, 48


def batches(model: torch.nn.Module, tokenizer, count: int) -> list[list[Sample]]:
    """Completions of arithmetic questions with their advantages, `count` batches of PROMPTS groups."""
    examples = load_dataset(DataSection()).train
    sampling = Sampling(GROUP, LENGTH, depth=6, eos_token_ids=(tokenizer.eos_token_id,))
    made = []
    for start in range(0, count * PROMPTS, PROMPTS):
        chosen = examples[start : start + PROMPTS]
        ids = [tokenizer(example.prompt).input_ids for example in chosen]
        rollouts = sample_groups(model, ids, sampling, list(range(start, start + PROMPTS)))
        rewards = []
        for example, rollout in zip(chosen, rollouts, strict=True):
            texts = tokenizer.batch_decode([c.token_ids for c in rollout.completions], skip_special_tokens=True)
            rewards.append(gsm8k_reward([], texts, [], answer=[example.answer] * GROUP))
        made.append(samples_of(rollouts, group_advantages(torch.tensor(rewards))))
    return made


def trained(
    model: torch.nn.Module,
    dtype: torch.dtype,
    masters: bool,
    data: list[list[Sample]],
    updates: int,
    settings: argparse.Namespace,
) -> Tensor:
    """All weights after the updates, as one float32 vector."""
    model = copy.deepcopy(model)
    start: Mapping[Tensor, Tensor] = {p: p.detach() for p in model.parameters()}
    model.to(dtype)
    optim = SimpleNamespace(learning_rate=settings.learning_rate, adam_beta1=0.9, adam_beta2=0.999)
    if masters:
        optimizer = make_optimizer(trainable(model), optim, start, weight_decay=0.0)
    else:
        optimizer = torch.optim.AdamW(trainable(model), lr=settings.learning_rate, weight_decay=0.0)
    learner = Learner(model, parse_estimator(settings.estimator), Objective(LENGTH), optimizer, micro_batch_size=32)
    for update in range(updates):
        learner.update(data[update % len(data)])
    kept = [master for master, _ in getattr(optimizer, "copies", [])] or list(model.parameters())
    return torch.cat([weight.detach().float().flatten() for weight in kept])


def compare_adapters(model: torch.nn.Module, data: list[list[Sample]], settings: argparse.Namespace) -> None:
    """Trains adapters and prints how much of the change merged weights, and logits, show in bfloat16."""
    looped = copy.deepcopy(model).bfloat16()
    start = {name: value.clone() for name, value in looped.state_dict().items()}
    torch.manual_seed(0)
    wrapped = adapted(looped, LoraSection(r=settings.lora))
    optim = SimpleNamespace(learning_rate=settings.learning_rate, adam_beta1=0.9, adam_beta2=0.999)
    optimizer = make_optimizer(trainable(wrapped), optim, weight_decay=0.0)
    learner = Learner(wrapped, parse_estimator(settings.estimator), Objective(LENGTH), optimizer, micro_batch_size=32)
    for update in range(settings.updates):
        learner.update(data[update % len(data)])
    merged = copy.deepcopy(model).bfloat16()
    rounded = {name: value.bfloat16() for name, value in merged_weights(looped).items()}
    names = [name for name in adapted_layers(merged, LoraSection(r=settings.lora))]
    pairs = [(rounded[f"{name}.weight"], start[f"{name}.weight"]) for name in names]
    changed = sum(int((a != b).sum()) for a, b in pairs) / sum(a.numel() for a, _ in pairs)
    merged.load_state_dict(rounded)

    def logps(sampler: torch.nn.Module) -> Tensor:
        batch = collate(data[0], False)
        return score(sampler, batch, parse_estimator("full_bptt"), 1.0).logps[batch.mask].detach()

    learned, seen, before = logps(wrapped), logps(merged), logps(copy.deepcopy(model).bfloat16())
    sent = {"whole model": rollout_weights(wrapped), "adapters": trained_weights(wrapped)}
    print(f"{settings.updates} updates of adapters of rank {settings.lora} at {settings.learning_rate:g}, bfloat16")
    print(f"merged weights that changed: {changed:.1%}")
    print(f"log-probabilities: mean change by training     {float((learned - before).abs().mean()):.2e}")
    print(f"  of the learner and adapters merged: mean |difference| {float((learned - seen).abs().mean()):.2e}")
    for name, weights in sent.items():
        print(f"sent for a step, {name}: {sum(value.nbytes for value in weights.values()):,} bytes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=100, help="updates (default: 100)")
    parser.add_argument("--learning-rate", type=float, default=1e-6, help="AdamW's (default: 1e-6)")
    parser.add_argument("--estimator", default="reuse_neumann4", help="gradient estimator (default: reuse_neumann4)")
    parser.add_argument("--batches", type=int, default=10, help="batches that are taken in turn (default: 10)")
    parser.add_argument("--lora", type=int, metavar="R", help="train adapters of this rank instead of all weights")
    settings = parser.parse_args()
    model, tokenizer = load_model("embedded")
    data = batches(model.eval(), tokenizer, settings.batches)
    if settings.lora:
        compare_adapters(model, data, settings)
        return
    before = torch.cat([p.detach().flatten() for p in model.parameters()])
    exact = trained(model, torch.float32, True, data, settings.updates, settings) - before
    print(f"{settings.updates} updates of {before.numel():,} weights at {settings.learning_rate:g}")
    print(f"{'':28} {'changed':>8} {'moved':>9} {'from the float32 run':>21}")
    for name, masters in (("float32", None), ("bfloat16, master weights", True), ("bfloat16, none", False)):
        start = before if masters is not False else before.bfloat16().float()
        moved = exact
        if masters is not None:
            moved = trained(model, torch.bfloat16, masters, data, settings.updates, settings) - start
        changed, apart = float((moved != 0).double().mean()), float((moved - exact).norm() / exact.norm())
        print(f"{name:28} {changed:>7.1%} {float(moved.norm()):>10.2e} {apart:>20.1%}")


if __name__ == "__main__":
    main()
