"""Checkpoints: what is visible, what is passed over, what is kept, what is restored."""

import random

import numpy as np
import pytest
import torch

from loop_rl.errors import UserError
from loop_rl.runs.checkpoints import (
    find_fault,
    latest_checkpoint,
    load_training_state,
    reading,
    save_checkpoint,
    save_training_state,
)
from loop_rl.runs.disk import writing


def write(path):
    (path / "model").mkdir()
    (path / "model" / "weights").write_bytes(b"w" * 100)
    (path / "state").write_bytes(b"s" * 10)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_the_newest_is_chosen_by_number(tmp_path):
    for step in (9, 10, 100, 20):
        save_checkpoint(tmp_path, step, write, keep=10)
    assert latest_checkpoint(tmp_path).name == "step_100"


def test_no_checkpoint(tmp_path):
    assert latest_checkpoint(tmp_path) is None
    assert latest_checkpoint(tmp_path / "absent") is None


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: (path / "model" / "weights").write_bytes(b"w" * 50),
        lambda path: (path / "model" / "weights").write_bytes(b"x" * 100),
        lambda path: (path / "state").unlink(),
        lambda path: (path / "manifest.json").unlink(),
        lambda path: (path / "manifest.json").write_text('{"files": {'),
    ],
    ids=["truncated", "altered", "file missing", "manifest missing", "manifest cut"],
)
def test_a_damaged_newest_is_named_and_passed_over(tmp_path, caplog, damage):
    save_checkpoint(tmp_path, 1, write, keep=10)
    damage(save_checkpoint(tmp_path, 2, write, keep=10))
    assert latest_checkpoint(tmp_path).name == "step_1"
    assert "step_2" in caplog.text and "damaged" in caplog.text


def test_a_save_that_dies_leaves_nothing_visible(tmp_path):
    save_checkpoint(tmp_path, 1, write, keep=1)

    def die(path):
        write(path)
        raise RuntimeError("disk full")

    with pytest.raises(RuntimeError):
        save_checkpoint(tmp_path, 2, die, keep=1)
    assert latest_checkpoint(tmp_path).name == "step_1"
    save_checkpoint(tmp_path, 3, write, keep=2)
    assert names(tmp_path) == ["step_1", "step_3"]


def test_only_complete_checkpoints_count_as_kept(tmp_path):
    save_checkpoint(tmp_path, 1, write, keep=2)
    broken = save_checkpoint(tmp_path, 2, write, keep=2)
    (broken / "state").write_bytes(b"")
    save_checkpoint(tmp_path, 3, write, keep=2)
    assert names(tmp_path) == ["step_1", "step_3"]
    save_checkpoint(tmp_path, 4, write, keep=2)
    assert names(tmp_path) == ["step_3", "step_4"]


def test_a_damaged_step_is_replaced_when_it_is_reached_again(tmp_path):
    save_checkpoint(tmp_path, 1, write, keep=2)
    broken = save_checkpoint(tmp_path, 2, write, keep=2)
    (broken / "state").write_bytes(b"")
    assert find_fault(save_checkpoint(tmp_path, 2, write, keep=2)) is None


def make_training():
    layer = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (step + 1))
    return layer, {"optimizer": optimizer, "scheduler": scheduler, "generator": torch.Generator().manual_seed(5)}


def test_training_state_is_restored(tmp_path):
    layer, objects = make_training()
    layer(torch.ones(1, 3)).sum().backward()
    objects["optimizer"].step()
    objects["scheduler"].step()
    torch.rand(7, generator=objects["generator"])
    save_training_state(tmp_path / "state.pt", objects, {"step": 3, "order": [1, 2]})

    def draw(objects):
        return [random.random(), np.random.rand(), *torch.rand(2), torch.rand(1, generator=objects["generator"])]

    expected = draw(objects)
    _, fresh = make_training()
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    assert load_training_state(tmp_path / "state.pt", fresh) == {"step": 3, "order": [1, 2]}
    assert draw(fresh) == expected
    assert fresh["scheduler"].last_epoch == 1
    saved, restored = (x["optimizer"].state_dict()["state"][0] for x in (objects, fresh))
    assert torch.equal(saved["exp_avg"], restored["exp_avg"])


def test_a_state_of_other_objects_is_refused(tmp_path):
    _, objects = make_training()
    save_training_state(tmp_path / "state.pt", objects, {})
    with pytest.raises(UserError, match="scheduler"):
        load_training_state(tmp_path / "state.pt", {"optimizer": objects["optimizer"]})


def test_a_state_from_before_the_initial_states_changed_is_resumed_with_a_warning(tmp_path, caplog):
    _, objects = make_training()
    save_training_state(tmp_path / "state.pt", objects, {"step": 3})
    load_training_state(tmp_path / "state.pt", objects)
    assert not caplog.records
    saved = torch.load(tmp_path / "state.pt", weights_only=True)
    del saved["initial_state"]
    torch.save(saved, tmp_path / "state.pt")
    assert load_training_state(tmp_path / "state.pt", objects) == {"step": 3}
    assert "drew other initial states" in caplog.text


def test_an_error_that_says_what_it_is_about_is_not_blamed_on_the_disk(tmp_path):
    with pytest.raises(UserError, match="^the reward failed"), writing(tmp_path / "file"):
        raise UserError("the reward failed: [Errno 13] Permission denied")


def test_memory_that_runs_out_is_not_blamed_on_the_checkpoint(tmp_path):
    with pytest.raises(UserError, match="remove .*step_3"), reading(tmp_path / "step_3"):
        raise KeyError("step")
    for error in (MemoryError, torch.OutOfMemoryError):
        with pytest.raises(error), reading(tmp_path / "step_3"):
            raise error
