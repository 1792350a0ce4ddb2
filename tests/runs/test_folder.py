"""The run folder of every trainer: what is refused, what a finished run is, damage, a full disk."""

import contextlib
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from loop_rl.errors import UserError
from loop_rl.recipe.rl import Recipe
from loop_rl.runs import folder as run_folder
from loop_rl.runs.checkpoints import latest_checkpoint, save_checkpoint
from loop_rl.runs.disk import INCOMPLETE, write_whole, writing
from loop_rl.runs.folder import checkpoint_to_resume, publish_model, start_run
from loop_rl.training.pretrain import Pretrainer, pretrain
from tests.damage import full_disk, seal_again, write_parquet, write_safetensors, write_text, write_torch
from tests.training.test_pretrain import recipe_for, rows_of


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Every file with its time of change and its bytes."""
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes())
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


# ---- a recipe that changed


def started(tmp_path: Path, **sections) -> Path:
    run = tmp_path / "run"
    start_run(run, Recipe(**sections), torch.device("cpu"), None)
    return run


MAY_CHANGE = ("run.max_steps", "eval")


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ({}, {"run": {"seed": 1}}, "run.seed is 1, the run was started with 0"),
        ({}, {"lora": {"r": 4}}, 'lora is {"r": 4'),
        ({"lora": {"r": 4}}, {}, "lora is null"),
        ({}, {"data": {"columns": {"question": "q"}}}, 'data.columns.question is "q"'),
        ({}, {"learner": {"epsilon_high": 0.3}}, "learner.epsilon_high is 0.3, the run was started with null"),
    ],
)
def test_a_changed_key_is_named_with_both_values(tmp_path, before, after, said):
    run = started(tmp_path, **before)
    with pytest.raises(UserError) as error:
        checkpoint_to_resume(run, Recipe(**after), MAY_CHANGE, resume=True)
    assert said in str(error.value) and "\n" not in str(error.value)


def test_every_changed_key_is_named_and_others_may_change(tmp_path):
    run = started(tmp_path)
    changed = Recipe(run={"max_steps": 7, "seed": 3}, eval={"samples": 3}, optim={"learning_rate": 0.5})
    with pytest.raises(UserError) as error:
        checkpoint_to_resume(run, changed, MAY_CHANGE, resume=True)
    assert "optim.learning_rate" in str(error.value) and "run.seed" in str(error.value)
    assert "samples" not in str(error.value) and "max_steps" not in str(error.value)
    assert checkpoint_to_resume(run, Recipe(run={"max_steps": 7}, eval={"samples": 3}), MAY_CHANGE, resume=True) is None


# ---- pretraining, for all that train on text


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return pretrain(recipe_for(tmp_path_factory.mktemp("finished"), max_steps=4, save_steps=2), progress=False)


@pytest.fixture
def run(finished, tmp_path):
    """A copy of a finished run that `recipe_for(tmp_path, ...)` resumes."""
    shutil.copytree(finished, tmp_path / "run")
    return tmp_path / "run"


def test_a_finished_run_is_left_as_it_is(run, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(Pretrainer, "__init__", pytest.fail)  # nothing is even loaded
    before = contents(run)
    assert pretrain(recipe_for(tmp_path, max_steps=4, save_steps=2), resume=True, progress=False) == run
    pretrain(recipe_for(tmp_path, max_steps=3), resume=True, progress=False)
    assert contents(run) == before
    assert capsys.readouterr().err.count("nothing to do") == 2


@pytest.mark.parametrize("damage", [shutil.rmtree, lambda model: (model / "model.safetensors").write_bytes(b"old")])
def test_a_finished_run_whose_model_is_missing_or_another_gets_it(run, tmp_path, damage):
    before = {name: data for name, (_, data) in contents(run).items()}
    damage(run / "model")
    pretrain(recipe_for(tmp_path, max_steps=4), resume=True, progress=False)
    assert {name: data for name, (_, data) in contents(run).items()} == before


def test_more_steps_go_on_and_say_that_the_schedule_differs(run, tmp_path, caplog):
    before = (run / "model" / "model.safetensors").read_bytes()
    pretrain(recipe_for(tmp_path, max_steps=5), resume=True, progress=False)
    assert [row["step"] for row in rows_of(run)] == [1, 2, 3, 4, 5]
    assert "train.max_steps is 5, the run was started with 4" in caplog.text
    assert (run / "model" / "model.safetensors").read_bytes() != before


def test_a_changed_rate_or_seed_is_refused(run, tmp_path):
    with pytest.raises(UserError, match="optim.learning_rate is 0.1, the run was started with 0.003"):
        pretrain(recipe_for(tmp_path, max_steps=9, optim={"learning_rate": 0.1}), resume=True, progress=False)
    with pytest.raises(UserError, match="train.seed is 1, the run was started with 0"):
        pretrain(recipe_for(tmp_path, max_steps=9, seed=1), resume=True, progress=False)


def test_a_start_over_leaves_no_rows_of_the_first_attempt(tmp_path):
    recipe = recipe_for(tmp_path, max_steps=1)
    run = tmp_path / "run"
    start_run(run, recipe, torch.device("cpu"), None)
    (run / "evals.jsonl").write_text('{"step": 0, "pass@1": 0.5}\n')
    (run / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2}\n')
    pretrain(recipe, resume=True, progress=False)
    assert [row["step"] for row in rows_of(run)] == [1]
    assert (run / "evals.jsonl").read_bytes() == b""


DAMAGES = {
    "garbage": b"\x00\xff\n",
    "list": b"[1]\n",
    "text step": b'{"step": "2"}\n',
    "null step": b'{"step": null}\n',
    "cut in a character": '{"step": 2, "text": "é'.encode()[:-1],
}


@pytest.mark.parametrize("name", ["metrics.jsonl", "evals.jsonl"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_rows_are_named_and_left_out(run, name, damage, caplog):
    (run / name).write_bytes(b'{"step": 1}\n' + DAMAGES[damage])
    start_run(run, Recipe(), torch.device("cpu"), 4)
    assert (run / name).read_bytes() == b'{"step": 1}\n'
    assert "line 2" in caplog.text and name in caplog.text


@pytest.mark.parametrize("name", ["metrics.jsonl", "evals.jsonl", "environment.json", "checkpoints", "completions"])
def test_a_folder_in_a_files_place_or_the_other_way_is_one_line(tmp_path, name):
    recipe = recipe_for(tmp_path)
    run = tmp_path / "run"
    start_run(run, recipe, torch.device("cpu"), None)
    (run / name).unlink(missing_ok=True)
    (run / name).write_text("") if "." not in name else (run / name).mkdir()
    with pytest.raises(UserError, match=name) as error:
        pretrain(recipe, resume=True, progress=False)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("damage", ["cut", "empty", "text", "list", "safetensors", "a tensor", "a part", "of another"])
def test_a_training_state_that_is_no_state_is_one_line(run, tmp_path, damage):
    checkpoint = latest_checkpoint(run / "checkpoints")
    file = checkpoint / "training_state.pt"
    content = file.read_bytes()
    if damage == "safetensors":
        save_file({"a": torch.zeros(2)}, file)
    elif damage in ("list", "a tensor"):
        torch.save([1] if damage == "list" else torch.zeros(3), file)
    elif damage in ("a part", "of another"):
        saved = torch.load(file)
        if damage == "a part":
            del saved["random"]["numpy"]
        else:  # moments of weights of another shape, which torch takes
            saved["objects"]["optimizer"]["state"][0]["exp_avg"] = torch.zeros(3, 3)
        torch.save(saved, file)
    else:
        file.write_bytes({"cut": content[: len(content) // 2], "empty": b"", "text": b"text"}[damage])
    seal_again(checkpoint)
    with pytest.raises(UserError, match="training_state.pt") as error:
        pretrain(recipe_for(tmp_path, max_steps=6), resume=True, progress=False)
    assert "\n" not in str(error.value) and "the checkpoint before it" in str(error.value)


def test_a_model_that_is_cut_though_its_manifest_fits_is_one_line(run, tmp_path):
    checkpoint = latest_checkpoint(run / "checkpoints")
    file = checkpoint / "model" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    seal_again(checkpoint)
    with pytest.raises(UserError, match="step_4") as error:
        pretrain(recipe_for(tmp_path, max_steps=6), resume=True, progress=False)
    assert "\n" not in str(error.value)


# ---- a full disk


def copy_tree(folder: Path) -> None:
    shutil.copytree(Path(run_folder.__file__).parent, folder / "copy")


@pytest.mark.parametrize("write", [write_torch, write_safetensors, write_parquet, write_text, copy_tree])
def test_what_libraries_raise_on_a_full_disk_is_one_line(tmp_path, write):
    with full_disk(), pytest.raises(UserError, match="cannot write .*(File too large|disk is full)") as error:
        with writing(tmp_path):
            write(tmp_path)
    assert "\n" not in str(error.value) and str(tmp_path) in str(error.value)


def test_other_errors_are_not_taken_for_a_full_disk(tmp_path):
    with pytest.raises(RuntimeError, match="shapes"), writing(tmp_path):
        raise RuntimeError("shapes differ")
    with pytest.raises(FileNotFoundError), writing(tmp_path):
        (tmp_path / "none").read_text()
    with pytest.raises(UserError, match="its folder was removed"), writing(tmp_path / "run" / "metrics.jsonl"):
        (tmp_path / "run" / "metrics.jsonl").open("a")


@pytest.mark.parametrize("write", [write_torch, write_safetensors])
def test_a_checkpoint_that_does_not_fit_leaves_the_one_before_and_its_space(tmp_path, write):
    first = save_checkpoint(tmp_path, 1, write_text, keep=1)
    with full_disk(), pytest.raises(UserError, match="step_2"):
        save_checkpoint(tmp_path, 2, write, keep=1)
    assert [path.name for path in tmp_path.iterdir()] == ["step_1"]
    assert latest_checkpoint(tmp_path) == first


def test_a_run_goes_on_when_there_is_space_again(tmp_path, monkeypatch):
    whole = pretrain(recipe_for(tmp_path, "whole", max_steps=4, save_steps=2), progress=False)
    recipe, update = recipe_for(tmp_path, "cut", max_steps=4, save_steps=2), Pretrainer.update

    def filling(self):
        if self.step == 3:
            stack.enter_context(full_disk())
        return update(self)

    with contextlib.ExitStack() as stack, monkeypatch.context() as patch, pytest.raises(UserError, match="step_4"):
        patch.setattr(Pretrainer, "update", filling)
        pretrain(recipe, progress=False)
    cut = pretrain(recipe, resume=True, progress=False)
    assert [row["step"] for row in rows_of(cut)] == [1, 2, 3, 4]
    assert (cut / "model" / "model.safetensors").read_bytes() == (whole / "model" / "model.safetensors").read_bytes()
    assert not list(cut.rglob(f"{INCOMPLETE}*"))


def test_leftovers_of_a_kill_go_when_the_run_goes_on(run):
    for folder in (run, run / "checkpoints"):
        (folder / f"{INCOMPLETE}step_3").mkdir()
        (folder / f"{INCOMPLETE}file").write_text("half")
    start_run(run, Recipe(), torch.device("cpu"), 4)
    assert not list(run.rglob(f"{INCOMPLETE}*"))


def test_publishing_leaves_out_what_is_the_trainers_own(tmp_path):
    def save(folder: Path) -> None:
        (folder / "model").mkdir()
        (folder / "model" / "model.safetensors").write_bytes(b"w")
        (folder / "model" / "optimizer.pt").write_bytes(b"o")

    checkpoint = save_checkpoint(tmp_path / "checkpoints", 1, save, keep=1)
    assert publish_model(tmp_path, checkpoint, ("optimizer.pt",))
    assert [path.name for path in (tmp_path / "model").iterdir()] == ["model.safetensors"]
    (tmp_path / "model" / "README.md").write_text("the user's own")
    assert not publish_model(tmp_path, checkpoint, ("optimizer.pt",))


def test_a_text_is_replaced_whole_or_not_at_all(tmp_path):
    write_whole(tmp_path / "recipe.yaml", "old")
    with full_disk(), pytest.raises(OSError):
        write_whole(tmp_path / "recipe.yaml", "x" * 10_000)
    assert (tmp_path / "recipe.yaml").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["recipe.yaml"]
