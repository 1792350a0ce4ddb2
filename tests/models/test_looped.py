"""A looped model is a Hugging Face causal model: saved, loaded, generated from, fine-tuned with adapters."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

from loop_rl.models import LoopedForCausalLM
from tests.models.tiny_looped import INJECTIONS, tiny_model, tokens
from tests.rounding import rounding


@pytest.mark.parametrize("injection", INJECTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_saved_and_loaded_bits_are_the_same(injection, dtype, tmp_path):
    model = tiny_model(injection=injection, dtype=dtype, depth=5)
    model.save_pretrained(tmp_path)
    for loader in (LoopedForCausalLM, AutoModelForCausalLM):
        loaded = loader.from_pretrained(tmp_path, dtype=dtype)
        assert type(loaded) is LoopedForCausalLM
        expected = model.state_dict()
        assert loaded.state_dict().keys() == expected.keys()
        assert all(torch.equal(value, expected[name]) for name, value in loaded.state_dict().items())
        ids = tokens(2, 5)
        torch.testing.assert_close(loaded(ids).logits, model(ids).logits, rtol=0, atol=1e-12)
    assert AutoConfig.from_pretrained(tmp_path).to_dict() == model.config.to_dict() | {"_name_or_path": str(tmp_path)}


def test_labels_give_the_cross_entropy_and_leave_the_logits():
    model, ids = tiny_model(), tokens(2, 6)
    labels = ids.clone()
    labels[0, :3] = -100
    out = model(ids, labels=labels)
    assert torch.equal(out.logits, model(ids).logits)
    logps = out.logits.double().log_softmax(-1)
    terms = [-logps[b, t - 1, labels[b, t]] for b in range(2) for t in range(1, 6) if labels[b, t] != -100]
    torch.testing.assert_close(out.loss.double(), torch.stack(terms).mean(), rtol=0, atol=1e-6)


def test_logits_to_keep():
    model, ids = tiny_model(), tokens(2, 6)
    logits = model(ids).logits
    torch.testing.assert_close(model(ids, logits_to_keep=2).logits, logits[:, -2:], rtol=0, atol=1e-12)
    chosen = torch.tensor([0, 3])
    torch.testing.assert_close(model(ids, logits_to_keep=chosen).logits, logits[:, chosen], rtol=0, atol=1e-12)


def test_depth_counts_recurrences():
    model, ids = tiny_model(depth=4), tokens(1, 5)
    inner = model.model
    calls = []
    handle = inner.core[0].register_forward_hook(lambda *_: calls.append(1))
    for depth, expected in ((None, 4), (1, 1), (7, 7)):
        calls.clear()
        model(ids, depth=depth)
        assert len(calls) == expected
    handle.remove()
    assert torch.equal(model(ids).logits, model(ids, depth=4).logits)
    once = model.model(ids, depth=1).endpoint
    twice = model(ids, depth=1, initial_state=once).logits
    torch.testing.assert_close(twice, model(ids, depth=2).logits, rtol=0, atol=1e-12)


@pytest.mark.parametrize("injection", INJECTIONS)
def test_greedy_generation_with_a_cache_equals_plain_forwards(injection):
    model = tiny_model(injection=injection)
    ids = tokens(2, 6)
    mask = torch.ones_like(ids)
    mask[0, :2] = 0
    out = model.generate(
        ids, attention_mask=mask, max_new_tokens=5, do_sample=False, eos_token_id=None, pad_token_id=0,
        return_dict_in_generate=True, output_logits=True,
    )  # fmt: skip
    assert isinstance(out.cache, DynamicCache)
    full = torch.cat((mask, torch.ones(2, 5, dtype=torch.long)), dim=1)
    plain = model(out.sequences, attention_mask=full).logits
    torch.testing.assert_close(torch.stack(out.logits, 1).double(), plain[:, 5:-1], rtol=0, atol=1e-6)
    assert torch.equal(out.sequences[:, 6:], plain[:, 5:-1].argmax(-1))
    uncached = model.generate(
        ids, attention_mask=mask, max_new_tokens=5, do_sample=False, eos_token_id=None, pad_token_id=0, use_cache=False
    )
    assert torch.equal(uncached, out.sequences)


def test_generation_at_another_depth():
    model, ids = tiny_model(), tokens(1, 4)
    out = model.generate(ids, max_new_tokens=4, do_sample=False, eos_token_id=None, pad_token_id=0, depth=6)
    assert torch.equal(out[:, 4:], model(out, depth=6).logits[:, 3:-1].argmax(-1))


@pytest.mark.parametrize("injection", INJECTIONS)
def test_only_adapters_get_gradients(injection):
    model = tiny_model(injection=injection, dtype=torch.float32)
    ids = tokens(2, 6)
    before = model(ids).logits
    bound = 2 * rounding(lambda m: m(ids).logits, model)
    adapted = get_peft_model(model, LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM"))
    torch.testing.assert_close(adapted(ids).logits, before, rtol=0, atol=bound)
    adapted(input_ids=ids, labels=ids).loss.backward()
    given = {name for name, p in adapted.named_parameters() if p.grad is not None}
    assert given and all("lora_" in name for name in given)
    moved = {name for name in given if adapted.get_parameter(name).grad.abs().sum() > 0}
    for part in ("prelude.0.attn.q_proj", "core.0.attn.v_proj", "core.1.mlp.down_proj", "coda.0.mlp.up_proj"):
        assert any(part in name and "lora_B" in name for name in moved), part


def test_every_parameter_gets_a_gradient():
    for injection in INJECTIONS:
        model = tiny_model(injection=injection)
        model(tokens(2, 6), labels=tokens(2, 6)).loss.backward()
        assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0] == []
