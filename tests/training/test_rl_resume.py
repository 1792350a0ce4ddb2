"""Resuming RL: finished runs, changed keys, a kill before the first checkpoint, full disks, damage, two at once."""

import contextlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from loop_rl.errors import UserError
from loop_rl.models.loading import EMBEDDED
from loop_rl.recipe.rl import load_recipe
from loop_rl.runs.closing import closing_lines
from loop_rl.runs.lock import run_lock
from loop_rl.runs.rows import append_row
from loop_rl.training import rl
from loop_rl.training.rl import Trainer, train
from tests.damage import full_disk, seal_again
from tests.tiny import tiny_model
from tests.training.test_rl import recipe_file

LOCAL = {"num_generations": 4, "prompts_per_step": 3, "max_completion_length": 6, "workers": 0}


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    tiny_model(vocab_size=512).save_pretrained(folder)
    AutoTokenizer.from_pretrained(EMBEDDED).save_pretrained(folder)
    return folder


@pytest.fixture
def recipe_for(model_folder, tmp_path):
    """A recipe that runs in this process, with overrides."""

    def make(*overrides: str, **sections):
        file = recipe_file(tmp_path, model_folder, rollout=LOCAL, **sections)
        return load_recipe(file, ["reward.workers=0", *overrides])

    return make


@pytest.fixture(scope="module")
def whole(model_folder, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    file = recipe_file(folder, model_folder, rollout=LOCAL)
    return train(load_recipe(file, ["reward.workers=0", "run.max_steps=3"]), progress=False)


@pytest.fixture
def run(whole, tmp_path) -> Path:
    """A copy of a finished run of 3 steps, in the folder that recipe_for names."""
    shutil.copytree(whole, tmp_path / "runs" / "tiny")
    return tmp_path / "runs" / "tiny"


def rows(run: Path, name: str = "metrics.jsonl"):
    return [json.loads(line) for line in (run / name).read_text().splitlines()]


def model_of(run: Path, step: int = 3) -> bytes:
    return (run / "checkpoints" / f"step_{step}" / "model" / "model.safetensors").read_bytes()


def test_a_finished_run_is_left_as_it_is(run, recipe_for, monkeypatch, capsys):
    monkeypatch.setattr(rl, "Trainer", pytest.fail)  # nothing is even loaded
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert train(recipe_for("run.max_steps=3"), resume=True, progress=False) == run
    train(recipe_for("run.max_steps=2"), resume=True, progress=False)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    assert "3 of 3 steps" in capsys.readouterr().err


def test_another_seed_is_refused_with_both_values(run, recipe_for):
    with pytest.raises(UserError, match="run.seed is 5, the run was started with 0"):
        train(recipe_for("run.max_steps=4", "run.seed=5"), resume=True, progress=False)


def test_more_steps_with_a_rate_that_decays_are_said(run, recipe_for, caplog):
    recipe = run / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace("lr_scheduler_type: constant", "lr_scheduler_type: linear"))
    train(recipe_for("run.max_steps=4", "optim.lr_scheduler_type=linear"), resume=True, progress=False)
    assert "run.max_steps is 4, the run was started with 3" in caplog.text
    assert [row["step"] for row in rows(run)] == [1, 2, 3, 4]
    assert [row["step"] for row in rows(run, "evals.jsonl")] == [0, 3, 4]


def test_a_death_before_the_first_checkpoint_leaves_each_evaluation_once(whole, recipe_for, monkeypatch):
    recipe, step = recipe_for("run.max_steps=3", "run.save_steps=0"), rl.step

    def dies(trainer, *arguments):
        if trainer.step == 2:
            raise RuntimeError("power cut")
        return step(trainer, *arguments)

    with monkeypatch.context() as patch, pytest.raises(RuntimeError):
        patch.setattr(rl, "step", dies)
        train(recipe, progress=False)
    run = train(recipe, resume=True, progress=False)
    assert [row["step"] for row in rows(run)] == [1, 2, 3]
    assert [row["step"] for row in rows(run, "evals.jsonl")] == [0, 3]
    assert model_of(run) == model_of(whole)


@pytest.mark.parametrize("size", [300, 5000])
def test_a_full_disk_is_one_line_and_the_run_goes_on(whole, recipe_for, monkeypatch, size):
    recipe, learn = recipe_for("run.max_steps=3"), Trainer.learn

    def filling(self, *arguments):
        metrics = learn(self, *arguments)
        if self.step == 2:  # completions and metrics, or with more room the checkpoint, are what doesn't fit
            stack.enter_context(full_disk(size))
        return metrics

    with contextlib.ExitStack() as stack, monkeypatch.context() as patch, pytest.raises(UserError) as error:
        patch.setattr(Trainer, "learn", filling)
        train(recipe, progress=False)
    assert "cannot write" in str(error.value) and "\n" not in str(error.value)
    run = train(recipe, resume=True, progress=False)
    assert [row["step"] for row in rows(run)] == [1, 2, 3]
    assert model_of(run) == model_of(whole)


def test_a_training_state_that_is_cut_though_its_manifest_fits_is_one_line(run, recipe_for):
    checkpoint = run / "checkpoints" / "step_3"
    file = checkpoint / "training_state.pt"
    file.write_bytes(file.read_bytes()[:-100])
    seal_again(checkpoint)
    with pytest.raises(UserError, match="training_state.pt.*the checkpoint before it") as error:
        train(recipe_for("run.max_steps=4"), resume=True, progress=False)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_model_that_is_cut_though_its_manifest_fits_is_one_line(run, recipe_for, name):
    checkpoint = run / "checkpoints" / "step_3"
    file = checkpoint / "model" / name
    file.write_bytes(file.read_bytes()[:-100])
    seal_again(checkpoint)
    with pytest.raises(UserError, match=f"cannot resume .*{name}.*the checkpoint before it") as error:
        train(recipe_for("run.max_steps=4"), resume=True, progress=False)
    assert "\n" not in str(error.value)


def test_what_a_run_says_at_its_end_leaves_out_what_is_no_number(run):
    for name in ("metrics.jsonl", "evals.jsonl"):
        append_row(run / name, {"step": 3, "data": "arithmetic", "pass@1": "high", "reward": [1], "time/step": "long"})
    before = closing_lines(run)
    append_row(run / "evals.jsonl", {"step": 3, "data": "other", "pass@1": 0.25, "questions": 4})
    assert closing_lines(run)[1] == "held-out pass@1 on other: 0.250 (step 3) -> 0.250 (step 3), 4 questions"
    assert before[0].startswith("held-out pass@1 on arithmetic") and "nan" not in " ".join(before)


def test_adapters_that_are_cut_though_their_manifest_fits_are_one_line(recipe_for):
    run = train(recipe_for("run.max_steps=1", lora={"r": 2}), progress=False)
    file = run / "checkpoints" / "step_1" / "adapter.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    seal_again(file.parent)
    with pytest.raises(UserError, match="step_1.*the checkpoint before it") as error:
        train(recipe_for("run.max_steps=2", lora={"r": 2}), resume=True, progress=False)
    assert "\n" not in str(error.value)


def test_a_reference_model_that_has_changed_is_refused(recipe_for, model_folder, tmp_path):
    start = tmp_path / "start"
    shutil.copytree(model_folder, start)
    changes = (f"model.path={start}", "learner.beta=0.1")
    train(recipe_for("run.max_steps=1", *changes), progress=False)
    tiny_model(vocab_size=512, seed=1).save_pretrained(start)
    with pytest.raises(UserError, match="no longer the model .* and needs for its reference model; put that back"):
        train(recipe_for("run.max_steps=2", *changes), resume=True, progress=False)


def test_a_second_process_in_the_folder_is_refused(run, recipe_for, tmp_path):
    hold = (
        "import sys, time; from pathlib import Path; from loop_rl.runs.lock import run_lock\n"
        "with run_lock(Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", hold, run], stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout.readline() == "held\n"
            for resume in (False, True):
                with pytest.raises(UserError, match=f"in use by process {holder.pid} "):
                    train(recipe_for("run.max_steps=4"), resume=resume, progress=False)
        finally:
            holder.kill()
    with run_lock(run):
        pass


def test_other_numbers_of_workers_may_resume(run, recipe_for):
    """Nothing is left to do, so nothing starts; what is compared is the recipe."""
    for changed in ("rollout.workers=3", "reward.workers=2", "learner.per_device_train_batch_size=2", "eval.samples=3"):
        assert train(recipe_for("run.max_steps=3", changed), resume=True, progress=False) == run
