"""One step of learning as the loop asks for it: several iterations, batches without signal, what is measured when."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer

from loop_rl.learner.batch import samples_of
from loop_rl.learner.objective import group_advantages
from loop_rl.models.loading import EMBEDDED
from loop_rl.recipe.rl import Recipe
from loop_rl.training.trainer import Trainer
from tests.rounding import logp_rounding
from tests.tiny import tiny_model, tiny_rollouts

SIGNAL = group_advantages(torch.tensor([[1.0, 0, 0, 1], [0, 1, 0, 0], [1, 0, 1, 1]]))
SILENT = torch.zeros(3, 4, dtype=torch.float64)


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    tiny_model(vocab_size=512).save_pretrained(folder)
    AutoTokenizer.from_pretrained(EMBEDDED).save_pretrained(folder)
    return folder


def trainer_of(folder: Path, **sections) -> Trainer:
    base = {
        "model": {"path": str(folder)},
        "data": {"train_size": 4, "eval_size": 1},
        "rollout": {"max_completion_length": 7, "prompts_per_step": 3, "num_generations": 4},
        "optim": {"learning_rate": 0.02},
    }
    return Trainer(Recipe.model_validate(base | sections))


def test_metrics_are_of_all_iterations(model_folder) -> None:
    several = trainer_of(model_folder, learner={"num_iterations": 3, "epsilon": 0.01, "beta": 0.05})
    rollouts = tiny_rollouts(several.looped)
    bound = logp_rounding(several.looped, samples_of(rollouts, SIGNAL))
    metrics = several.learn(rollouts, SIGNAL)
    assert metrics["clip_ratio/region_mean"] > 0.1, "the second and the third update clip"
    assert metrics["sampling/sampling_logp_difference/mean"] <= bound, "the first has the sampler's weights"
    once = trainer_of(model_folder, learner={"epsilon": 0.01, "beta": 0.05})
    first = once.learn(tiny_rollouts(once.looped), SIGNAL)
    assert first["clip_ratio/region_mean"] == 0
    assert metrics["completions/learned_tokens"] == 3 * first["completions/learned_tokens"]
    assert metrics["skipped_update"] == 0 and metrics["kl"] > first["kl"] == pytest.approx(0, abs=bound)
    assert first.keys() == metrics.keys() and "time/reference" in metrics
    silent = several.learn(tiny_rollouts(several.looped), SILENT * torch.nan)
    assert silent["skipped_update"] == 3 and silent["clip_ratio/region_mean"] is None


def test_a_batch_without_signal_breaks_no_limit(model_folder) -> None:
    limits = {"cosine_steps": 1, "min_cosine": 0.9, "max_residual": 1e-9, "max_term_ratio": 1e-9, "on_breach": "stop"}
    trainer = trainer_of(model_folder, health=limits)
    metrics = trainer.learn(tiny_rollouts(trainer.looped), SILENT)
    assert trainer.health.breached is None and metrics["health/breached"] == 0
    assert metrics["gradient/cosine"] is None and metrics["residual/q90"] is None
    trainer.learn(tiny_rollouts(trainer.looped), SIGNAL)
    assert "residual/q90" in trainer.health.breached


def test_states_are_checked_by_replay_now_and_then(model_folder) -> None:
    trainer = trainer_of(model_folder, health={"replay_steps": 2})
    rollouts = tiny_rollouts(trainer.looped)
    bound = logp_rounding(trainer.looped, samples_of(rollouts, SIGNAL))
    name = "sampling/replay_logp_difference"
    rows = [trainer.learn(rollouts, SILENT) for _ in range(3)]
    assert [name in row for row in rows] == [True, False, True] and rows[0][name] <= bound
    assert trainer.health.breached is None
    with torch.no_grad():  # from here on the sampler's weights are others
        trainer.looped.model.embed_tokens.weight.mul_(-1)
    trainer.learn(rollouts, SIGNAL)
    row = trainer.learn(rollouts, SIGNAL)
    assert row[name] > 0.1 and name in trainer.health.breached
    replaying = trainer_of(model_folder, learner={"estimator": "full_bptt"})
    assert name not in replaying.learn(rollouts, SILENT), "there the ratio itself shows it"


@pytest.mark.parametrize(
    ("dtype", "lora", "saved"),
    [("float32", None, "float32"), ("bfloat16", None, "bfloat16"), ("bfloat16", {"r": 2}, "float32")],
)
def test_a_checkpoint_says_the_type_of_its_weights(model_folder, tmp_path, dtype, lora, saved) -> None:
    trainer = trainer_of(model_folder, model={"path": str(model_folder), "dtype": dtype}, lora=lora)
    trainer.save(tmp_path)
    trainer.save(tmp_path)  # transformers leaves the type's name, not the type, in a config that it has saved
    assert json.loads((tmp_path / "model" / "config.json").read_text())["dtype"] == saved
    weights = load_file(tmp_path / "model" / "model.safetensors").values()
    assert {weight.dtype for weight in weights} == {getattr(torch, saved)}
