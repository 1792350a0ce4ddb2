"""Checkpoints hold what was trained, and all commands read them alike: depth, end tokens, generation settings."""

import json
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from loop_rl.diagnosis.retrofitting import run_retrofit
from loop_rl.evaluation.running import find_target, resolve
from loop_rl.models.convert import convert
from loop_rl.models.generation import model_end_tokens
from loop_rl.models.loading import load_config, load_model
from loop_rl.models.retrofit import Cut
from loop_rl.recipe.rl import Recipe
from loop_rl.training.rl import train
from loop_rl.training.trainer import Trainer
from tests.families import CHAT, tokenizer
from tests.models.families.synthetic import CHECKPOINTS

GENERATION = {"eos_token_id": [2, 5], "temperature": 0.6, "top_p": 0.95, "do_sample": True, "pad_token_id": 7}


def scored_by_length(completions: list[str], **_) -> list[float]:
    return [float(len(c) % 3) for c in completions]


def recipe_for(model: Path, folder: Path, depth: int | None) -> Recipe:
    return Recipe.model_validate(
        {
            "model": {"path": str(model), "depth": depth},
            "data": {"train_size": 4, "eval_size": 2, "template": "{question}="},
            "reward": {"name": f"{__name__}:scored_by_length", "workers": 0},
            "rollout": {"num_generations": 2, "prompts_per_step": 2, "max_completion_length": 4, "workers": 0},
            "eval": {"samples": 1},
            "run": {"max_steps": 1, "threads": 1, "name": "run", "folder": str(folder)},
        }
    )


@pytest.fixture(scope="module")
def released(tmp_path_factory) -> Path:
    """A released checkpoint at depth 5, longer in context than the questions."""
    checkpoint, folder = CHECKPOINTS["llama"](), tmp_path_factory.mktemp("released")
    type(checkpoint)(checkpoint.raw | {"eos_token_id": 2, "block_size": 512}, checkpoint.tensors).write(folder)
    tokenizer().save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps(GENERATION))
    return folder


@pytest.fixture(scope="module")
def run(released, tmp_path_factory) -> Path:
    return train(recipe_for(released, tmp_path_factory.mktemp("runs"), depth=3), progress=False)


def generation_of(folder: Path) -> dict:
    values = json.loads((folder / "generation_config.json").read_text())
    return {name: values.get(name) for name in GENERATION}


def test_training_ends_completions_where_eval_does(released, tmp_path):
    assert Trainer(recipe_for(released, tmp_path, None)).sampling.eos_token_ids == (2, 5)
    assert model_end_tokens(*load_model(str(released))) == (2, 5)


def test_the_depth_is_saved_and_used_by_every_command(run, released, tmp_path):
    model = run / "checkpoints/step_1/model"
    assert load_config(str(released)).depth == 5
    assert load_config(str(run)).depth == load_config(str(model)).depth == 3
    assert AutoModelForCausalLM.from_pretrained(model).config.depth == 3
    assert resolve(find_target(str(run)), None, []).model.depth == 3
    assert Trainer(recipe_for(run, tmp_path, None)).sampling.depth == 3
    convert(str(run), str(tmp_path / "own"), "own", None)
    convert(str(run), str(tmp_path / "back"), "family", None)
    assert json.loads((tmp_path / "own/config.json").read_text())["depth"] == 3
    assert json.loads((tmp_path / "back/config.json").read_text())["mean_recurrence"] == 3


def test_generation_settings_and_tokenizer_survive_training_and_conversion(run, tmp_path):
    convert(str(run), str(tmp_path / "own"), "own", None)
    convert(str(run), str(tmp_path / "back"), "family", None)
    for folder in (run / "checkpoints/step_1/model", tmp_path / "own", tmp_path / "back"):
        assert generation_of(folder) == GENERATION
        model, read = load_model(str(folder))
        assert read.chat_template == CHAT and model_end_tokens(model, read) == (2, 5)


def test_a_retrofit_keeps_how_its_source_generates(tmp_path):
    """Also a temperature without do_sample, which transformers reads but does not save once something changed."""
    sizes = dict(hidden_size=16, intermediate_size=24, num_attention_heads=2, num_key_value_heads=1)
    config = LlamaConfig(vocab_size=47, num_hidden_layers=3, bos_token_id=1, eos_token_id=2, **sizes)
    LlamaForCausalLM(config).save_pretrained(tmp_path / "source")
    tokenizer().save_pretrained(tmp_path / "source")
    values = {"eos_token_id": [2, 5], "temperature": 0.6, "do_sample": False, "pad_token_id": 7}
    (tmp_path / "source/generation_config.json").write_text(json.dumps(values))
    cut, out = Cut(range(1), range(1, 2), range(2, 3)), tmp_path / "looped"
    run_retrofit(str(tmp_path / "source"), str(out), cut, 2, "parcae_no_norm", "arithmetic", None, 1, 8, 1)
    written = json.loads((out / "generation_config.json").read_text())
    assert {name: written[name] for name in values} == values
    model, read = load_model(out)
    assert read.chat_template == CHAT and model_end_tokens(model, read) == (2, 5)
