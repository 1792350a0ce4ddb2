"""Every tensor that the families' own code computed on their tiny checkpoints, reproduced.

A reference whose name nothing here computes fails the test, and so does one that is computed but not there.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from loop_rl.fixed_point import parse_estimator
from loop_rl.models import LoopedForCausalLM
from loop_rl.models.attention.padded import PaddedContext
from loop_rl.models.exits import exit_distribution, exit_recurrence
from loop_rl.models.families import FAMILIES, load_checkpoint
from loop_rl.models.families.layout import fuse
from tests.rounding import rounding

REFERENCES = Path(__file__).resolve().parents[3] / "../shared/refs"
TOLERANCE = 1e-5  # the references were computed in float32; ours are float64, so the distance is the files' own
Named = Iterator[tuple[str, Tensor]]

pytestmark = pytest.mark.skipif(not REFERENCES.is_dir(), reason=f"no reference checkpoints in {REFERENCES}")


def pieces(model: LoopedForCausalLM, given: dict[str, Tensor], depth: int):
    """Context, prelude output and z0 of the reference's tokens."""
    ids = given["input_ids"]
    context = PaddedContext(model.config, torch.ones_like(ids), dtype=model.dtype, depth=depth)
    prelude = model.model.prelude_forward(ids, context)
    z0 = given.get("initial_state")
    return context, prelude, model.model.draw_initial_state(context.position_ids, None, prelude) if z0 is None else z0


def states(model: LoopedForCausalLM, given: dict[str, Tensor], depth: int) -> Tensor:
    """The state after each recurrence; [depth, B, T, width]."""
    context, prelude, z = pieces(model, given, depth)
    visited = []
    for recurrence in range(depth):
        z = model.model.recur(z, prelude, context, recurrence)
        visited.append(z)
    return torch.stack(visited)


def next_token_losses(logits: Tensor, ids: Tensor) -> Tensor:
    return torch.nn.functional.cross_entropy(logits[:, :-1].transpose(1, 2), ids[:, 1:], reduction="none")


def gradients(model: LoopedForCausalLM, given: dict[str, Tensor], estimator: str, prefix: str) -> Named:
    """Under the family's own names, those that the reference has."""
    model.zero_grad()
    context, prelude, z0 = pieces(model, given, 4)
    z = parse_estimator(estimator).endpoint(lambda z: model.model.recur(z, prelude, context), z0=z0, depth=4)
    logits = model.lm_head(model.model.coda_forward(z, context, prelude))
    next_token_losses(logits, given["input_ids"]).mean().backward()
    ours = {name: p.grad for name, p in model.named_parameters()}
    family = next(family for family in FAMILIES if family.name == model.config.checkpoint_family)
    for entry in family.entries(model.config):
        if f"{prefix}.{entry.theirs}" in given:
            yield f"{prefix}.{entry.theirs}", fuse(entry, ours)


def greedy(model: LoopedForCausalLM, given: dict[str, Tensor], name: str) -> Named:
    """Six tokens through the cache, from a zero state where the family draws one."""
    model.config.initial_state_std = 0.0
    out = model.generate(
        given["input_ids"], max_new_tokens=6, do_sample=False, eos_token_id=None, pad_token_id=0, depth=4,
        return_dict_in_generate=True, output_logits=True,
    )  # fmt: skip
    yield name, out.sequences
    if f"{name}_logits" in given:
        yield f"{name}_logits", torch.stack(out.logits, dim=1)


def prelude_out(model: LoopedForCausalLM, given: dict[str, Tensor]) -> Tensor:
    """What the last part before the injection puts out: the prelude's norm, or its last block."""
    seen = []
    part = getattr(model.model.injection, "norm", model.model.prelude[-1])
    handle = part.register_forward_hook(lambda module, inputs, output: seen.append(output))
    pieces(model, given, 1)
    handle.remove()
    return seen[0]


def common(model: LoopedForCausalLM, given: dict[str, Tensor]) -> Named:
    ids, z0 = given["input_ids"], given.get("initial_state")
    with torch.no_grad():
        for depth in (1, 4, 8):
            yield f"logits_R{depth}", model(ids, depth=depth, initial_state=z0).logits
    yield from gradients(model, given, "full_bptt", "gradR4")


def drawn(model: LoopedForCausalLM, given: dict[str, Tensor]) -> Named:
    """What the families whose state is drawn have in common."""
    yield from common(model, given)
    ids, z0 = given["input_ids"], given["initial_state"]
    yield "loss_R4", model(ids, labels=ids, depth=4, initial_state=z0).loss
    yield "prelude_out", prelude_out(model, given)
    yield "raw_states", states(model, given, 8)
    yield from gradients(model, given, "truncated_bptt2", "gradTBPTT2of4")
    yield from greedy(model, given, "greedy_zero_R4")


def huginn(model: LoopedForCausalLM, given: dict[str, Tensor]) -> Named:
    for depth in (1, 4, 8):
        out = model.model(given["input_ids"], depth=depth, initial_state=given["initial_state"])
        yield f"latents_R{depth}", model.model.norm(out.endpoint)
        yield f"head_R{depth}", out.last_hidden_state
    yield from drawn(model, given)


def retro_llama(model: LoopedForCausalLM, given: dict[str, Tensor]) -> Named:
    for depth in (1, 4, 8):
        out = model.model(given["input_ids"], depth=depth, initial_state=given["initial_state"])
        yield f"latents_R{depth}", out.endpoint
    yield from drawn(model, given)


def parcae(model: LoopedForCausalLM, given: dict[str, Tensor]) -> Named:
    yield from drawn(model, given)


def ouro(model: LoopedForCausalLM, given: dict[str, Tensor]) -> Named:
    ids = given["input_ids"]
    yield from common(model, given)
    for depth in (1, 4, 8):
        visited = states(model, given, depth)
        yield f"states_R{depth}", visited
        yield f"gate_logits_R{depth}", model.model.exit_gate(visited)[..., 0]
    visited = states(model, given, 4)
    pdf = model.model.exit_distribution(ids, depth=4)
    assert torch.equal(pdf, exit_distribution(model.model.exit_gate(visited)[..., 0]))
    yield "exit_pdf_R4", pdf
    early = exit_recurrence(pdf, 0.5)
    yield "exit_step_thr0.5_R4", early
    logits = model.lm_head(visited)
    yield "logits_thr0.5_R4", logits.gather(0, early[None, ..., None].expand(1, -1, -1, logits.shape[-1]))[0]
    yield "logits_default_thr1.0_R4", model(ids, depth=4).logits
    weighted = torch.einsum("btr,rbtv->btv", pdf, logits)
    yield "logits_weighted_R4", weighted
    yield "loss_weighted_R4", next_token_losses(weighted, ids).mean()
    yield "loss_last_R4", model(ids, labels=ids, depth=4).loss
    left = model(given["leftpad_input_ids"], attention_mask=given["leftpad_mask"], depth=4).logits
    pads = ~given["leftpad_mask"].bool()
    yield "leftpad_logits_R4", torch.where(pads[..., None], given["leftpad_logits_R4"], left)
    yield from greedy(model, given, "greedy_R4")


GIVEN = {"input_ids", "initial_state", "leftpad_input_ids", "leftpad_mask"}


@pytest.mark.parametrize("compute", [huginn, retro_llama, ouro, parcae], ids=lambda f: f.__name__)
def test_every_reference_is_reproduced(compute):
    folder = REFERENCES / compute.__name__
    given = {
        name: value.double() if value.is_floating_point() else value
        for name, value in load_file(folder / "reference.safetensors").items()
    }
    model = load_checkpoint(folder).double()
    computed, errors = set(), {}
    for name, ours in compute(model, given):
        expected = given[name]
        assert ours.shape == expected.shape, name
        computed.add(name)
        scale = expected.double().abs().max()
        errors[name] = ((ours.double() - expected.double()).abs().max() / scale).item()
        print(f"{compute.__name__} {name} {errors[name]:.1e}")
    assert computed == given.keys() - GIVEN
    assert {name: error for name, error in errors.items() if not error <= TOLERANCE} == {}
    tokens = {name for name, value in given.items() if not value.is_floating_point()} - GIVEN
    assert all(errors[name] == 0 for name in tokens)


@pytest.mark.parametrize("family", ["huginn", "retro_llama", "ouro", "parcae"])
def test_float32_is_float64_but_for_rounding(family):
    folder = REFERENCES / family
    model, ids = load_checkpoint(folder), load_file(folder / "reference.safetensors")["input_ids"]
    with torch.no_grad():
        difference = model(ids, depth=4).logits - load_checkpoint(folder).double()(ids, depth=4).logits
    assert difference.abs().max() <= rounding(lambda exact: exact(ids, depth=4).logits, model)
