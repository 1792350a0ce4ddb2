"""What the families' own code gets wrong or lacks, on every layout: padding, caches, one model to sample and learn."""

import copy

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model

from loop_rl.fixed_point import parse_estimator
from loop_rl.learner.batch import collate, samples_of
from loop_rl.learner.scoring import score
from loop_rl.models import LoopedForCausalLM
from loop_rl.models.adapters import merged_weights
from loop_rl.models.attention.padded import PaddedContext
from loop_rl.models.families import load_checkpoint
from loop_rl.rollout.sampler import sample_groups
from loop_rl.rollout.sampling import Sampling
from tests.models.families.synthetic import CHECKPOINTS, VOCABULARY

TOLERANCE = 1e-11  # some thousand roundings of 1e-16
LENGTHS = (9, 5, 1)


@pytest.fixture(scope="module", params=CHECKPOINTS)
def model(request, tmp_path_factory) -> LoopedForCausalLM:
    checkpoint = CHECKPOINTS[request.param]()
    return load_checkpoint(checkpoint.write(tmp_path_factory.mktemp(request.param))).double()


def rows() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randint(VOCABULARY, (length,), generator=generator) for length in LENGTHS]


def close(ours: torch.Tensor, expected: torch.Tensor) -> None:
    assert (ours - expected).abs().max() <= TOLERANCE * expected.abs().max()


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_row_alone_and_padded_in_a_batch(model, side):
    width = max(LENGTHS) + 2
    ids, mask = torch.full((len(LENGTHS), width), 7), torch.zeros(len(LENGTHS), width, dtype=torch.long)
    for index, row in enumerate(rows()):
        at = slice(width - len(row), width) if side == "left" else slice(0, len(row))
        ids[index, at], mask[index, at] = row, 1
    with torch.no_grad():
        batch = model(ids, attention_mask=mask)
        cached = model(ids, attention_mask=mask, use_cache=True)
        for index, row in enumerate(rows()):
            alone = model(row[None]).logits[0]
            close(batch.logits[index][mask[index].bool()], alone)
            close(cached.logits[index][mask[index].bool()], alone)


def test_64_cached_tokens_equal_the_plain_forward(model):
    ids = torch.full((2, 6), 7)
    ids[0, 2:], ids[1] = rows()[0][:4], rows()[0][:6]
    mask = torch.ones_like(ids)
    mask[0, :2] = 0
    out = model.generate(
        ids, attention_mask=mask, max_new_tokens=64, do_sample=False, eos_token_id=None, pad_token_id=0,
        return_dict_in_generate=True, output_logits=True,
    )  # fmt: skip
    full = torch.cat((mask, torch.ones(2, 64, dtype=torch.long)), dim=1)
    with torch.no_grad():
        plain = model(out.sequences, attention_mask=full).logits[:, 5:-1]
    bound = torch.finfo(torch.float32).eps * plain.abs().max()  # generate returns float32
    assert (torch.stack(out.logits, dim=1) - plain).abs().max() <= bound
    assert len(out.cache.layers) == model.config.bank_count(model.config.depth)


def test_labels_leave_the_logits(model):
    ids = rows()[0][None]
    with torch.no_grad():
        assert torch.equal(model(ids, labels=ids).logits, model(ids).logits)


def test_a_later_token_changes_nothing_before_it(model):
    ids = rows()[0][None]
    changed = ids.clone()
    changed[0, 6] = (ids[0, 6] + 1) % VOCABULARY
    with torch.no_grad():
        before, after = model(ids).logits[0], model(changed).logits[0]
    assert torch.equal(before[:6], after[:6]) and not torch.isclose(before[6], after[6]).all()


def test_greedy_sampling_and_generate_agree(model):
    std, model.config.initial_state_std = model.config.initial_state_std, 0.0  # their seeds differ
    prompts = [row.tolist() for row in rows()]
    rollouts = sample_groups(model, prompts, Sampling(1, 12, temperature=0), [0] * len(prompts))
    for prompt, rollout in zip(prompts, rollouts, strict=True):
        ids = torch.tensor([prompt])
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False, eos_token_id=None
        )
        np.testing.assert_array_equal(rollout.completions[0].token_ids, out[0, len(prompt) :])
    model.config.initial_state_std = std


ESTIMATORS = ("full_bptt", "truncated_bptt2", "recompute_neumann3", "reuse_neumann3_tail", "reuse_implicit")


@pytest.mark.parametrize("name", ESTIMATORS)
def test_the_learner_scores_what_the_sampler_assigned(model, name):
    estimator = parse_estimator(name)
    sampling = Sampling(2, 8, temperature=0.8, eos_token_ids=(2, 3, 4))
    rollouts = sample_groups(model, [row.tolist() for row in rows()], sampling, [3, 4, 5])
    samples = samples_of(rollouts, torch.ones(len(LENGTHS), 2))
    model.zero_grad()
    for rows_of_batch in (samples[:4], samples[4:]):
        batch = collate(rows_of_batch, estimator.needs_states)
        scores = score(model, batch, estimator, 0.8)
        bound = torch.finfo(torch.float32).eps * batch.behaviour_logps.abs().max()  # the record is in float32
        assert (scores.logps - batch.behaviour_logps)[batch.mask].abs().max() <= bound
        scores.logps[batch.mask].sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
    without = {n for n, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0}
    # the exit gate takes no part in the loss, and a start from the embedding is forgotten where the loop is cut short
    allowed = {n for n in without if "exit_gate" in n}
    if model.config.initial_state == "embedding" and name != "full_bptt":
        allowed |= {"model.embed_tokens.weight"}
    assert without == allowed


def test_estimators_approach_full_bptt_at_a_deep_endpoint(model):
    """The cores contract, so that at depth 24 the endpoint's series and backpropagation agree; core weights only."""
    if model.config.injection == "none":
        pytest.skip("a loop that contracts and is given nothing forgets its input; this one does not contract")
    sampling = Sampling(2, 6, depth=24)
    rollouts = sample_groups(model, [row.tolist() for row in rows()], sampling, [3, 4, 5])
    samples = samples_of(rollouts, torch.ones(len(LENGTHS), 2))

    def gradient(name: str) -> torch.Tensor:
        estimator = parse_estimator(name)
        model.zero_grad()
        batch = collate(samples, estimator.needs_states)
        score(model, batch, estimator, 1.0).logps[batch.mask].sum().backward()
        return torch.cat([p.grad.flatten() for p in model.model.core.parameters()])

    full = gradient("full_bptt")
    errors = [((gradient(f"reuse_neumann{k}") - full).norm() / full.norm()).item() for k in (1, 4, 12)]
    assert errors == sorted(errors, reverse=True) and errors[-1] < 0.03


def test_adapters_on_every_linear_layer_take_part_and_merge(model):
    """Also the injection's and the readout's; the exit gate is outside the loss."""
    ids = rows()[0][None]
    before = model(ids).logits
    adapted = get_peft_model(copy.deepcopy(model), LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM"))
    close(adapted(input_ids=ids).logits, before)
    adapted(input_ids=ids, labels=ids).loss.backward()
    moved = [
        n for n, p in adapted.named_parameters() if "lora_B" in n and p.grad is not None and p.grad.abs().sum() > 0
    ]
    linear = [n for n, m in model.named_modules() if isinstance(m, torch.nn.Linear) and n not in ("lm_head",)]
    assert len(moved) == len([n for n in linear if "exit_gate" not in n])
    with torch.no_grad():
        for name, p in adapted.named_parameters():
            if "lora_B" in name:
                p.add_(0.05 * torch.randn(p.shape, generator=torch.Generator().manual_seed(len(name))))
    merged = copy.deepcopy(model)
    merged.load_state_dict(merged_weights(adapted.get_base_model()))
    with torch.no_grad():
        close(merged(ids).logits, adapted(input_ids=ids).logits)
        assert (merged(ids).logits - before).abs().max() > 1e-2


def test_bfloat16_keeps_its_rotary_tables_in_float32(model):
    context = PaddedContext(model.config, torch.ones(1, 90), dtype=torch.bfloat16)
    exact = PaddedContext(model.config, torch.ones(1, 90), dtype=torch.float64)
    bound = 90 * 2 * torch.finfo(torch.float32).eps  # of the largest angle, at position 89
    assert (context.cos - exact.cos).abs().max() < bound and (context.sin - exact.sin).abs().max() < bound
