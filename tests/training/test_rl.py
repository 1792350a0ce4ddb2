"""The RL loop end to end on a tiny model: run folder, resume, kill, bad input."""

import itertools
import json
import math
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pyarrow.parquet
import pytest
import torch
import yaml
from safetensors.torch import load_file
from transformers import AutoTokenizer

from loop_rl.data.prompts import all_prompt_ids
from loop_rl.errors import UserError
from loop_rl.evaluation import Rewards
from loop_rl.learner.batch import samples_of
from loop_rl.learner.update import trained_weights
from loop_rl.models.loading import EMBEDDED, load_model
from loop_rl.recipe.rl import Recipe, load_recipe
from loop_rl.rollout.instance import ServerDied
from loop_rl.rollout.sampler import sample_groups
from loop_rl.training.rl import Trainer, train
from loop_rl.training.rl_metrics import reward_matrix, reward_metrics
from tests.rounding import logp_rounding
from tests.tiny import tiny_model


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    tiny_model(vocab_size=512).save_pretrained(folder)
    AutoTokenizer.from_pretrained(EMBEDDED).save_pretrained(folder)
    return folder


AT_CALLS: dict[int, Callable[[], None]] = {}  # what happens in which call of reward_by_length, of those from 1 on
_CALLS = itertools.count(1)


def reward_by_length(completions: list[str], **_) -> list[float]:
    """Something a random model can get more of."""
    AT_CALLS.get(next(_CALLS), lambda: None)()
    return [float(len(c) % 5) for c in completions]


def reward_of_odd_lengths(completions: list[str], log_extra=None, **_) -> list[float | None]:
    """None for completions of an even length."""
    log_extra("reason", ["not scored: even" if len(c) % 2 == 0 else "correct" for c in completions])
    return [None if len(c) % 2 == 0 else 1.0 for c in completions]


def recipe_file(folder: Path, model: Path, **changes) -> Path:
    values = {
        "model": {"path": str(model)},
        "data": {"train_size": 10, "eval_size": 3},
        "reward": {"name": "tests.training.test_rl:reward_by_length"},
        "rollout": {"num_generations": 4, "prompts_per_step": 3, "max_completion_length": 6},
        "optim": {"learning_rate": 0.01},
        "eval": {"samples": 2},
        "run": {"max_steps": 4, "save_steps": 1, "threads": 1, "folder": str(folder / "runs")},
    }
    for section, keys in changes.items():
        values[section] = {**values.get(section, {}), **keys} if keys is not None else None
    file = folder / "tiny.yaml"
    file.write_text(yaml.safe_dump(values))
    return file


def local(file: Path) -> Recipe:
    """The recipe of a run in this process alone."""
    return load_recipe(file, ["rollout.workers=0", "reward.workers=0"])


def weights(run: Path, step: int) -> dict[str, torch.Tensor]:
    return load_file(run / "checkpoints" / f"step_{step}" / "model" / "model.safetensors")


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


@pytest.fixture(scope="module")
def finished(tmp_path_factory, model_folder) -> Path:
    """A run without workers, which needs no Ray."""
    recipe = local(recipe_file(tmp_path_factory.mktemp("whole"), model_folder))
    with mock.patch("ray.init", side_effect=AssertionError("Ray was started")):
        return train(recipe, progress=False)


def test_a_run_folder_holds_what_report_needs(finished: Path, model_folder: Path) -> None:
    rows = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert [row["policy_version"] for row in rows] == [0, 1, 2, 3]
    for row in rows:
        assert {"reward", "reward_std", "entropy", "loss", "grad_norm", "residual/median"} <= row.keys()
        assert {
            f"time/{phase}" for phase in ("rollout", "reward", "reward_wait", "update", "optimizer", "weights", "step")
        } <= row.keys()
        assert all(value is not None for value in row.values())
        apart = ("time/step", "time/reward")  # the sum of the others, and what all reward workers took beside them
        assert (
            sum(value for name, value in row.items() if name.startswith("time/") and name not in apart)
            <= (row["time/step"])
        )
    told = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    names = [re.sub("^rewards/.*/", "rewards/NAME/", name) for name in rows[0]]
    assert [name for name in names if f"`{name}`" not in told] == []
    placement = json.loads((finished / "environment.json").read_text())["placement"]
    assert placement["learner"]["ranks"] == 1 and torch.device(placement["learner"]["device"]).type in ("cpu", "cuda")
    gpus = ["0"] if torch.cuda.is_available() else []
    assert placement["rollout"] == [{"node": placement["learner"]["node"], "gpus": gpus}]
    evals = [json.loads(line) for line in (finished / "evals.jsonl").read_text().splitlines()]
    assert [row["step"] for row in evals] == [0, 4]
    assert Recipe(**yaml.safe_load((finished / "recipe.yaml").read_text())).rollout.num_generations == 4
    assert len(list((finished / "completions").glob("*.parquet"))) == 4
    start = load_file(model_folder / "model.safetensors")
    assert not same(start, weights(finished, 4))
    trainer = Trainer(Recipe(**yaml.safe_load((finished / "recipe.yaml").read_text())))
    for row, folder in ((rows[0], model_folder), (rows[3], finished / "checkpoints" / "step_3" / "model")):
        examples, seeds = trainer.prompts(row["policy_version"])
        model = load_model(folder)[0].eval()
        prompts = all_prompt_ids(trainer.tokenizer, [example.prompt for example in examples])
        rollouts = sample_groups(model, prompts, trainer.sampling, seeds, tokenizer=trainer.tokenizer)
        bound = math.expm1(logp_rounding(model, samples_of(rollouts, torch.zeros(3, 4))))
        assert row["sampling/importance_sampling_ratio/mean"] == pytest.approx(1.0, abs=bound)


def test_a_run_killed_at_a_random_moment_ends_with_the_same_weights(
    ray_instance, finished: Path, tmp_path: Path, model_folder: Path
) -> None:
    """It had workers, as has the process that resumes it; the other run had none."""
    file = recipe_file(tmp_path, model_folder)
    code = (
        "import sys; from loop_rl.recipe.rl import load_recipe; from loop_rl.training.rl import train\n"
        "if __name__ == '__main__': train(load_recipe(sys.argv[1]), progress=False)"
    )
    script = tmp_path / "run.py"
    script.write_text(code)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")])}
    process = subprocess.Popen([sys.executable, script, file], env=env, start_new_session=True)
    checkpoints = tmp_path / "runs" / "tiny" / "checkpoints"
    while not (checkpoints / "step_1").exists():
        assert process.poll() in (None, 0)
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    run = train(load_recipe(file, ["reward.workers=2"]), resume=True, progress=False)
    assert same(weights(run, 4), weights(finished, 4))
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2, 3, 4]


def interrupted(monkeypatch, file: Path, call: int, signals: int, message: str, then: Exception | None = None) -> Path:
    """Run the recipe here, Ctrl-C coming `signals` times in a call of the reward, which then may raise; its folder.

    A call scores a group: three questions before the first step, three prompts in each step, three questions at last.
    """

    def ctrl_c() -> None:
        for _ in range(signals):
            os.kill(os.getpid(), signal.SIGINT)
        if then is not None:
            raise then

    monkeypatch.setattr(sys.modules[__name__], "_CALLS", itertools.count(1))
    monkeypatch.setitem(AT_CALLS, call, ctrl_c)
    recipe = local(file)
    with pytest.raises(KeyboardInterrupt, match=message):
        train(recipe, progress=False)
    monkeypatch.delitem(AT_CALLS, call)
    return Path(recipe.run.folder) / recipe.run.name


@pytest.mark.parametrize(
    ("signals", "then", "step", "answer"),
    [
        (1, None, 2, "stopping after the step under way"),
        (2, None, 1, "Ctrl-C again ends at once"),
        (1, ServerDied("as when a whole job is asked to end"), 1, "stopping after the step under way"),
    ],
)
def test_ctrl_c_ends_the_step_and_a_second_one_gives_it_up(
    signals: int, then, step: int, answer: str, finished: Path, tmp_path: Path, model_folder: Path, monkeypatch, capfd
) -> None:
    file = recipe_file(tmp_path, model_folder)
    run = interrupted(
        monkeypatch, file, 3 + 3 + 2, signals, f"stopped after step {step}; .*step_{step} is complete", then
    )
    said = [line for line in capfd.readouterr().err.splitlines() if "Ctrl-C" in line]
    assert len(said) == 1 and answer in said[0]
    assert len((run / "metrics.jsonl").read_text().splitlines()) == step
    train(local(file), resume=True)
    assert same(weights(run, 4), weights(finished, 4))
    out = capfd.readouterr().out
    assert f"step {step + 1}/4  reward " in out and "step 4/4  reward " in out and " tokens/s" in out
    assert "held-out pass@1 on arithmetic: " in out and f"model: {run}/checkpoints/step_4/model" in out
    assert f"next: loop-rl report {run}" in out


def test_a_third_ctrl_c_in_an_update_saves_nothing_of_it(
    finished: Path, tmp_path: Path, model_folder: Path, monkeypatch
) -> None:
    recipe, learn = local(recipe_file(tmp_path, model_folder)), Trainer.learn

    def cut(trainer, *arguments):
        metrics = learn(trainer, *arguments)
        for _ in range(3 if trainer.step == 2 else 0):  # the weights have changed, and their row isn't written
            os.kill(os.getpid(), signal.SIGINT)
        return metrics

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt, match="step_1 is complete"):
        patch.setattr(Trainer, "learn", cut)
        train(recipe, progress=False)
    run = train(recipe, resume=True, progress=False)
    assert [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()] == [1, 2, 3, 4]
    assert same(weights(run, 4), weights(finished, 4))


def test_a_last_evaluation_that_was_given_up_is_made_on_resume(tmp_path: Path, model_folder: Path, monkeypatch) -> None:
    file = recipe_file(tmp_path, model_folder, run={"max_steps": 1})
    run = interrupted(monkeypatch, file, 3 + 3 + 1, 2, "stopped after step 1; .*step_1 is complete")
    before = weights(run, 1)
    assert [json.loads(line)["step"] for line in (run / "evals.jsonl").read_text().splitlines()] == [0]
    for _ in range(2):  # the second time there is nothing left
        train(local(file), resume=True, progress=False)
        assert [json.loads(line)["step"] for line in (run / "evals.jsonl").read_text().splitlines()] == [0, 1]
    assert same(weights(run, 1), before)


def test_updates_that_are_not_finite_stop_the_run_and_nothing_bad_is_saved(
    tmp_path: Path, model_folder: Path, monkeypatch
) -> None:
    file = recipe_file(tmp_path, model_folder, run={"max_steps": 20})
    recipe = local(file)
    monkeypatch.setattr("loop_rl.learner.update.Learner._step", lambda learner: None)
    with pytest.raises(UserError, match="3 updates in a row .* not finite; no checkpoint was saved; lower optim.l"):
        train(recipe, progress=False)
    assert not list(Path(recipe.run.folder).glob("*/checkpoints/*"))
    trainer = Trainer(recipe)
    trainer.learner.parameters[-1].data.view(-1)[0] = math.nan
    with pytest.raises(UserError, match="not finite after step 0, so they were not saved"):
        trainer.save(tmp_path / "saved")


def test_every_step_draws_its_prompts_from_its_number(model_folder: Path, tmp_path: Path) -> None:
    trainer = Trainer(load_recipe(recipe_file(tmp_path, model_folder)))
    drawn = [example.index for step in range(10) for example in trainer.prompts(step)[0]]
    for epoch in range(3):
        assert sorted(drawn[10 * epoch : 10 * epoch + 10]) == sorted(e.index for e in trainer.task.splits.train)
    assert drawn[:10] != drawn[10:20]
    again = Trainer(load_recipe(recipe_file(tmp_path, model_folder)))
    assert again.prompts(7) == trainer.prompts(7)
    assert trainer.prompts(0)[1] != trainer.prompts(1)[1]


def test_lora_resumes_from_its_adapters(model_folder: Path, tmp_path: Path) -> None:
    trainer = Trainer(load_recipe(recipe_file(tmp_path, model_folder, lora={"r": 2})))
    with torch.no_grad():
        for p in trainer.learner.parameters:
            p.add_(torch.randn_like(p))
    trainer.step = 3
    trainer.save(tmp_path / "saved")
    other = Trainer(load_recipe(recipe_file(tmp_path, model_folder, lora={"r": 2})))
    other.load(tmp_path / "saved")
    assert other.step == 3
    assert same(trained_weights(other.model), trained_weights(trainer.model))
    assert same(weights_of(tmp_path / "saved"), {k: v for k, v in _merged(trainer).items()})


def weights_of(checkpoint: Path) -> dict[str, torch.Tensor]:
    return load_file(checkpoint / "model" / "model.safetensors")


def _merged(trainer: Trainer) -> dict[str, torch.Tensor]:
    from loop_rl.models.adapters import merged_weights

    return merged_weights(trainer.looped)


def test_several_rewards_on_several_sets(ray_instance, model_folder: Path, tmp_path: Path) -> None:
    here = "tests.training.test_rl"
    questions = [{"question": f"What is {n} + 1?", "answer": n + 1, "level": n % 2} for n in range(40)]
    (tmp_path / "other.jsonl").write_text("".join(json.dumps(row) + "\n" for row in questions))
    file = recipe_file(
        tmp_path,
        model_folder,
        reward={"name": None, "functions": {f"{here}:reward_by_length": 2.0, f"{here}:reward_of_odd_lengths": -1}},
        eval={"samples": 2, "data": [str(tmp_path / "other.jsonl")], "size": 2},
        run={"max_steps": 1},
    )
    run = train(load_recipe(file, ["rollout.workers=0", "reward.workers=2"]), progress=False)
    (row,) = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    samples = pyarrow.parquet.read_table(run / "completions" / "step_1.parquet").to_pylist()
    odd = [len(sample["completion"]) % 2 for sample in samples]
    lengths = [float(len(sample["completion"]) % 5) for sample in samples]
    expected = [2 * length - one for length, one in zip(lengths, odd, strict=True)]  # None is left out of the sum
    assert len(samples) == 12 and 0 < sum(odd) < 12
    assert row["reward_errors"] == 0
    assert [sample["reward"] for sample in samples] == expected
    assert row["reward"] == pytest.approx(statistics.fmean(expected))
    assert row[f"rewards/{here}:reward_by_length/mean"] == pytest.approx(statistics.fmean(lengths))
    assert row[f"rewards/{here}:reward_by_length/std"] == pytest.approx(statistics.stdev(lengths))
    assert row[f"rewards/{here}:reward_of_odd_lengths/mean"] == 1.0
    assert [sample["reason"] for sample in samples] == [None] * 12  # the deciding function says nothing
    evals = [json.loads(line) for line in (run / "evals.jsonl").read_text().splitlines()]
    assert [(e["step"], e["data"]) for e in evals] == [
        (step, data) for step in (0, 1) for data in ("arithmetic", str(tmp_path / "other.jsonl"))
    ]
    assert [e["questions"] for e in evals] == [3, 2, 3, 2]
    assert "by_level" in evals[1] and evals[1]["no_answer"] is not None  # its own reward, which says why
    assert len(list((run / "evals").glob("*.parquet"))) == 4
    table = pyarrow.parquet.read_table(run / evals[0]["file"])
    assert f"reward/{here}:reward_of_odd_lengths" in table.column_names


def test_what_is_not_scored_is_in_no_metric_and_a_group_without_scores_has_no_signal() -> None:
    values = [[1.0, None, 0.0, 0.0], [None] * 4, [1.0, 1.0, None, 1.0]]
    scores = [Rewards(group, {"x": group}, [None] * 4, [None] * 4, 0.0) for group in values]
    completion = SimpleNamespace(token_ids=[1, 2], finish_reason="stop", mean_depth=4.0)
    rollouts = [SimpleNamespace(completions=[completion] * 4, version=0)] * 3
    rewards = reward_matrix(values)
    row = reward_metrics(rewards, scores, rollouts)
    assert row["reward"] == row["rewards/x/mean"] == pytest.approx(4 / 6)
    assert row["rewards/x/std"] == pytest.approx(statistics.stdev([1, 0, 0, 1, 1, 1]))
    assert row["reward_std"] == pytest.approx(statistics.fmean([statistics.stdev([1, 0, 0]), 0.0]))
    assert (row["reward_errors"], row["frac_reward_zero_std"]) == (6, pytest.approx(2 / 3))
    nothing = reward_metrics(rewards[1:2], scores[1:2], rollouts[:1])
    assert math.isnan(nothing["reward"]) and nothing["frac_reward_zero_std"] == 1.0


def test_data_without_questions_to_train_on_is_refused(model_folder: Path, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "math500_test.jsonl").write_text(
        json.dumps({"problem": "1+1", "answer": "2", "level": 1, "subject": "Algebra", "unique_id": "a"}) + "\n"
    )
    sets = {"name": "math500", "folder": str(tmp_path), "train_size": None, "eval_size": None}
    file = recipe_file(tmp_path, model_folder, data=sets, reward={"name": None})
    with pytest.raises(UserError, match="math500 has no questions to train on") as error:
        train(load_recipe(file), progress=False)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "runs").exists()


def test_a_reward_that_lacks_a_column_is_refused_before_a_worker_starts(model_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="needs the column 'folder'"):
        Trainer(load_recipe(recipe_file(tmp_path, model_folder, reward={"name": "tests.reward.toy_rewards:marks"})))


def test_a_folder_in_use_is_refused(finished: Path, model_folder: Path) -> None:
    file = recipe_file(finished.parents[1], model_folder)
    with pytest.raises(UserError, match="already holds a run"):
        train(load_recipe(file), progress=False)


def test_resuming_another_recipe_is_refused(finished: Path, model_folder: Path) -> None:
    file = recipe_file(finished.parents[1], model_folder, optim={"learning_rate": 0.5})
    with pytest.raises(UserError, match=r"optim.learning_rate is 0.5, the run was started with 0.01"):
        train(load_recipe(file), resume=True, progress=False)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("truncate", "can't be read"),
        ("shape", "do not fit"),
        ("missing", "missing keys"),
        ("family", "not looped"),
        ("nothing", "no looped model"),
    ],
)
def test_bad_checkpoints_get_one_clear_line(damage: str, message: str, model_folder: Path, tmp_path: Path) -> None:
    import shutil

    from safetensors.torch import save_file

    folder = tmp_path / "model"
    shutil.copytree(model_folder, folder)
    file, config = folder / "model.safetensors", folder / "config.json"
    if damage == "truncate":
        file.write_bytes(file.read_bytes()[:-1000])
    elif damage == "shape":
        config.write_text(json.dumps({**json.loads(config.read_text()), "intermediate_size": 64}))
    elif damage == "missing":
        tensors = load_file(file)
        tensors.pop("model.norm.weight")
        save_file(tensors, file, metadata={"format": "pt"})
    elif damage == "family":
        config.write_text(json.dumps({"model_type": "llama"}))
    else:
        folder = tmp_path / "nowhere"
    with pytest.raises(UserError, match=message) as error:
        Trainer(load_recipe(recipe_file(tmp_path, folder)))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("target", ["nosuch", "attn_norm"])
def test_lora_targets_that_cannot_be_adapted_are_named(target: str, model_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="lora.target_modules"):
        Trainer(load_recipe(recipe_file(tmp_path, model_folder, lora={"target_modules": [target]})))
