"""`loop-rl convert`: there and back with every bit, types, whole or not at all, nothing overwritten."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

import loop_rl.models.convert as converting
from loop_rl.cli import main
from loop_rl.models import LoopedForCausalLM, load_checkpoint
from loop_rl.models.loading import load_model
from tests.families import FAMILIES, REFERENCES, tokenizer, write_model
from tests.models.families.synthetic import CHECKPOINTS


def convert(*argv) -> None:
    assert main(["convert", *map(str, argv)]) == 0


def refused(capsys, *argv) -> str:
    assert main(["convert", *map(str, argv)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("loop-rl: ") and error.count("\n") == 1
    return error


def same_tensors(ours: Path, theirs: Path, dtype: torch.dtype | None = None) -> None:
    """Names, types and bits; the tables that are computed anyway may round otherwise on another machine."""
    back, released = load_file(ours / "model.safetensors"), load_file(theirs / "model.safetensors")
    assert back.keys() == released.keys()
    for key, value in released.items():
        if key != "freqs_cis":
            expected = value if dtype is None else value.to(dtype)
            assert back[key].dtype == expected.dtype and torch.equal(back[key], expected), key


@pytest.mark.parametrize("name", ["huginn", "retro_llama", "ouro", "parcae"])
def test_a_reference_there_and_back(name, tmp_path):
    if not REFERENCES.is_dir():
        pytest.skip(f"no reference checkpoints in {REFERENCES}")
    convert(REFERENCES / name, tmp_path / "ours")
    convert(tmp_path / "ours", tmp_path / "back", "--layout", "family")
    same_tensors(tmp_path / "back", REFERENCES / name)
    tables = [
        load_file(place / "model.safetensors").get("freqs_cis") for place in (tmp_path / "back", REFERENCES / name)
    ]
    if tables[0] is not None:  # angles up to the last position, each rounded once or twice
        atol = 2 * torch.finfo(torch.float32).eps * tables[0].shape[1]
        torch.testing.assert_close(*tables, rtol=0, atol=atol)
    released, back = (
        json.loads((place / "config.json").read_text()) for place in (REFERENCES / name, tmp_path / "back")
    )
    assert back == released


@pytest.mark.parametrize("dtype", [None, "bfloat16"])
@pytest.mark.parametrize("name", CHECKPOINTS)
def test_every_layout_there_and_back(name, dtype, tmp_path):
    checkpoint = CHECKPOINTS[name]()
    checkpoint.raw["torch_dtype"] = "float32"
    checkpoint.write(tmp_path / "theirs")
    convert(tmp_path / "theirs", tmp_path / "ours", *(["--dtype", dtype] if dtype else []))
    convert(tmp_path / "ours", tmp_path / "back", "--layout", "family")
    same_tensors(tmp_path / "back", tmp_path / "theirs", torch.bfloat16 if dtype else None)
    raw = json.loads((tmp_path / "back" / "config.json").read_text())
    assert raw == checkpoint.raw | {"torch_dtype": dtype or "float32"}
    convert(tmp_path / "back", tmp_path / "again")  # what was written is itself read and written
    first, second = (load_file(tmp_path / place / "model.safetensors") for place in ("ours", "again"))
    assert first.keys() == second.keys() and all(torch.equal(first[key], second[key]) for key in first)


@pytest.mark.parametrize("name", FAMILIES)
def test_what_is_written_is_a_whole_model_of_transformers(name, tmp_path):
    source = write_model(name, tmp_path / "theirs")
    (source / "LICENSE").write_text("mine")
    convert(source, tmp_path / "ours")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "ours", trust_remote_code=False)
    assert type(model) is LoopedForCausalLM and model.dtype == torch.float32
    words = AutoTokenizer.from_pretrained(tmp_path / "ours")
    assert (words.eos_token_id, words.chat_template) == (2, tokenizer().chat_template)
    ids = torch.tensor([words("2+3=").input_ids])
    assert torch.equal(model(ids).logits, load_model(str(source))[0](ids).logits)
    assert (tmp_path / "ours" / "LICENSE").read_text() == "mine"


def test_wrong_special_tokens_are_fixed_in_our_layout_alone(tmp_path):
    source = CHECKPOINTS["ouro"]().write(tmp_path / "theirs")
    words = tokenizer()
    words.eos_token = "<pad>"  # as Ouro's released tokenizer has it: token 0
    words.save_pretrained(source)
    convert(source, tmp_path / "ours")
    assert AutoTokenizer.from_pretrained(tmp_path / "ours").eos_token_id == 2
    convert(source, tmp_path / "copy", "--layout", "family")
    for file in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "copy" / file).read_bytes() == (source / file).read_bytes()


def test_a_changed_depth_goes_back_too(tmp_path):
    model = load_checkpoint(CHECKPOINTS["huginn"]().write(tmp_path / "theirs"))
    model.config.depth = 12
    model.save_pretrained(tmp_path / "ours")
    convert(tmp_path / "ours", tmp_path / "back", "--layout", "family")
    assert json.loads((tmp_path / "back" / "config.json").read_text())["mean_recurrence"] == 12


def test_nothing_is_overwritten(tmp_path, capsys):
    source = CHECKPOINTS["olmo"]().write(tmp_path / "theirs")
    for made in ("folder", "file", "link"):
        out = tmp_path / made
        {"folder": out.mkdir, "file": out.touch, "link": lambda out=out: out.symlink_to("nowhere")}[made]()
        assert f"{out} exists already" in refused(capsys, source, out)
    assert "exists already" in refused(capsys, source, source)
    assert list((tmp_path / "folder").iterdir()) == []


def test_a_conversion_that_fails_leaves_nothing(tmp_path, monkeypatch):
    source = CHECKPOINTS["olmo"]().write(tmp_path / "theirs")

    def full(model, folder):
        (folder / "config.json").write_text("{}")
        raise OSError(28, "No space left on device", "model.safetensors")

    monkeypatch.setattr(converting, "save_family_checkpoint", full)
    assert main(["convert", str(source), str(tmp_path / "made" / "back"), "--layout", "family"]) == 2
    assert list((tmp_path / "made").iterdir()) == []


def test_refusals(tmp_path, capsys):
    assert "not made from a released family's checkpoint" in refused(
        capsys, "embedded", tmp_path / "out", "--layout", "family"
    )
    checkpoint = CHECKPOINTS["llama"]()
    folder = checkpoint.write(tmp_path / "mixed")
    save_file(
        {key: value.bfloat16() if "wte" in key else value for key, value in checkpoint.tensors.items()},
        folder / "model.safetensors",
    )
    assert "are of bfloat16, float32; choose one type by --dtype" in refused(capsys, folder, tmp_path / "out")
    convert(folder, tmp_path / "out", "--dtype", "float32")
    shutil.rmtree(tmp_path / "out")
    (folder / "model.safetensors").unlink()
    assert "holds no weights" in refused(capsys, folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()
