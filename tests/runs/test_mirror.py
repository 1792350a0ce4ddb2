"""The wandb mirror: one wandb run for a run and its resumptions, refusals in one line, failures that cost nothing."""

import sys
from types import SimpleNamespace

import pytest

from loop_rl.errors import UserError
from loop_rl.recipe.rl import Recipe
from loop_rl.runs.mirror import ID_FILE, mirrored
from loop_rl.training.rl import check_machine


class FakeWandb:
    """wandb as far as it is used; `runs` holds what each id was given."""

    def __init__(self):
        self.runs, self.opened, self.fails = {}, [], None

    def init(self, id=None, resume=None, **settings):
        if self.fails is not None:
            raise self.fails
        assert resume == "allow"
        id = id or f"id{len(self.runs)}"
        rows = self.runs.setdefault(id, [])
        self.opened.append(SimpleNamespace(id=id, log=lambda row, step: rows.append((step, row)), codes=[]))
        self.opened[-1].finish = lambda exit_code: self.opened[-1].codes.append(exit_code)
        return self.opened[-1]


@pytest.fixture
def wandb(monkeypatch):
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake


RECIPE = Recipe(run={"wandb": "online"})


def test_a_resumed_run_goes_on_in_the_same_wandb_run(wandb, tmp_path):
    with pytest.raises(KeyboardInterrupt), mirrored(RECIPE, tmp_path) as mirror:
        mirror.log({"reward": 0.5, "nothing": None}, 1)
        raise KeyboardInterrupt
    with mirrored(RECIPE, tmp_path) as mirror:
        mirror.log({"reward": 0.6}, 2)
    assert wandb.runs == {"id0": [(1, {"reward": 0.5}), (2, {"reward": 0.6})]}
    assert [run.codes for run in wandb.opened] == [[1], [0]]
    (tmp_path / "other").mkdir()
    with mirrored(RECIPE, tmp_path / "other"):
        assert set(wandb.runs) == {"id0", "id1"}


def test_without_wandb_nothing_is_asked_of_it(tmp_path):
    with mirrored(Recipe(), tmp_path) as mirror:
        mirror.log({"reward": 0.5}, 1)
    assert mirror.metrics() == {} and not (tmp_path / ID_FILE).exists()


def test_a_missing_key_is_one_line(wandb, tmp_path):
    wandb.fails = RuntimeError("No API key configured.\nUse `wandb login` to log in.")
    with pytest.raises(UserError, match="run.wandb: .*No API key.*offline") as error:
        mirrored(RECIPE, tmp_path).__enter__()
    assert "\n" not in str(error.value)


def test_a_missing_package_is_one_line(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UserError, match="run.wandb, unless it is off, needs wandb .*pip install 'loop-rl.wandb.'"):
        mirrored(RECIPE, tmp_path).__enter__()
    with pytest.raises(UserError, match="run.wandb, unless it is off, needs wandb .*pip install 'loop-rl.wandb.'"):
        check_machine(RECIPE)  # a dry run's as well


def test_failures_are_counted_and_said_once(wandb, tmp_path, caplog):
    def fail(*_, **__):
        raise OSError("no route to host")

    with mirrored(RECIPE, tmp_path) as mirror:
        assert mirror.metrics() == {"wandb/failures": 0}
        wandb.opened[0].log = wandb.opened[0].finish = fail
        mirror.log({"reward": 1.0}, 1)
        mirror.log({"reward": 1.0}, 2)
        assert mirror.metrics() == {"wandb/failures": 2}
    assert caplog.text.count("no route to host") == 2  # the first row, and the end
