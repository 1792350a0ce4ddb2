"""`loop-rl eval`: what is evaluated and how, and that a stopped evaluation ends as one that was never stopped."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pyarrow.parquet
import pytest
import yaml

from loop_rl.cli import main
from loop_rl.errors import UserError
from loop_rl.evaluation.running import find_target, model_name, resolve
from loop_rl.models.generation import end_tokens
from loop_rl.recipe.rl import Recipe
from loop_rl.rollout import sampler
from loop_rl.runs.checkpoints import save_checkpoint

SMALL = ["--samples", "2", "--set", "rollout.max_completion_length=4"]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    from loop_rl.models import LoopedConfig, LoopedForCausalLM
    from loop_rl.models.loading import EMBEDDED

    folder = tmp_path_factory.mktemp("models") / "tiny"
    config = LoopedConfig(
        hidden_size=32, intermediate_size=64, num_attention_heads=2, num_key_value_heads=1, head_dim=16, depth=2
    )
    config.eos_token_id = 2
    LoopedForCausalLM(config).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_text((EMBEDDED / name).read_text())
    return folder


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)


def run_folder(folder: Path, **sections: dict) -> Path:
    folder.mkdir()
    values = {"model": {"depth": 3}, "data": {"eval_size": 50}, **sections}
    (folder / "recipe.yaml").write_text(Recipe.model_validate(values).dump_yaml())
    return folder


def evaluated(capsys, *argv: str) -> list[dict]:
    assert main(["eval", *argv, "--format", "json"]) == 0
    return json.loads(capsys.readouterr().out)


def refused(capsys, *argv: str) -> str:
    assert main(["eval", *argv]) == 2
    error = capsys.readouterr().err
    assert error.startswith("loop-rl: ") and error.count("\n") == 1
    return error


def samples(row: dict, folder: str | Path) -> list[dict]:
    return pyarrow.parquet.read_table(Path(folder) / row["file"]).to_pylist()


# ---- what is evaluated


def test_a_run_brings_its_recipe_and_other_data_its_own(tmp_path) -> None:
    target = find_target("embedded")
    assert (target.model, target.run) == ("embedded", None)
    assert resolve(target, "gsm8k", ["model.depth=4"]).model.depth == 4
    folder = run_folder(
        tmp_path / "run",
        data={"eval_size": 50, "seed": 5, "folder": "here", "template": "Q: {question}"},
        reward={"name": "mine:f"},
        rollout={"workers": 4, "cluster": "auto", "max_completion_length": 33},
        eval={"size": 9},
    )
    with pytest.raises(UserError, match="without a complete checkpoint"):
        find_target(str(folder))
    (folder / "model").mkdir()
    (folder / "model/config.json").write_text("{}")
    target = find_target(str(folder))
    assert target.run == folder
    own, again, other = resolve(target, None, []), resolve(target, "arithmetic", []), resolve(target, "gsm8k", [])
    assert own == again
    assert (own.data.name, own.data.eval_size, own.model.depth, own.reward.name) == ("arithmetic", 50, 3, "mine:f")
    assert (other.data.name, other.data.eval_size, other.data.template) == ("gsm8k", 9, None)
    assert (other.data.seed, other.data.folder, other.reward.name) == (5, "here", None)
    for recipe in (own, other):  # the rest is the run's, but not where it was sampled
        assert (recipe.model.depth, recipe.rollout.max_completion_length) == (3, 33)
        assert (recipe.rollout.workers, recipe.rollout.cluster, recipe.model.path) == (1, None, str(folder / "model"))
    changed = resolve(target, "gsm8k", ["data.eval_size=7", "reward.name=gsm8k_strict", "rollout.workers=2"])
    assert (changed.data.eval_size, changed.reward.name, changed.rollout.workers) == (7, "gsm8k_strict", 2)


@pytest.mark.parametrize("change", ["model.depth=1", "rollout.cache=terminal", "rollout.depth_tolerance=0.1"])
def test_what_only_the_learner_can_not_have_is_evaluated(tmp_path, change) -> None:
    folder = run_folder(tmp_path / "run", learner={"estimator": "truncated_bptt2"})
    (folder / "model").mkdir()
    (folder / "model/config.json").write_text("{}")
    section, key = change.split("=")[0].split(".")
    assert resolve(find_target(str(folder)), None, [change]).model_dump()[section][key] in (1, "terminal", 0.1)


def test_a_folder_in_the_place_of_its_rows_is_refused_before_it_samples(tmp_path, capsys, model, monkeypatch) -> None:
    (tmp_path / "out" / "evals.jsonl").mkdir(parents=True)
    monkeypatch.setattr("loop_rl.rollout.sampler.sample_groups", pytest.fail)
    said = refused(capsys, str(model), "--size", "1", "--out", str(tmp_path / "out"))
    assert "evals.jsonl: Is a directory; move it away" in said


def test_a_run_without_its_recipe_is_a_run_still(tmp_path, capsys) -> None:
    def save(folder: Path) -> None:
        (folder / "model").mkdir()
        (folder / "model/config.json").write_text("{}")

    save_checkpoint(tmp_path / "checkpoints", 7, save, keep=1)
    target = find_target(str(tmp_path))
    assert (target.run, target.step, target.recipe) == (tmp_path, 7, None)
    assert target.model == str(tmp_path / "checkpoints/step_7/model")
    assert "has no recipe.yaml" in capsys.readouterr().err


def test_a_recipe_names_its_model_and_its_data(capsys, tmp_path, model) -> None:
    recipe = {
        "model": {"path": str(model)},
        "data": {"eval_size": 2},
        "eval": {"data": ["mine.jsonl"], "size": 1, "samples": 2},
        "rollout": {"max_completion_length": 4},
    }
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(recipe))
    questions = [{"question": f"{n} + 1?", "answer": n + 1} for n in range(20)]
    (tmp_path / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in questions))
    rows = evaluated(capsys, "mine.yaml")
    assert [(row["data"], row["questions"], row["samples"]) for row in rows] == [
        ("arithmetic", 2, 2),
        ("mine.jsonl", 1, 2),
    ]
    assert {row["model"] for row in rows} == {str(model)}
    assert len((tmp_path / "evals" / "tiny" / "evals.jsonl").read_text().splitlines()) == 2
    assert "make its model first" in refused(capsys, "pretrain_embedded")
    assert "nearest shipped recipe" in refused(capsys, "nothing.yaml")
    assert "held-out" not in refused(capsys, "mine.yaml", "--data", "gms8k")


def test_names_of_models() -> None:
    names = {"embedded": "embedded", "owner/huginn-0125": "huginn-0125", "runs/a b/checkpoints/step_4/model": "step_4"}
    assert {path: model_name(path) for path in names} == names
    assert model_name("/") == "model" and model_name("x/a b") == "a_b"


def test_end_tokens_are_all_that_are_configured() -> None:
    config, tokenizer = SimpleNamespace(eos_token_id=7), SimpleNamespace(eos_token_id=2)
    assert end_tokens(config, SimpleNamespace(eos_token_id=[5, 9]), tokenizer) == (2, 5, 7, 9)
    assert end_tokens(config, None, SimpleNamespace(eos_token_id=None)) == (7,)
    assert end_tokens(SimpleNamespace(eos_token_id=None), None, None) == ()


# ---- how


def test_a_run_keeps_its_rows_and_a_model_has_a_folder(capsys, tmp_path, model) -> None:
    (row,) = evaluated(capsys, str(model), "--data", "arithmetic", "--size", "3", *SMALL)
    assert (row["questions"], row["samples"], row["data"]) == (3, 2, "arithmetic")
    assert 0 <= row["pass@1"] <= 1
    folder = run_folder(tmp_path / "run")
    (folder / "model").symlink_to(model)
    assert main(["eval", str(folder), "--size", "3", *SMALL, "--set", "model.depth=2"]) == 0
    assert "pass@1" in capsys.readouterr().out
    (written,) = map(json.loads, (folder / "evals.jsonl").read_text().splitlines())
    assert samples(written, folder) == samples(row, "evals/tiny")  # same weights, questions and seeds


def test_greedy_is_one_sample_that_comes_out_again(capsys, model) -> None:
    arguments = [str(model), "--size", "4", "--set", "rollout.max_completion_length=8"]
    (row,) = evaluated(capsys, *arguments, "--greedy", "--out", "a")
    (same,) = evaluated(capsys, *arguments, "--temperature", "0", "--samples", "1", "--out", "b")
    assert (row["samples"], row["temperature"], row["pass@8"]) == (1, 0, None)
    assert samples(row, "a") == samples(same, "b")
    assert "leave those two out" in refused(capsys, *arguments, "--greedy", "--samples", "4")
    assert main(["eval", *arguments, "--greedy", "--out", "a"]) == 0
    assert "greedy" in capsys.readouterr().out


def test_workers_change_nothing(capsys, model) -> None:
    arguments = [str(model), "--size", "9", *SMALL]
    (here,) = evaluated(capsys, *arguments, "--out", "here")
    (there,) = evaluated(capsys, *arguments, "--out", "there", "--workers", "2")
    assert samples(here, "here") == samples(there, "there")
    assert here == there  # the file's name too, which is made of the settings


# ---- stopped and resumed


def test_ctrl_c_costs_no_finished_batch(capsys, model, monkeypatch) -> None:
    arguments = [str(model), "--size", "130", *SMALL]
    (whole,) = evaluated(capsys, *arguments, "--out", "whole")
    real, calls = sampler.sample_groups, []

    def interrupted(*given, **options):
        calls.append(len(given[1]))
        if calls == [32] * 4:
            raise KeyboardInterrupt
        return real(*given, **options)

    monkeypatch.setattr(sampler, "sample_groups", interrupted)
    assert main(["eval", *arguments, "--out", "parts"]) == 130
    assert "go on with: loop-rl eval" in capsys.readouterr().err
    assert not Path("parts/evals.jsonl").exists()
    (row,) = evaluated(capsys, *arguments, "--out", "parts")
    assert calls == [32, 32, 32, 32, 32, 32, 2]  # 4 and 3: two batches were kept, the third was not scored yet
    assert row == whole
    assert Path("parts", row["file"]).read_bytes() == Path("whole", whole["file"]).read_bytes()
    assert not list(Path("parts/evals").glob("*.parts"))

    monkeypatch.setattr(
        sampler, "sample_groups", lambda *given, **options: calls.append(len(given[1])) or real(*given, **options)
    )
    calls.clear()
    (again,) = evaluated(capsys, *arguments, "--out", "parts")  # finished: read, and not written twice
    assert (again, calls) == (whole, [])
    assert len(Path("parts/evals.jsonl").read_text().splitlines()) == 1
    Path("parts", row["file"]).unlink()
    assert evaluated(capsys, *arguments, "--out", "parts") == [whole]
    assert sum(calls) == 130


@pytest.mark.parametrize(
    "change",
    [
        ["--set", "model.depth=3"],
        ["--temperature", "0.5"],
        ["--set", "reward.name=gsm8k_strict"],
    ],
)
def test_a_changed_setting_starts_anew(change, capsys, model) -> None:
    arguments = [str(model), "--size", "2", *SMALL]
    (row,) = evaluated(capsys, *arguments)
    (other,) = evaluated(capsys, *arguments, *change)
    assert row["file"] != other["file"]
    assert len(Path("evals/tiny/evals.jsonl").read_text().splitlines()) == 2


def test_an_evaluation_killed_at_a_random_moment_ends_the_same(capsys, tmp_path, model) -> None:
    arguments = [str(model), "--size", "160", *SMALL, "--set", "run.threads=1"]
    (whole,) = evaluated(capsys, *arguments, "--out", "whole")
    process = subprocess.Popen(
        [sys.executable, "-c", "from loop_rl.cli import main; main()", "eval", *arguments, "--out", "killed"],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    while not list(tmp_path.glob("killed/evals/*.parts/batch_*")):
        assert process.poll() is None
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "killed" / "evals.jsonl").exists()
    (row,) = evaluated(capsys, *arguments, "--out", "killed")
    assert row == whole
    assert Path("killed", row["file"]).read_bytes() == Path("whole", whole["file"]).read_bytes()
