"""Every layout, loaded and checked against a naive forward pass on its own tensors; saved and read back bit for bit."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from loop_rl.models import LoopedForCausalLM
from loop_rl.models.families import load_checkpoint, looped_config, read_config, save_family_checkpoint
from loop_rl.models.rope import llama3_scaled
from tests.models.families import naive
from tests.models.families.synthetic import CHECKPOINTS, LLAMA3, VOCABULARY

# float64 on both sides: some thousand roundings of 1e-16 in each
EXACT = 1e-11
REFERENCES = Path(__file__).resolve().parents[3] / "../shared/refs"


@pytest.fixture(params=CHECKPOINTS)
def name(request):
    return request.param


def row(length: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(VOCABULARY, (length,), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("depth", [1, 3])
def test_logits_equal_the_naive_forward_pass(name, depth, tmp_path):
    checkpoint = CHECKPOINTS[name]()
    model = load_checkpoint(checkpoint.write(tmp_path)).double()
    ids, width = row(9), model.config.hidden_size
    z0 = torch.randn(9, width, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    with torch.no_grad():
        given = {} if name.startswith("ouro") else {"initial_state": z0[None]}
        ours = model(ids[None], depth=depth, **given).logits[0]
    expected = naive.forward(name, checkpoint.raw, checkpoint.tensors, ids, z0, depth)
    assert (ours - expected).abs().max() <= EXACT * expected.abs().max()


def test_exit_distribution_equals_the_naive_one(tmp_path):
    checkpoint = CHECKPOINTS["ouro"]()
    model, ids = load_checkpoint(checkpoint.write(tmp_path)).double(), row(7)
    doubles = {key: value.double() for key, value in checkpoint.tensors.items()}
    with torch.no_grad():
        ours = model.model.exit_distribution(ids[None])[0]
    _, expected = naive.ouro(checkpoint.raw, doubles, ids, checkpoint.raw["total_ut_steps"])
    torch.testing.assert_close(ours, expected, rtol=0, atol=EXACT)
    torch.testing.assert_close(ours.sum(-1), torch.ones(7, dtype=ours.dtype))


@pytest.mark.parametrize("folder", ["huginn", "retro_llama", "ouro", "parcae"])
def test_a_reference_is_written_back_bit_for_bit(folder, tmp_path):
    if not REFERENCES.is_dir():
        pytest.skip(f"no reference checkpoints in {REFERENCES}")
    save_family_checkpoint(load_checkpoint(REFERENCES / folder), tmp_path)
    before, after = (load_file(place / "model.safetensors") for place in (REFERENCES / folder, tmp_path))
    assert before.keys() == after.keys()
    for key, value in before.items():
        assert value.dtype == after[key].dtype
        if key == "freqs_cis":  # computed again: another machine may round an angle, up to the last position, otherwise
            largest = 2 * torch.finfo(torch.float32).eps * value.shape[1]
            torch.testing.assert_close(after[key], value, rtol=0, atol=largest)
        else:
            assert torch.equal(after[key], value), key


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_there_and_back_and_our_own_layout_keep_every_bit(name, dtype, tmp_path):
    checkpoint = CHECKPOINTS[name]()
    model = load_checkpoint(checkpoint.write(tmp_path / "theirs"), dtype)
    assert model.dtype == dtype and not model.training
    save_family_checkpoint(model, tmp_path / "back")
    back = load_file(tmp_path / "back" / "model.safetensors")
    assert back.keys() == checkpoint.tensors.keys()
    for key, value in checkpoint.tensors.items():
        assert key == "freqs_cis" or torch.equal(back[key], value.to(dtype)), key
    model.save_pretrained(tmp_path / "ours")
    states = [model.state_dict()]
    for again in (
        load_checkpoint(tmp_path / "back", dtype),
        load_checkpoint(tmp_path / "ours", dtype),
        LoopedForCausalLM.from_pretrained(tmp_path / "ours", dtype=dtype),
    ):
        states.append(again.state_dict())
        assert again.config.checkpoint_config == checkpoint.raw
        assert torch.equal(again(row(5)[None]).logits, model(row(5)[None]).logits)
    assert all(state.keys() == states[0].keys() for state in states)
    assert all(torch.equal(state[key], value) for state in states for key, value in states[0].items())
    save_family_checkpoint(again, tmp_path / "once_more")
    assert all(torch.equal(v, back[k]) for k, v in load_file(tmp_path / "once_more" / "model.safetensors").items())


def test_shards_and_bin_give_the_same_model(name, tmp_path):
    checkpoint = CHECKPOINTS[name]()
    model = load_checkpoint(checkpoint.write(tmp_path / "whole"))
    save_family_checkpoint(model, tmp_path / "shards", max_shard_size=20_000)
    assert (tmp_path / "shards" / "model.safetensors.index.json").is_file()
    pickled = tmp_path / "pickled"
    pickled.mkdir()
    (tmp_path / "whole" / "config.json").rename(pickled / "config.json")
    torch.save(checkpoint.tensors, pickled / "pytorch_model.bin")
    for folder in (tmp_path / "shards", pickled):
        state = load_checkpoint(folder).state_dict()
        assert all(torch.equal(state[key], value) for key, value in model.state_dict().items())


def test_depth_is_the_one_thing_that_saving_changes_in_the_config(tmp_path):
    for name, key in (("huginn", "mean_recurrence"), ("ouro", "total_ut_steps")):
        checkpoint = CHECKPOINTS[name]()
        model = load_checkpoint(checkpoint.write(tmp_path / name))
        model.config.depth = 9
        save_family_checkpoint(model, tmp_path / "deeper")
        deeper = load_checkpoint(tmp_path / "deeper")
        assert deeper.config.depth == 9
        assert deeper.config.checkpoint_config == checkpoint.raw | {key: 9}


def test_llama3_scaling_equals_transformers():
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = LlamaConfig(head_dim=64, rope_parameters=LLAMA3 | {"rope_theta": 500.0}, max_position_embeddings=256)
    expected, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    plain = 500.0 ** (-torch.arange(0, 64, 2).double() / 64)
    numbers = {key: value for key, value in LLAMA3.items() if key != "rope_type"}
    torch.testing.assert_close(llama3_scaled(plain, **numbers).float(), expected, rtol=1e-6, atol=0)


RELEASED = {
    3_564_976_800: {
        "model_type": "huginn_raven", "n_embd": 5280, "num_attention_heads": 55, "num_key_value_heads": 55,
        "head_dim": 96, "intermediate_size": 17920, "n_layers_in_prelude": 2, "n_layers_in_recurrent_block": 4,
        "n_layers_in_coda": 2, "mean_recurrence": 32, "vocab_size": 65536, "padded_vocab_size": 65536,
        "block_size": 4096, "norm_eps": 1e-6, "rope_base": 50000, "qk_bias": True, "tie_embeddings": True,
    },
    1_385_228_288: {
        "model_type": "huginn_raven", "n_embd": 2048, "n_heads": 32, "num_key_value_heads": 8, "head_dim": 64,
        "intermediate_size": 8192, "n_layers_in_prelude": 4, "n_layers_in_recurrent_block": 6, "n_layers_in_coda": 4,
        "mean_recurrence": 32, "vocab_size": 128256, "padded_vocab_size": 128256, "block_size": 4096, "norm_eps": 1e-5,
        "rope_theta": 500000.0, "qk_bias": False, "tie_embeddings": False,
        "init_values": {"std": 0.0087, "embed_scale": 1.0},
    },
    1_434_652_673: {
        "model_type": "ouro", "hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 16,
        "head_dim": 128, "intermediate_size": 5632, "num_hidden_layers": 24, "total_ut_steps": 4, "rms_norm_eps": 1e-6,
        "rope_theta": 1e6, "vocab_size": 49152, "max_position_embeddings": 65536, "tie_word_embeddings": False,
    },
}  # fmt: skip
RELEASED[2_667_974_657] = RELEASED[1_434_652_673] | {"num_hidden_layers": 48}


@pytest.mark.parametrize("count", RELEASED)
def test_parameters_of_the_releases(count):
    with torch.device("meta"):
        model = LoopedForCausalLM(looped_config(RELEASED[count]))
    assert sum(parameter.numel() for parameter in model.parameters()) == count


@pytest.mark.parametrize("name", ["huginn", "llama", "olmo", "ouro", "parcae"])
def test_rope_as_transformers_5_writes_it(name):
    """Theta and scaling in rope_parameters are read as in the older keys, whichever of these are left."""
    raw = {k: v for k, v in CHECKPOINTS[name]().raw.items() if k not in ("rope_theta", "rope_scaling")}
    older = looped_config({**raw, "rope_theta": 700.0, "rope_scaling": LLAMA3})
    assert older.rope_theta == 700.0 and older.llama3_rope["factor"] == LLAMA3["factor"]
    newer = {"rope_parameters": {**LLAMA3, "rope_theta": 700.0}}
    for left in ({}, {"rope_theta": 700.0}, {"rope_scaling": LLAMA3}, {"rope_scaling": None}):
        config = looped_config({**raw, **newer, **left})
        assert (config.rope_theta, config.llama3_rope) == (older.rope_theta, older.llama3_rope)


def test_paths_as_text(tmp_path):
    folder = CHECKPOINTS["huginn"]().write(tmp_path / "there")
    model = load_checkpoint(str(folder))
    save_family_checkpoint(model, str(tmp_path / "back"))
    assert read_config(str(tmp_path / "back")).depth == read_config(folder / "config.json").depth
