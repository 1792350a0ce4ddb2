"""A bfloat16 run that trains adapters: what it saves, and that `loop-rl eval` finds what training found."""

import shutil
from pathlib import Path

import pyarrow.parquet
import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from loop_rl.errors import UserError
from loop_rl.evaluation.running import run_eval
from loop_rl.models.adapters import ADAPTER_FILE, load_adapters, save_adapters
from loop_rl.models.convert import convert
from loop_rl.models.loading import EMBEDDED, load_model
from loop_rl.recipe.rl import Recipe, load_recipe
from loop_rl.runs.rows import read_rows
from loop_rl.training.rl import train
from loop_rl.training.trainer import Trainer


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    shutil.copytree(EMBEDDED, folder / "start")
    recipe = Recipe.model_validate(
        {
            "model": {"path": str(folder / "start"), "dtype": "bfloat16"},
            "data": {"train_size": 8, "eval_size": 8},
            "reward": {"workers": 0},
            "rollout": {"num_generations": 6, "prompts_per_step": 4, "max_completion_length": 24, "workers": 0},
            "optim": {"learning_rate": 1e-3},
            "lora": {"r": 4},
            "eval": {"samples": 2},
            "run": {"max_steps": 2, "threads": 1, "name": "lora", "folder": str(folder)},
        }
    )
    return train(recipe, progress=False)


def completions(folder: Path, row: dict) -> list[dict]:
    rows = pyarrow.parquet.read_table(folder / row["file"]).to_pylist()
    return [{name: value for name, value in row.items() if name != "step"} for row in rows]


def test_an_evaluation_of_the_run_is_that_of_training(run, tmp_path):
    measured = read_rows(run / "evals.jsonl")[0]
    (again,) = run_eval(str(run), [], [], out=str(tmp_path), progress=False)
    assert again["step"] == 2 and again["pass@1"] == measured[-1]["pass@1"]
    assert completions(tmp_path, again) == completions(run, measured[-1])
    assert completions(run, measured[0]) != completions(run, measured[-1]), "the run is meant to change something"
    assert {row["rollout/weight_bytes"] for row in read_rows(run / "metrics.jsonl")[0]} == {
        float(4 * sum(value.numel() for value in load_file(run / "checkpoints/step_2/adapter.safetensors").values()))
    }


def test_the_saved_model_is_not_rounded(run, tmp_path):
    checkpoint = run / "checkpoints/step_2"
    base = load_model(str(run.parent / "start"), "bfloat16")[0].state_dict()
    saved, adapters = load_file(checkpoint / "model/model.safetensors"), load_file(checkpoint / "adapter.safetensors")
    eps = torch.finfo(torch.float32).eps
    seen = 0
    for name, value in saved.items():
        exact, bound = base[name].double(), 0.0
        layer = f"base_model.model.{name.removesuffix('.weight')}"
        if f"{layer}.lora_A.default.weight" in adapters:
            up, down = (adapters[f"{layer}.lora_{x}.default.weight"].double() for x in "BA")
            exact = exact + 32 / 4 * up @ down
            bound = 8 * eps * float(exact.abs().max())  # 4 products, a scale and a sum
            seen += int(not torch.equal(value.bfloat16().float(), value))
        assert value.dtype == torch.float32
        torch.testing.assert_close(value.double(), exact, rtol=0, atol=bound)
    assert seen
    model = AutoModelForCausalLM.from_pretrained(checkpoint / "model", dtype="auto")
    assert model.dtype == torch.float32
    assert "float32" in convert(str(run), str(tmp_path / "out"), "own", None)


def test_adapters_that_are_not_those_of_the_recipe_are_refused(run, tmp_path):
    recipe = Recipe.model_validate(yaml.safe_load((run / "recipe.yaml").read_text()))
    trainer = Trainer(recipe)
    save_adapters(trainer.model, tmp_path)
    own = load_file(tmp_path / ADAPTER_FILE)
    name = next(iter(own))
    for changed in ({n: v for n, v in own.items() if n != name}, {**own, name: own[name][:1].clone()}):
        save_file(changed, tmp_path / ADAPTER_FILE)
        with pytest.raises(ValueError, match="lacks .*lora_A"):
            load_adapters(trainer.model, tmp_path)
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    recipe_file = copy / "recipe.yaml"
    recipe_file.write_text(recipe_file.read_text().replace("r: 4", "r: 2"))
    with pytest.raises(UserError, match="cannot use the adapters in .*step_2 .*; or evaluate .*step_2/model$"):
        run_eval(str(copy), [], [], out=str(tmp_path), progress=False)


def test_a_start_that_has_changed_or_gone_is_refused(run, tmp_path):
    """Last: it changes the model that the run started from."""
    model, _ = load_model(str(run.parent / "start"))
    with torch.no_grad():
        model.model.core[0].mlp.up_proj.weight.mul_(1.5)
    model.save_pretrained(run.parent / "start")
    with pytest.raises(UserError, match="no longer the model that the run started from .*up_proj.*; evaluate "):
        run_eval(str(run), [], [], out=str(tmp_path), progress=False)
    longer = load_recipe(run / "recipe.yaml", ["run.max_steps=3"])
    with pytest.raises(UserError, match="no longer the model that the run started from and needs for its adapters;"):
        train(longer, resume=True, progress=False)
    (run.parent / "start").rename(run.parent / "moved")
    with pytest.raises(
        UserError, match="no looped model at .*start.*; the run's adapters belong on it; or evaluate .*step_2/model$"
    ):
        run_eval(str(run), [], [], out=str(tmp_path), progress=False)
