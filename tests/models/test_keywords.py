"""Every keyword of a forward pass is taken or refused; only a cache that grows is taken."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import DynamicCache, StaticCache

from loop_rl.errors import UserError
from tests.models.tiny_looped import tiny_model, tokens


@pytest.fixture
def model():
    return tiny_model()


def test_past_key_values_is_the_cache(model):
    ids, cache = tokens(2, 7), DynamicCache()
    full = model(ids).logits
    first = model(ids[:, :4], past_key_values=cache, use_cache=True)
    assert first.past_key_values is cache and cache.get_seq_length() == 4
    steps = [first.logits, *(model(ids[:, t : t + 1], past_key_values=cache).logits for t in range(4, 7))]
    torch.testing.assert_close(torch.cat(steps, dim=1), full, rtol=0, atol=1e-12)
    with pytest.raises(TypeError, match="two names of one argument"):
        model(ids, cache=cache, past_key_values=cache)


@pytest.mark.parametrize(
    "keyword",
    [
        {"num_steps": 3},
        {"depht": 3},
        {"output_attentions": True},
        {"output_hidden_states": True},
        {"is_causal": False},
        {"inputs_embeds": torch.zeros(1, 3, 8)},
        {"cu_seq_lens_q": torch.tensor([0, 3])},
    ],
)
def test_what_would_be_ignored_is_refused(model, keyword):
    name = next(iter(keyword))
    for part in (model, model.model, get_peft_model(model, LoraConfig(r=1, target_modules=["q_proj"]))):
        with pytest.raises(TypeError, match=rf"{name}=.*it takes input_ids, .*depth"):
            part(tokens(1, 3), **keyword)


def test_what_asks_for_nothing_is_taken(model):
    ids = tokens(2, 5)
    logits = model(ids).logits
    nothing = dict(output_attentions=None, output_hidden_states=False, inputs_embeds=None, is_causal=True)
    assert torch.equal(model(ids, token_type_ids=torch.zeros_like(ids), return_dict=True, **nothing).logits, logits)
    out = model(ids, return_dict=False)
    assert isinstance(out, tuple) and torch.equal(out[0], logits)


def test_the_loss_s_keywords_reach_it(model):
    ids = tokens(2, 5)
    mean = model(ids, labels=ids).loss
    torch.testing.assert_close(model(ids, labels=ids, num_items_in_batch=2).loss, mean * 4)


def test_generate_refuses_unknown_names_and_static_caches(model):
    ids = tokens(1, 3)
    settings = dict(max_new_tokens=2, do_sample=False, eos_token_id=None, pad_token_id=0)
    with pytest.raises(ValueError, match="num_steps"):
        model.generate(ids, num_steps=3, **settings)
    with pytest.raises(UserError, match="StaticCache has one slot a layer.*leave cache_implementation out"):
        model.generate(ids, cache_implementation="static", **settings)
    with pytest.raises(UserError, match="use a DynamicCache"):
        model(ids, cache=StaticCache(config=model.config, max_cache_len=8))


def test_generation_with_adapters_equals_plain_forwards(model):
    torch.manual_seed(0)
    adapted = get_peft_model(
        model, LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM", init_lora_weights=False)
    )
    ids = tokens(2, 4)
    out = adapted.generate(input_ids=ids, max_new_tokens=4, do_sample=False, eos_token_id=None, pad_token_id=0, depth=3)
    assert torch.equal(out[:, 4:], adapted(input_ids=out, depth=3).logits[:, 3:-1].argmax(-1))
