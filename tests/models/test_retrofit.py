"""Retrofitting: the looped model at depth 1 against transformers' Llama, layers left out or not; what is refused."""

import copy
import json

import pytest
import torch
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
)

from loop_rl.cli import main
from loop_rl.commands.retrofit import layers
from loop_rl.diagnosis.retrofitting import mean_loss
from loop_rl.errors import UserError
from loop_rl.models.loading import EMBEDDED, load_model
from loop_rl.models.retrofit import INJECTIONS, Cut, retrofit, retrofit_config
from tests.rounding import rounding

SIZES = dict(
    vocab_size=60,
    hidden_size=24,
    intermediate_size=40,
    num_hidden_layers=6,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
    initializer_range=0.3,
    rms_norm_eps=1e-5,
)
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
KINDS = {
    "plain": dict(),
    "llama3 rope, tied head": dict(rope_parameters=LLAMA3, tie_word_embeddings=True),
    "wide heads, another theta": dict(head_dim=10, rope_parameters={"rope_type": "default", "rope_theta": 500.0}),
    "one head for all": dict(num_key_value_heads=1, rms_norm_eps=1e-2),
}
IDS = torch.randint(3, 60, (3, 40), generator=torch.Generator().manual_seed(1))


def llama(**other):
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**{**SIZES, **other})).eval()
    with torch.no_grad():  # gains as training leaves them
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)
    return model


def close(ours, theirs, looped, depth):
    """Equal but for what float32 rounds on either side."""
    assert (ours - theirs).abs().max() <= rounding(lambda model: model(IDS, depth=depth).logits, looped)


@pytest.mark.parametrize("other", KINDS.values(), ids=KINDS.keys())
@pytest.mark.parametrize("injection", ["linear", "ortho", "parcae_no_norm"])
def test_every_layer_kept_is_the_source_at_depth_1(other, injection):
    source = llama(**other)
    looped = retrofit(source, Cut(range(0, 3), range(3, 4), range(4, 6)), 4, injection)
    with torch.no_grad():
        close(looped(IDS, depth=1).logits, source(IDS).logits, looped, 1)
    assert looped.config.depth == 4
    assert looped.config.tie_word_embeddings == source.config.tie_word_embeddings
    assert (looped.lm_head.weight is looped.model.embed_tokens.weight) == source.config.tie_word_embeddings


@pytest.mark.parametrize("injection", ["deq_qkv", "none"])
def test_without_a_prelude_the_input_is_the_initial_state(injection):
    source = llama()
    looped = retrofit(source, Cut(range(0), range(0, 4), range(4, 6)), 2, injection)
    with torch.no_grad():
        close(looped(IDS, depth=1).logits, source(IDS).logits, looped, 1)
        # another recurrence is the same layers again, with nothing between
        twice = copy.deepcopy(source)
        twice.model.layers = nn.ModuleList([source.model.layers[i] for i in (0, 1, 2, 3, 0, 1, 2, 3, 4, 5)])
        twice.config.num_hidden_layers = 10
        expected = twice(IDS, use_cache=False).logits
        close(looped(IDS, depth=2).logits, expected, looped, 2)


def test_layers_left_out_are_as_if_deleted_from_the_source():
    source = llama(**KINDS["llama3 rope, tied head"])
    looped = retrofit(source, Cut(range(0, 2), range(3, 4), range(5, 6)), 3, "parcae_no_norm")
    shorter = copy.deepcopy(source)
    shorter.model.layers = nn.ModuleList([source.model.layers[i] for i in (0, 1, 3, 5)])
    shorter.config.num_hidden_layers = 4
    with torch.no_grad():
        close(looped(IDS, depth=1).logits, shorter(IDS, use_cache=False).logits, looped, 1)
        assert not torch.allclose(looped(IDS, depth=1).logits, source(IDS).logits, atol=1e-2)


def test_two_recurrences_by_the_sources_own_layers():
    """F(F(0)) with F(z) = layer(z / 2 + e), computed by transformers' modules."""
    source = llama()
    looped = retrofit(source, Cut(range(0, 2), range(2, 3), range(3, 6)), 2, "parcae_no_norm")

    def run(model, kept, states):
        shorter = copy.deepcopy(model.model)
        shorter.layers = nn.ModuleList([model.model.layers[i] for i in kept])
        shorter.norm, shorter.config.num_hidden_layers = nn.Identity(), len(kept)
        return shorter(inputs_embeds=states, use_cache=False).last_hidden_state

    with torch.no_grad():
        e = run(source, (0, 1), source.model.embed_tokens(IDS))
        z = run(source, (2,), run(source, (2,), e) / 2 + e)
        expected = source.lm_head(source.model.norm(run(source, (3, 4, 5), z)))
        close(looped(IDS, depth=2).logits, expected, looped, 2)


def test_mistral_without_a_window_is_the_same():
    torch.manual_seed(0)
    source = MistralForCausalLM(MistralConfig(**SIZES, sliding_window=None)).eval()
    looped = retrofit(source, Cut(range(0, 2), range(2, 4), range(4, 6)), 2, "linear")
    with torch.no_grad():
        close(looped(IDS, depth=1).logits, source(IDS).logits, looped, 1)
    with pytest.raises(UserError, match="sliding_window"):
        retrofit_config(MistralConfig(**SIZES, sliding_window=16), Cut(range(0), range(6), range(0)), 2, "linear")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (dict(attention_bias=True), "attention_bias"),
        (dict(mlp_bias=True), "mlp_bias"),
        (dict(hidden_act="gelu"), "gelu"),
        (dict(rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}), "rope"),
        (dict(quantization_config={"quant_method": "awq"}), "quantization_config"),
    ],
)
def test_what_our_blocks_are_not_is_refused(change, said):
    with pytest.raises(UserError, match=said) as caught:
        retrofit_config(LlamaConfig(**{**SIZES, **change}), Cut(range(0), range(6), range(0)), 2, "linear")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("cut", "injection", "said"),
    [
        (Cut(range(0, 3), range(2, 4), range(4, 6)), "linear", "overlap"),
        (Cut(range(3, 5), range(0, 2), range(5, 6)), "linear", "follow"),
        (Cut(range(0, 2), range(2, 4), range(4, 7)), "linear", "no layer 6.*0-5"),
        (Cut(range(0, 2), range(0), range(2, 6)), "linear", "core"),
        (Cut(range(0, 2), range(2, 4), range(4, 6)), "none", "leave the prelude out"),
        (Cut(range(0, 2), range(2, 4), range(4, 6)), "huginn_linear", ", ".join(INJECTIONS)),
    ],
)
def test_cuts_that_do_not_fit(cut, injection, said):
    with pytest.raises(UserError, match=said):
        retrofit_config(LlamaConfig(**SIZES), cut, 2, injection)


def test_another_family_is_named():
    with pytest.raises(UserError, match="qwen2.*llama and mistral"):
        retrofit_config(Qwen2Config(**SIZES), Cut(range(0), range(6), range(0)), 2, "linear")


def test_layers_by_name():
    assert (layers("2-4"), layers("7")) == (range(2, 5), range(7, 8))


@pytest.fixture
def source_folder(tmp_path):
    """A tiny Llama on the embedded model's tokenizer, with a chat template, special tokens and generation settings."""
    torch.manual_seed(0)
    config = LlamaConfig(**{**SIZES, "vocab_size": 512, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0})
    model = LlamaForCausalLM(config)
    model.generation_config.max_new_tokens = 7
    folder = tmp_path / "source"
    model.save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(EMBEDDED)
    tokenizer.chat_template = "{% for message in messages %}<{{ message['content'] }}>{% endfor %}"
    tokenizer.save_pretrained(folder)
    return folder


def test_the_command_writes_a_model_that_everything_loads(source_folder, tmp_path, capsys):
    out = tmp_path / "looped"
    cut = ["--prelude", "0-1", "--core", "3", "--coda", "5", "--depth", "3", "--rows", "2", "--length", "40"]
    assert main(["retrofit", str(source_folder), str(out), *cut]) == 0
    said = capsys.readouterr().out
    assert "without layers 2, 4" in said and str(out) in said
    source = AutoModelForCausalLM.from_pretrained(source_folder)
    model, tokenizer = load_model(str(out))
    assert (model.config.prelude_layers, model.config.core_layers, model.config.coda_layers) == (2, 1, 1)
    assert model.generation_config.max_new_tokens == 7
    assert tokenizer.apply_chat_template([{"role": "user", "content": "ab"}], tokenize=False) == "<ab>"
    assert (model.config.bos_token_id, tokenizer.eos_token_id) == (1, 2)
    record = json.loads((out / "retrofit.json").read_text())
    assert (record["kept"], record["skipped"]) == ([0, 1, 3, 5], [2, 4])
    assert set(record["losses"]) == {"1", "2", "3", "6"}
    source.model.layers = nn.ModuleList([source.model.layers[i] for i in (0, 1, 3, 5)])
    source.config.num_hidden_layers = 4
    ids = torch.randint(3, 500, (2, 20))
    close(torch.tensor(mean_loss(model, ids, depth=1)), torch.tensor(mean_loss(source, ids, use_cache=False)), model, 1)


def test_refusals_of_the_command(source_folder, tmp_path, capsys):
    def refused(*argv):
        assert main(["retrofit", *map(str, argv), "--core", "0-5"]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        return error

    assert "exists already" in refused(source_folder, source_folder)
    assert "no model" in refused(tmp_path / "none", tmp_path / "out")
    assert "looped model" in refused(EMBEDDED, tmp_path / "out")
    config = json.loads((source_folder / "config.json").read_text())
    (source_folder / "config.json").write_text(json.dumps({**config, "attention_bias": True}))
    assert "attention_bias" in refused(source_folder, tmp_path / "out")
    (source_folder / "config.json").write_text(json.dumps({**config, "intermediate_size": 48}))
    assert "mismatched keys" in refused(source_folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()
