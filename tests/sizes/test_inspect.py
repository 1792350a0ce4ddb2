"""`loop-rl inspect`: published sizes, numbers against loaded models, what is said, what is refused."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from loop_rl.cli import main
from loop_rl.models import load_checkpoint
from loop_rl.models.attention.padded import PaddedContext
from loop_rl.models.attention.terminal import TerminalPrefill
from loop_rl.models.loading import EMBEDDED
from loop_rl.sizes.inspect import inspect
from tests.families import FAMILIES, write_model
from tests.models.families.synthetic import CHECKPOINTS

RAVEN = {"head_dim": 64, "n_layers_in_prelude": 4, "n_layers_in_recurrent_block": 6, "n_layers_in_coda": 4}
#: the layout's synthetic config with these sizes is a released one, of so many parameters
PUBLISHED = {
    "Huginn-0125": (
        "huginn",
        {"n_embd": 5280, "n_heads": 55, "num_key_value_heads": 55, "intermediate_size": 17920, "vocab_size": 65536,
         "padded_vocab_size": 65536, "head_dim": 96, "n_layers_in_prelude": 2, "n_layers_in_recurrent_block": 4,
         "n_layers_in_coda": 2},
        3_564_976_800,
    ),
    "Recurrent-Llama-3.2": (
        "llama",
        {"n_embd": 2048, "n_heads": 32, "num_key_value_heads": 8, "intermediate_size": 8192, "vocab_size": 128256,
         "padded_vocab_size": 128256, **RAVEN},
        1_385_228_288,
    ),
    "Ouro-1.4B": (
        "ouro",
        {"hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 128,
         "intermediate_size": 5632, "vocab_size": 49152, "num_hidden_layers": 24},
        1_434_652_673,
    ),
    "Ouro-2.6B": (
        "ouro",
        {"hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 128,
         "intermediate_size": 5632, "vocab_size": 49152, "num_hidden_layers": 48},
        2_667_974_657,
    ),
}  # fmt: skip


def refused(capsys, *argv) -> str:
    assert main(["inspect", *map(str, argv)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("loop-rl: ") and error.count("\n") == 1
    return error


@pytest.mark.parametrize("model", PUBLISHED)
def test_parameters_of_the_released_models_from_their_config_alone(model, tmp_path):
    base, sizes, parameters = PUBLISHED[model]
    file = tmp_path / f"{model}.json"
    file.write_text(json.dumps(CHECKPOINTS[base]().raw | sizes))
    found = inspect(str(file), batch=1, length=8, depth=None, dtype="bfloat16")
    assert found["total_parameters"] == sum(found["parameters"].values()) == parameters
    assert found["memory"]["bytes"]["weights"] == 2 * parameters
    assert found["files"] is None and "no weights here" in found["notes"][0]


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_parts_and_headers_of_every_layout(name, tmp_path):
    checkpoint = CHECKPOINTS[name]()
    found = inspect(str(checkpoint.write(tmp_path)), batch=2, length=6, depth=3, dtype=None)
    model = load_checkpoint(tmp_path)
    parts = found["parameters"]
    for part in ("prelude", "core", "coda", "injection", "readout", "value_embeddings", "exit_gate"):
        module = getattr(model.model, part)
        expected = 0 if module is None else sum(p.numel() for p in module.parameters())
        assert parts.get(part.replace("_", " "), 0) == expected
    assert found["total_parameters"] == sum(p.numel() for p in model.parameters())
    assert parts.get("head") == (None if model.config.tie_word_embeddings else model.lm_head.weight.numel())
    ignored = set(found["files"]["ignored"])
    loaded = {key: value for key, value in checkpoint.tensors.items() if key not in ignored}
    assert found["files"]["loaded_numbers"] == found["total_parameters"] == sum(v.numel() for v in loaded.values())
    assert ignored == {"freqs_cis", "lm_head.weight"} & checkpoint.tensors.keys() - (
        set() if model.config.tie_word_embeddings else {"lm_head.weight"}
    )
    assert found["files"]["dtypes"] == {"float32": len(loaded)}
    assert all(any(key in note for note in found["notes"]) for key in ignored)
    assert found["layout"]["depth"] == model.config.depth and found["memory"]["depth"] == 3


@pytest.mark.parametrize("name", ["huginn", "ouro", "parcae"])
def test_memory_is_what_the_tensors_take(name, tmp_path):
    folder = CHECKPOINTS[name]().write(tmp_path)
    needs = inspect(str(folder), batch=2, length=6, depth=3, dtype=None)["memory"]["bytes"]
    model, mask = load_checkpoint(folder), torch.ones(2, 6, dtype=torch.long)
    held = {}
    for cache, kind in (("full", PaddedContext), ("terminal", TerminalPrefill)):
        context = kind(model.config, mask, None, torch.float32, 3, record=True)
        with torch.no_grad():
            prelude = model.model.prelude_forward(mask, context)
            z = model.model.endpoint(
                prelude, model.model.draw_initial_state(context.position_ids, None, prelude), context
            )
            model.model.coda_forward(z, context, prelude)
        held[f"{cache} KV cache"] = sum(x.nbytes for bank in context.banks.values() for x in bank)
    held["saved states"] = z.nbytes
    held["weights"] = held["gradients"] = sum(p.nbytes for p in model.parameters())
    held["Adam"] = 2 * held["weights"]
    assert {part: needs[part] for part in held} == held
    assert needs["activations, reuse_neumann4"] < needs["activations, full_bptt"]


@pytest.mark.parametrize("name", FAMILIES)
def test_the_text_says_what_the_json_holds(name, tmp_path, capsys):
    folder = write_model(name, tmp_path)
    assert main(["inspect", str(folder), "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert main(["inspect", str(folder)]) == 0
    text = capsys.readouterr().out
    for part, count in found["parameters"].items():
        assert any(line.split() == [*part.split(), f"{count:,}"] for line in text.splitlines())
    assert all(note in text for note in found["notes"])
    assert f"x {found['layout']['depth']} recurrences" in text and "names and shapes fit" in text


def test_ouro_s_tokens_are_warned_about(tmp_path, capsys):
    folder = CHECKPOINTS["ouro"]().write(tmp_path)
    found = inspect(str(folder), 1, 8, None, None)
    assert any("bos_token_id 0 is read as 1, eos_token_id 0 is read as 2" in note for note in found["notes"])
    assert any("gives the embedding no gradient" in note for note in found["notes"])
    assert (found["layout"]["bos_token_id"], found["layout"]["eos_token_id"]) == (1, 2)


def test_types_on_disk(tmp_path):
    checkpoint = CHECKPOINTS["llama"]()
    checkpoint.write(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(checkpoint.raw | {"torch_dtype": "float16"}))
    tensors = {key: value.bfloat16() for key, value in checkpoint.tensors.items()}
    tensors["transformer.ln_f.weight"] = checkpoint.tensors["transformer.ln_f.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    found = inspect(str(tmp_path), 1, 8, None, None)
    assert found["memory"]["dtype"] == "bfloat16"
    assert found["files"]["dtypes"] == {"bfloat16": len(tensors) - 1, "float32": 1}
    notes = " ".join(found["notes"])
    assert "config.json says float16, the tensors are bfloat16" in notes and "several types" in notes
    torch.save(tensors, tmp_path / "pytorch_model.bin")
    (tmp_path / "model.safetensors").unlink()
    assert inspect(str(tmp_path), 1, 8, None, None)["files"] == found["files"] | {"main": "pytorch_model.bin"}


def test_the_embedded_model_and_a_model_without_weights(tmp_path):
    found = inspect("embedded", 1, 8, None, None)
    assert found["family"] == "own" and found["converted_from"] is None and found["notes"] == []
    (tmp_path / "config.json").write_bytes((EMBEDDED / "config.json").read_bytes())
    alone = inspect(str(tmp_path), 1, 8, None, None)
    assert alone["parameters"] == found["parameters"] and alone["files"] is None


def test_a_converted_model_says_what_it_was(tmp_path):
    model = load_checkpoint(CHECKPOINTS["huginn"]().write(tmp_path / "theirs"))
    model.save_pretrained(tmp_path / "ours")
    found = inspect(str(tmp_path / "ours"), 1, 8, None, None)
    assert (found["family"], found["converted_from"]) == ("own", "huginn")
    assert found["parameters"] == inspect(str(tmp_path / "theirs"), 1, 8, None, None)["parameters"]


def test_weights_are_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr("loop_rl.models.families.files.WeightFiles.tensor", None)
    for name in ("huginn", "ouro"):
        inspect(str(CHECKPOINTS[name]().write(tmp_path / name)), 1, 8, None, None)


def test_refusals(tmp_path, capsys):
    checkpoint = CHECKPOINTS["llama"]()
    folder = checkpoint.write(tmp_path / "llama")
    tensors = dict(checkpoint.tensors)
    tensors["transformer.ln_f.weight"] = torch.ones(3)
    save_file(tensors, folder / "model.safetensors")
    assert "mismatched keys, such as transformer.ln_f.weight of shape [3]" in refused(capsys, folder)
    (folder / "model.safetensors").write_bytes(b"x" * 40)
    assert "can't be read" in refused(capsys, folder)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    assert "is of a llama model, which is not looped" in refused(capsys, tmp_path)
    (tmp_path / "sizes.json").write_text(json.dumps(checkpoint.raw | {"n_embd": -4}))
    assert "sizes of which no model can be built" in refused(capsys, tmp_path / "sizes.json")
    assert "no looped model at" in refused(capsys, tmp_path / "nothing")
    assert Path(tmp_path / "nothing").exists() is False


def test_configs_are_all_that_is_fetched_from_the_hub(tmp_path, monkeypatch):
    folder = CHECKPOINTS["olmo"]().write(tmp_path)
    (folder / "model.safetensors").unlink()
    asked = []
    monkeypatch.setattr("loop_rl.hub.unreachable", lambda: None)
    monkeypatch.setattr(
        "loop_rl.models.loading.snapshot_download", lambda name, **how: asked.append(how["allow_patterns"]) or folder
    )
    found = inspect("owner/recurrent-olmo", 1, 8, None, None)
    assert asked == [["config.json", "generation_config.json"]]
    assert any("told apart by their tensors" in note for note in found["notes"])
