"""Models and tokenizers of every layout, by path and by hub id."""

import fnmatch
import hashlib
import json
import logging
import shutil
from pathlib import Path

import pytest
import torch

from loop_rl import hub
from loop_rl.errors import UserError
from loop_rl.evaluation.running import find_target, run_eval
from loop_rl.models import loading as load
from loop_rl.models.generation import model_end_tokens
from loop_rl.models.loading import EMBEDDED, load_config, load_model, resolve_model
from loop_rl.recipe.rl import Recipe
from loop_rl.recipe.sft import SftRecipe
from loop_rl.runs.checkpoints import save_checkpoint
from loop_rl.sizes.inspect import inspect
from loop_rl.sizes.memory import estimate_memory
from loop_rl.training.sft import sft
from loop_rl.training.trainer import Trainer
from tests.families import tokenizer as characters
from tests.models.families.synthetic import CHECKPOINTS, Checkpoint
from tests.tiny import tiny_model

TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def write(name: str, folder: Path) -> Checkpoint:
    """A synthetic checkpoint with a tokenizer of its vocabulary beside it."""
    checkpoint = CHECKPOINTS[name]()
    checkpoint.write(folder)
    characters().save_pretrained(folder)
    return checkpoint


@pytest.mark.parametrize("name", ["huginn", "llama", "olmo", "ouro", "parcae"])
def test_a_folder_of_every_layout_with_its_tokenizer(name, tmp_path):
    checkpoint = write(name, tmp_path)
    model, tokenizer = load_model(str(tmp_path), "bfloat16")
    assert model.dtype == torch.bfloat16 and len(tokenizer("1+1").input_ids) == 3
    config = load_config(str(tmp_path))
    assert config.to_dict() | {"dtype": "bfloat16"} == model.config.to_dict() | {"dtype": "bfloat16"}
    assert config.depth == checkpoint.raw.get("mean_recurrence", checkpoint.raw.get("total_ut_steps"))
    model.save_pretrained(tmp_path / "ours")
    tokenizer.save_pretrained(tmp_path / "ours")
    again, _ = load_model(str(tmp_path / "ours"), "bfloat16")
    assert all(torch.equal(value, model.state_dict()[key]) for key, value in again.state_dict().items())


def test_ouro_gets_its_chat_tokens_and_one_warning(tmp_path, caplog):
    write("ouro", tmp_path)
    (tmp_path / "generation_config.json").write_text('{"bos_token_id": 0, "eos_token_id": 0}')
    with caplog.at_level(logging.WARNING, logger="loop_rl"):
        model, tokenizer = load_model(str(tmp_path))
    assert len(caplog.records) == 1 and "bos 1, eos 2, pad 0" in caplog.text
    for place in (model.config, tokenizer):
        assert (place.bos_token_id, place.eos_token_id, place.pad_token_id) == (1, 2, 0)
    generation = model.generation_config
    assert (generation.bos_token_id, generation.eos_token_id, generation.pad_token_id) == (1, [2, 0], 0)
    assert model_end_tokens(model, tokenizer) == (0, 2)


def test_special_tokens_come_from_the_generation_config_where_the_config_has_none(tmp_path):
    write("huginn", tmp_path)
    values = {"bos_token_id": 4, "eos_token_id": [5, 8], "pad_token_id": 9, "do_sample": True, "temperature": 0.7}
    (tmp_path / "generation_config.json").write_text(json.dumps(values))
    model, tokenizer = load_model(str(tmp_path))
    assert model.config.eos_token_id == model.generation_config.eos_token_id == [5, 8]
    assert model.generation_config.temperature == 0.7
    assert (tokenizer.bos_token_id, tokenizer.pad_token_id) == (4, 9)
    model.save_pretrained(tmp_path / "ours")


@pytest.mark.parametrize(
    ("config", "generation", "ends"),
    [
        ({"bos_token_id": 0, "eos_token_id": 0}, None, (0, 2)),
        ({"bos_token_id": 0, "eos_token_id": 0}, {"eos_token_id": [0, 2]}, (0, 2)),
        ({"bos_token_id": 1, "eos_token_id": 7}, None, (2, 7)),
        ({"bos_token_id": 1, "eos_token_id": [7, 2]}, {"eos_token_id": 9}, (2, 7, 9)),
        ({"bos_token_id": None, "eos_token_id": None}, None, (2,)),
    ],
)
def test_ouro_ends_at_what_its_checkpoint_names_and_at_its_chat_s_end(config, generation, ends, tmp_path):
    checkpoint = write("ouro", tmp_path)
    type(checkpoint)(checkpoint.raw | config, checkpoint.tensors).write(tmp_path)
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    model, tokenizer = load_model(str(tmp_path))
    assert model_end_tokens(model, tokenizer) == ends
    model.save_pretrained(tmp_path / "ours")
    tokenizer.save_pretrained(tmp_path / "ours")
    assert model_end_tokens(*load_model(str(tmp_path / "ours"))) == ends


def test_a_generation_config_s_list_of_ends_is_kept(tmp_path):
    """Beside a config that names one of them, in our own layout."""
    shutil.copytree(EMBEDDED, tmp_path / "model")
    values = {"eos_token_id": [2, 5], "temperature": 0.6, "top_p": 0.95, "do_sample": True}
    (tmp_path / "model/generation_config.json").write_text(json.dumps(values))
    model, tokenizer = load_model(str(tmp_path / "model"))
    assert model.config.eos_token_id == 2 and model_end_tokens(model, tokenizer) == (2, 5)
    model.save_pretrained(tmp_path / "again")
    again = json.loads((tmp_path / "again/generation_config.json").read_text())
    assert {name: again[name] for name in values} == values


def test_a_generation_config_that_transformers_would_not_save(tmp_path):
    """A temperature without do_sample, read as it is and saved as it is, also after a token was changed."""
    shutil.copytree(EMBEDDED, tmp_path / "model")
    (tmp_path / "model/generation_config.json").write_text(
        '{"temperature": 0.6, "do_sample": false, "eos_token_id": 5}'
    )
    model, _ = load_model(str(tmp_path / "model"))
    assert model.generation_config.eos_token_id == [2, 5]
    model.generation_config.pad_token_id = 3
    model.save_pretrained(tmp_path / "again")
    again = json.loads((tmp_path / "again/generation_config.json").read_text())
    assert again["temperature"] == 0.6 and not again.get("do_sample") and again["pad_token_id"] == 3


def checkpoint_of(run: Path, step: int) -> Path:
    """A complete checkpoint, whose model's depth is its step."""

    def save(folder: Path) -> None:
        tiny_model(depth=step).save_pretrained(folder / "model")

    return save_checkpoint(run / "checkpoints", step, save, keep=9)


def test_a_run_folder_means_its_newest_complete_checkpoint_and_then_its_model(tmp_path):
    run = tmp_path / "run"
    with pytest.raises(UserError, match="holds neither a model .* nor a run"):
        resolve_model(tmp_path)
    (run / "checkpoints").mkdir(parents=True)
    with pytest.raises(UserError, match="run without a complete checkpoint, and without a finished model"):
        load_config(run)
    tiny_model(depth=7).save_pretrained(run / "model")
    assert load_config(run).depth == 7
    first, last = checkpoint_of(run, 2), checkpoint_of(run, 3)
    for place, depth in ((run, 3), (str(run), 3), (first, 2), (last / "model", 3), (run / "model", 7)):
        assert load_config(place).depth == depth
    (run / "recipe.yaml").write_text(Recipe().dump_yaml())
    target = find_target(str(run))
    assert (target.model, target.step) == (resolve_model(run), 3)
    (last / "model" / "model.safetensors").write_bytes(b"cut")
    assert resolve_model(run) == find_target(str(run)).model == str(first / "model")


def test_a_tokenizer_with_more_ids_than_the_embedding_has_rows(tmp_path):
    tiny_model(vocab_size=47).save_pretrained(tmp_path)
    tokenizer = characters()
    assert len(tokenizer) == 47
    tokenizer.save_pretrained(tmp_path)
    load_model(tmp_path)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<think>"]})
    tokenizer.save_pretrained(tmp_path)
    said = r"has ids up to 47 \('<think>'\), the model's embedding 47 rows"
    recipe = Recipe.model_validate({"model": {"path": str(tmp_path)}})
    for function in (
        lambda: load_model(tmp_path),
        lambda: inspect(str(tmp_path), 1, 8, None, None),
        lambda: estimate_memory(recipe),
        lambda: Trainer(recipe),
        lambda: run_eval(str(tmp_path), [], [], out=str(tmp_path / "out"), progress=False),
        lambda: sft(SftRecipe.model_validate({"model": {"path": str(tmp_path)}, "run": {"folder": str(tmp_path)}})),
    ):
        with pytest.raises(UserError, match=said):
            function()


def test_a_folder_without_tokenizer(tmp_path):
    CHECKPOINTS["llama"]().write(tmp_path)
    with pytest.raises(UserError, match="model.path: no tokenizer in"):
        load_model(str(tmp_path))


def test_faults_name_the_recipe_s_key_and_the_folder(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    for function in (load_config, load_model):
        with pytest.raises(UserError, match=f"^model.path: {tmp_path}: config.json is of a llama model"):
            function(str(tmp_path))


@pytest.mark.parametrize("file", ["model.safetensors", "config.json"])
def test_a_training_checkpoint_that_differs_from_its_manifest(file, tmp_path):
    step = save_checkpoint(tmp_path, 3, lambda path: write("llama", path / "model"), keep=1)
    load_model(str(step))
    (step / "model" / file).write_bytes((step / "model" / file).read_bytes().replace(b"a", b"b", 1))
    with pytest.raises(UserError, match=f"is damaged .*{file}"):
        load_model(str(step))


class Hub:
    """A hub of one repository: links the files asked for into a snapshot, as the cache does, and keeps the requests."""

    def __init__(self, files: Path, snapshot: Path) -> None:
        self.files, self.snapshot, self.asked = files, snapshot, []

    def download(self, name: str, *, allow_patterns: list[str], local_files_only: bool) -> str:
        self.asked.append(list(allow_patterns))
        blobs = self.snapshot.parent / "blobs"
        blobs.mkdir(exist_ok=True)
        self.snapshot.mkdir(exist_ok=True)
        for file in self.files.iterdir():
            link = self.snapshot / file.name
            if any(fnmatch.fnmatch(file.name, pattern) for pattern in allow_patterns) and not link.exists():
                blob = blobs / hashlib.sha256(file.read_bytes()).hexdigest()
                shutil.copy(file, blob)
                link.symlink_to(blob)
        return str(self.snapshot)


@pytest.fixture
def fake(tmp_path, monkeypatch):
    (tmp_path / "files").mkdir()
    hub_of_one = Hub(tmp_path / "files", tmp_path / "snapshot")
    monkeypatch.setattr(load, "snapshot_download", hub_of_one.download)
    monkeypatch.setattr(hub, "unreachable", lambda: None)
    return hub_of_one


def fetched(fake: Hub) -> set[str]:
    return {path.name for path in fake.snapshot.iterdir()}


def test_from_the_hub_without_its_code(fake):
    write("parcae", fake.files)
    (fake.files / "modeling_parcae.py").write_text("raise SystemExit('remote code ran')")
    torch.save({}, fake.files / "pytorch_model.bin")
    model, _ = load_model("someone/parcae")
    assert model.config.checkpoint_family == "parcae"
    assert fetched(fake) == {"config.json", "model.safetensors", *TOKENIZER}
    assert load_config("someone/parcae").hidden_size == model.config.hidden_size


def test_from_the_hub_a_bin_where_there_are_no_safetensors(fake):
    checkpoint = write("parcae", fake.files)
    (fake.files / "model.safetensors").unlink()
    torch.save(checkpoint.tensors, fake.files / "pytorch_model.bin")
    load_model("someone/parcae")
    assert "pytorch_model.bin" in fetched(fake)


def test_from_the_hub_no_weights_of_a_model_that_is_not_looped(fake):
    (fake.files / "config.json").write_text('{"model_type": "llama"}')
    (fake.files / "model.safetensors").write_bytes(b"large")
    with pytest.raises(UserError, match="llama model, which is not looped"):
        load_model("someone/llama")
    assert fetched(fake) == {"config.json"}


def test_from_the_hub_a_blob_that_differs_from_its_name(fake):
    write("ouro", fake.files)
    load_model("someone/ouro")
    blob = (fake.snapshot / "model.safetensors").resolve()
    content = bytearray(blob.read_bytes())
    content[-1] ^= 1
    blob.write_bytes(bytes(content))
    with pytest.raises(UserError, match="model.safetensors differs from its SHA-256; delete"):
        load_model("someone/ouro")


def test_a_hub_that_does_not_answer(monkeypatch):
    monkeypatch.setattr(hub, "unreachable", lambda: "the hub is away")
    with pytest.raises(UserError, match=r"no looped model at 'some/one'.*\(the hub is away\)"):
        load_model("some/one")
