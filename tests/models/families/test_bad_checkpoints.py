"""Bad checkpoints: one line each, that names the place; nothing is run or unpickled."""

import json
import os
import pickle
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from loop_rl.errors import UserError
from loop_rl.models import LoopedForCausalLM
from loop_rl.models.families import load_checkpoint, looped_config, save_family_checkpoint
from tests.models.families.synthetic import CHECKPOINTS, LLAMA3
from tests.tiny import tiny_model


def refused(folder: Path) -> str:
    with pytest.raises(UserError) as error:
        load_checkpoint(folder)
    message = str(error.value)
    assert "\n" not in message and len(message) < 500
    return message


@pytest.fixture(params=["huginn", "olmo", "ouro", "parcae"])
def checkpoint(request):
    return CHECKPOINTS[request.param]()


def test_missing_extra_and_misshapen_tensors_are_named(checkpoint, tmp_path):
    name = next(key for key in checkpoint.tensors if "attn" in key)
    tensors = dict(checkpoint.tensors)
    changed = type(checkpoint)(checkpoint.raw, tensors)
    value = tensors.pop(name)
    assert f"1 missing keys, such as {name}" in refused(changed.write(tmp_path / "missing"))
    tensors[name] = value[:-1].clone()
    message = refused(changed.write(tmp_path / "misshapen"))
    assert f"1 mismatched keys, such as {name} of shape {list(value[:-1].shape)}, not {list(value.shape)}" in message
    tensors[name] = value
    tensors["model.surplus.weight"] = torch.zeros(2)
    assert "1 unexpected keys, such as model.surplus.weight" in refused(changed.write(tmp_path / "extra"))


def test_a_config_that_disagrees_with_the_weights(checkpoint, tmp_path):
    for key in ("intermediate_size", "vocab_size", "n_layers_in_coda", "num_hidden_layers"):
        if key in checkpoint.raw:
            raw = checkpoint.raw | {key: checkpoint.raw[key] + 1}
            if key == "vocab_size" and "padded_vocab_size" in raw:
                raw["padded_vocab_size"] += 1
            message = refused(type(checkpoint)(raw, checkpoint.tensors).write(tmp_path / key))
            assert "do not fit its config.json" in message, key


def test_a_config_of_another_family(tmp_path):
    huginn, ouro = CHECKPOINTS["huginn"](), CHECKPOINTS["ouro"]()
    message = refused(type(huginn)(ouro.raw, huginn.tensors).write(tmp_path))
    assert "config.json is of ouro, but the tensors are of huginn" in message


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"model_type": "llama", "hidden_size": 8}, "llama model, which is not looped"),
        ({"model_type": "loopy"}, "loopy model, which is not looped"),
        ({"hidden_size": 8}, "names no model_type"),
        ({"_class_name": "GPTConfig"}, "GPTConfig model, which is not looped"),
    ],
)
def test_other_models_are_refused_before_their_weights_are_read(raw, message, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(raw))
    assert message in refused(tmp_path)


def test_transformers_own_loader_is_led_to_ours(checkpoint, tmp_path):
    with pytest.raises(UserError, match="read its folder with loop_rl.models.load_checkpoint"):
        LoopedForCausalLM.from_pretrained(checkpoint.write(tmp_path))


def test_plain_llama_weights_under_a_looped_config(tmp_path):
    tensors = {"model.embed_tokens.weight": torch.zeros(4, 4), "lm_head.weight": torch.zeros(4, 4)}
    for name, key in (("llama", "transformer."), ("ouro", "model.")):
        checkpoint = CHECKPOINTS[name]()
        message = refused(type(checkpoint)(checkpoint.raw, tensors).write(tmp_path / name))
        assert "missing keys" in message and key in message


def test_a_tied_head_must_equal_the_embedding(tmp_path):
    checkpoint = CHECKPOINTS["huginn"]()
    checkpoint.tensors["lm_head.weight"][3, 1] += 1e-3
    assert "ties the head, but lm_head.weight differs" in refused(checkpoint.write(tmp_path / "differs"))
    del checkpoint.tensors["lm_head.weight"], checkpoint.tensors["freqs_cis"]
    assert load_checkpoint(checkpoint.write(tmp_path / "once")).config.tie_word_embeddings


def test_a_tied_head_of_our_own_layout_must_equal_the_embedding(tmp_path):
    tiny_model(tie_word_embeddings=True).save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors.setdefault("lm_head.weight", tensors["model.embed_tokens.weight"].clone())
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    model = load_checkpoint(str(tmp_path))
    assert model.lm_head.weight is model.model.embed_tokens.weight
    tensors["lm_head.weight"][3, 1] += 1e-3
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert "ties the head, but lm_head.weight differs from model.embed_tokens.weight" in refused(tmp_path)


@pytest.mark.parametrize("said", [False, None])
def test_a_head_of_our_own_that_is_not_there(said, tmp_path):
    """Untied, or by default so: never a head at random."""
    tiny_model().save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((tmp_path / "config.json").read_text()) | {"tie_word_embeddings": said}
    if said is None:
        del config["tie_word_embeddings"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert "1 missing keys, such as lm_head.weight" in refused(tmp_path)


@pytest.mark.parametrize("wrong", [("n_heads", "three"), ("norm_eps", "small"), ("n_embd", []), ("n_embd", -8)])
def test_impossible_values(wrong, tmp_path):
    checkpoint = CHECKPOINTS["llama"]()
    raw = checkpoint.raw | dict([wrong])
    assert "config.json has" in refused(type(checkpoint)(raw, checkpoint.tensors).write(tmp_path))


@pytest.mark.parametrize("text", ["", "{", "[]", "3"])
def test_a_damaged_config(text, tmp_path):
    (tmp_path / "config.json").write_text(text)
    assert "config.json" in refused(tmp_path)


def test_a_missing_or_unsupported_setting_is_named(checkpoint, tmp_path):
    raw = dict(checkpoint.raw)
    del raw["intermediate_size"]
    assert "no intermediate_size" in refused(type(checkpoint)(raw, checkpoint.tensors).write(tmp_path / "lacks"))
    if "hidden_act" in raw or "nonlin_name" in raw:
        key = "hidden_act" if "hidden_act" in raw else "nonlin_name"
        raw = checkpoint.raw | {key: "gelu"}
        assert f"{key} to 'gelu'" in refused(type(checkpoint)(raw, checkpoint.tensors).write(tmp_path / "other"))


def test_a_rope_scaling_of_another_kind_is_refused():
    raw = CHECKPOINTS["llama"]().raw | {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}
    with pytest.raises(UserError, match="type 'yarn'"):
        looped_config(raw)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"rope_parameters": {**LLAMA3, "factor": 8.0}}, "another scaling in rope_parameters"),
        ({"rope_parameters": {"rope_type": "default"}}, "another scaling in rope_parameters"),
        ({"rope_parameters": {"rope_theta": 10.0}}, "another rope_theta in rope_parameters"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 3000.0}}}, "by type of layer"),
        ({"rope_parameters": {"rope_theta": 3000.0, "partial_rotary_factor": 0.5}}, "partial_rotary_factor to 0.5"),
    ],
)
def test_spellings_of_rope_that_disagree_are_refused(keys, message):
    with pytest.raises(UserError, match=message):
        looped_config(CHECKPOINTS["llama"]().raw | keys)


@pytest.mark.parametrize("name", ["rope_scaling", "rope_parameters"])
def test_our_own_config_has_its_own_names_of_rope(name):
    with pytest.raises(UserError, match=f"no {name}: give rope_theta, and llama3_rope"):
        tiny_model(**{name: LLAMA3})


class Evil:
    """Leaves a trace where it is unpickled."""

    def __reduce__(self):
        return (os.mkdir, ("evil-was-here",))


class TestFiles:
    """Damage to the files of one family; the rest read theirs the same way."""

    @pytest.fixture
    def folder(self, tmp_path):
        return CHECKPOINTS["llama"]().write(tmp_path / "model")

    @pytest.fixture
    def shards(self, folder, tmp_path):
        save_family_checkpoint(load_checkpoint(folder), tmp_path / "shards", max_shard_size=20_000)
        return tmp_path / "shards"

    def index(self, shards, change):
        path = shards / "model.safetensors.index.json"
        index = json.loads(path.read_text())
        change(index)
        path.write_text(json.dumps(index))
        return refused(shards)

    def test_no_weights(self, folder):
        (folder / "model.safetensors").unlink()
        assert "holds no weights" in refused(folder)

    @pytest.mark.parametrize("size", [0, 5, 3000, -1])
    def test_truncated(self, folder, size):
        file = folder / "model.safetensors"
        file.write_bytes(file.read_bytes()[:size])
        assert "model.safetensors can't be read" in refused(folder)

    def test_a_truncated_shard(self, shards):
        file = sorted(shards.glob("*.safetensors"))[1]
        file.write_bytes(file.read_bytes()[:-1000])
        assert f"{file.name} can't be read" in refused(shards)

    def test_a_missing_shard(self, shards):
        file = sorted(shards.glob("*.safetensors"))[1]
        file.unlink()
        assert f"lacks {file.name}" in refused(shards)

    def test_a_shard_in_the_place_of_another(self, shards):
        one, two, *_ = sorted(shards.glob("*.safetensors"))
        shutil.copy(one, two)
        assert "is in" in refused(shards)

    def test_an_index_that_lies(self, shards):
        def move(index):
            name = min(index["weight_map"])
            index["weight_map"][name] = sorted(set(index["weight_map"].values()))[-1]

        assert "but it is in" in self.index(shards, move)

    def test_an_index_that_promises_more(self, shards):
        assert "promises" in self.index(shards, lambda index: index["metadata"].update(total_size=10**9))

    def test_an_index_that_leads_elsewhere(self, shards):
        def lead(index):
            index["weight_map"][min(index["weight_map"])] = "../model/model.safetensors"

        assert "not a file beside it" in self.index(shards, lead)

    @pytest.mark.parametrize("text", ["", "{}", "[]", '{"weight_map": 3}'])
    def test_a_damaged_index(self, shards, text):
        (shards / "model.safetensors.index.json").write_text(text)
        assert "is no index" in refused(shards)

    def test_a_git_lfs_pointer(self, folder):
        (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
        assert "git lfs pull" in refused(folder)

    def pickled(self, folder) -> Path:
        (folder / "model.safetensors").unlink()
        return folder / "pytorch_model.bin"

    def test_a_pickle_of_more_than_tensors_is_not_run(self, folder, monkeypatch):
        monkeypatch.chdir(folder)
        path = self.pickled(folder)
        torch.save({"weight": Evil()}, path)
        assert "holds more than tensors" in refused(folder)
        path.write_bytes(pickle.dumps(Evil()))
        assert "holds more than tensors" in refused(folder)
        assert not (folder / "evil-was-here").exists()

    def test_a_pickle_of_something_else(self, folder):
        torch.save([torch.zeros(2)], self.pickled(folder))
        assert "not a dictionary of tensors" in refused(folder)

    @pytest.mark.parametrize("size", [0, 100, -1000])
    def test_a_truncated_bin(self, folder, size):
        path = self.pickled(folder)
        torch.save(CHECKPOINTS["llama"]().tensors, path)
        path.write_bytes(path.read_bytes()[:size])
        message = refused(folder)
        assert "pytorch_model.bin" in message and ("can't be read" in message or "damaged" in message)


def test_our_own_layout_is_as_strict(tmp_path):
    model = tiny_model()
    model.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    save_file({key: value for key, value in tensors.items() if key != "model.norm.weight"}, file, {"format": "pt"})
    assert "1 missing keys, such as model.norm.weight" in refused(tmp_path)
    with pytest.raises(UserError, match="not loaded from a released family"):
        save_family_checkpoint(model, tmp_path / "out")
