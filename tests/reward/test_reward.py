"""Rewards by name, alone and weighted: what functions are called with, and what is made of their answers."""

import asyncio
import gc
import itertools
import os
import sys

import numpy
import pytest
import torch

from loop_rl.data import Example
from loop_rl.errors import UserError
from loop_rl.evaluation import LocalScorer, Reward, RewardSpec, load_reward, reward_spec
from loop_rl.recipe.reward import RewardSection
from loop_rl.recipe.rl import DataSection
from loop_rl.reward.function import RewardError, call_reward, check_columns
from rewards.gsm8k import gsm8k_reward, gsm8k_strict_reward
from tests.reward import toy_rewards

TOYS = "tests.reward.toy_rewards"
EXAMPLES = [Example("p", "7", 0, {"level": 2}), Example("q", "8", 1, {"level": 5})]


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ([1.0], "1 rewards for 2"),
        ([1.0, float("nan")], "None for what"),
        (["x", 1], "numbers"),
        ([10**400, 1], "numbers"),
        (None, "NoneType None"),
        ("11", "str '11'"),
        (["1", 1], "text is no number"),
        (numpy.zeros((2, 2)), "numbers"),
        (itertools.repeat(1.0), "more than 2 rewards for 2"),
        (float, "list of numbers"),
    ],
)
def test_bad_rewards_are_errors_and_not_zeros(returned, message):
    with pytest.raises(UserError, match=message):
        call_reward(lambda **columns: returned, EXAMPLES, ["a", "b"], [[1], [2]])


@pytest.mark.parametrize("error", [KeyError("solution"), SystemExit(0), GeneratorExit(), asyncio.CancelledError()])
def test_a_failing_reward_function_is_named(error):
    def broken(**columns):
        raise error

    with pytest.raises(
        UserError, match=r"broken failed at .*:\d+ \((KeyError: 'solution'|SystemExit: 0|\w+:)\); no reward was made up"
    ):
        call_reward(broken, EXAMPLES[:1], ["a"], [[1]])


def test_a_function_that_ends_its_process_fails_with_its_row_and_its_forks_may_end(tmp_path):
    def leaving(completions, **columns):
        child = os.fork()
        if child == 0:
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        if "b" in completions:
            os._exit(0)
        return [1.0] * len(completions)

    before = os._exit
    with pytest.raises(RewardError, match=r"leaving failed at .*it called os._exit\(0\)\); no reward") as raised:
        call_reward(leaving, EXAMPLES, ["a", "b"], [[1], [2]])
    assert "the row: " in raised.value.details and "completion 'b'" in raised.value.details
    assert os._exit is before


class Unspeakable(Exception):
    def __str__(self):
        raise ValueError("no text")


@pytest.mark.parametrize(
    ("error", "cause"),
    [(Unspeakable(), r"\(Unspeakable\)"), (ValueError("m\n" * 100_000), r"\(ValueError: (m )+\.\.\.\)")],
)
def test_a_failing_function_is_told_briefly_whatever_its_message(error, cause):
    def broken(**columns):
        raise error

    with pytest.raises(RewardError, match=cause) as raised:
        call_reward(broken, EXAMPLES[:1], ["a"], [[1]])
    assert len(str(raised.value)) < 1000
    assert len(raised.value.details) < 25_000


@pytest.mark.filterwarnings("error")
def test_an_async_function_is_refused_without_a_warning_behind_it():
    async def later(completions, **columns):
        return [0.0] * len(completions)

    with pytest.raises(UserError, match="later is async.* plain def"):
        call_reward(later, EXAMPLES, ["a", "b"], [[1], [2]])
    gc.collect()


def test_a_function_changes_nothing_for_the_process(tmp_path):
    before = os.getcwd(), sys.stdout, torch.get_default_dtype(), torch.is_grad_enabled()

    def meddles(completions, **columns):
        os.chdir(tmp_path)
        sys.stdout = None
        torch.set_default_dtype(torch.float64)
        torch.set_grad_enabled(False)
        yield from [0.0] * len(completions)

    assert call_reward(meddles, EXAMPLES, ["a", "b"], [[1], [2]])[0] == [0.0, 0.0]
    assert (os.getcwd(), sys.stdout, torch.get_default_dtype(), torch.is_grad_enabled()) == before


def test_importing_a_reward_changes_nothing_for_the_process(tmp_path, monkeypatch):
    (tmp_path / "meddling_module.py").write_text(
        "import os, torch\nos.chdir('/')\ntorch.set_default_dtype(torch.float64)\ndef f(**columns): return []\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    load_reward("meddling_module:f")
    assert (os.getcwd(), torch.get_default_dtype()) == (str(tmp_path), torch.float32)


def test_reasons_can_be_stored():
    def says(completions, log_extra, **columns):
        log_extra("reason", ["\ud800", 5])
        return [0.0, 0.0]

    assert call_reward(says, EXAMPLES, ["a", "b"], [[1], [2]])[1] == ["\\ud800", "5"]


def test_columns_and_logs_are_passed_by_name_to_those_who_take_them():
    seen = {}

    def named(prompts, completions, completion_ids, level):
        seen["named"] = level
        return [0.0] * len(completions)

    def anything(**columns):
        seen["anything"] = columns
        columns["log_metric"]("speed", 1.0)
        columns["log_extra"]("other", [1, 2])
        columns["log_extra"]("reason", ["wrong", "wrong: late"])
        return [0, None]

    assert call_reward(named, EXAMPLES, ["a", "b"], [[1], [2]]) == ([0.0, 0.0], None)
    assert seen["named"] == [2, 5]
    assert call_reward(anything, EXAMPLES, ["a", "b"], [[1], [2]]) == ([0.0, None], ["wrong", "wrong: late"])
    assert seen["anything"]["answer"] == ["7", "8"] and seen["anything"]["level"] == [2, 5]
    assert seen["anything"]["prompts"] == ["p", "q"] and seen["anything"]["completion_ids"] == [[1], [2]]

    def short(completions, log_extra, **columns):
        log_extra("reason", ["one"])
        return [0.0, 0.0]

    with pytest.raises(UserError, match="1 reasons for 2"):
        call_reward(short, EXAMPLES, ["a", "b"], [[1], [2]])


def test_a_column_that_is_not_there_is_named_before_anything_is_sampled():
    with pytest.raises(
        UserError, match="needs the column 'folder', which the data does not have; it has answer, level"
    ):
        check_columns("marks", toy_rewards.marks, EXAMPLES[0])
    check_columns("gsm8k", gsm8k_reward, EXAMPLES[0])
    check_columns("max", max, EXAMPLES[0])  # a builtin that does not say


def test_rewards_by_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_reward_of_test.py").write_text("def f(completions, **columns): return [1.0] * len(completions)\n")
    (tmp_path / "leaving_reward_of_test.py").write_text("raise SystemExit(0)\n")
    assert load_reward("gsm8k") is gsm8k_reward
    assert load_reward("gsm8k_strict") is gsm8k_strict_reward
    assert load_reward("own_reward_of_test:f")(completions=["a"]) == [1.0]
    for name, message in [
        ("own_reward_of_test:g", "no function g"),
        ("no_such_module_here:f", "can't import no_such_module_here"),
        ("leaving_reward_of_test:f", r"can't import leaving_reward_of_test .*SystemExit: 0"),
        ("gsm9k", "unknown reward"),
    ]:
        with pytest.raises(UserError, match=message):
            load_reward(name)


def test_the_reward_of_a_recipe_is_the_named_one_or_the_datas_own():
    arithmetic = DataSection(name="arithmetic")
    assert reward_spec(RewardSection(), arithmetic).functions == (("gsm8k", 1.0),)
    assert reward_spec(RewardSection(), DataSection(name="math500")).functions == (("math500", 1.0),)
    assert reward_spec(RewardSection(name="a:b"), arithmetic).functions == (("a:b", 1.0),)
    several = RewardSection(functions={"gsm8k": 1, "a:b": 0.5})
    assert reward_spec(several, arithmetic).functions == (("gsm8k", 1.0), ("a:b", 0.5))


def test_a_weighted_sum_is_worked_out_by_hand():
    spec = RewardSpec(((f"{TOYS}:digits", 2.0), (f"{TOYS}:length", -0.25)))
    scores = Reward(spec).score([EXAMPLES[0]] * 4, ["7", "88", "?", ""], [[1]] * 4)
    assert scores.rewards == [2.0 - 0.25, -0.5, -0.25, 0.0]  # a None is left out
    assert scores.parts == {f"{TOYS}:digits": [1.0, 0.0, None, 0.0], f"{TOYS}:length": [1.0, 2.0, 1.0, 0.0]}
    assert scores.reasons == ["correct", "wrong", "not scored: a question mark", "no answer"]
    assert scores.correct == [True, False, None, False]  # the first function's, whatever the sum
    swapped = Reward(RewardSpec(spec.functions[::-1])).score([EXAMPLES[0]] * 3, ["7", "?", ""], [[1]] * 3)
    assert swapped.rewards == [1.75, -0.25, 0.0]
    assert swapped.correct == [True, True, False]
    assert swapped.reasons == [None] * 3
    alone = Reward(RewardSpec(spec.functions[:1], threshold=0.0)).score([EXAMPLES[0]] * 2, ["8", "?"], [[1]] * 2)
    assert (alone.rewards, alone.correct) == ([0.0, None], [True, None])
    assert alone.reasons == ["wrong", "not scored: a question mark"]


def test_the_weighted_sum_is_trls():
    """TRL 1.16 sums with nansum; a row of which nothing is known is not scored, where nansum alone says 0."""
    weights = {"a": 2.0, "b": -0.5}
    values = [(1.0, 3.0), (None, 3.0), (1.0, None), (None, None)]
    reward = object.__new__(Reward)
    reward.spec = RewardSpec(tuple(weights.items()))
    table = torch.tensor([[float("nan") if v is None else v for v in row] for row in values], dtype=torch.float64)
    theirs = (table * torch.tensor(list(weights.values()), dtype=torch.float64)).nansum(dim=1)
    mine = [reward._weighted(dict(zip(weights, row, strict=True))) for row in values]
    assert mine == [*theirs[:3].tolist(), None]
    with pytest.raises(UserError, match="weighted sum is not finite"):
        reward._weighted({"a": 1e308, "b": 0.0})


def test_a_failure_shows_where_and_on_what(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_failing.py").write_text(
        "def f(completions, **columns):\n    return [1.0 / len(text) for text in completions]\n"
    )
    spec = RewardSpec((("own_failing:f", 1.0),))
    with LocalScorer([spec]) as scorer, pytest.raises(UserError, match=r"own_failing.py:2 \(ZeroDivisionError"):
        scorer.submit(spec, EXAMPLES, ["a", ""], [[1], [2]])
    shown = capsys.readouterr().err
    assert "line 2, in f" in shown and "ZeroDivisionError" in shown and "reward_function.py" not in shown
    assert "the row: question 'q', completion '', answer '8'" in shown


def test_modules_are_started_and_closed_once():
    toy_rewards.STARTED.clear()
    spec = RewardSpec(((f"{TOYS}:digits", 1.0), (f"{TOYS}:length", 1.0), ("gsm8k", 1.0)))
    with LocalScorer([spec]) as scorer:
        assert "toys are guarded" in scorer.notes
        assert toy_rewards.STARTED == ["started"]
    assert toy_rewards.STARTED == ["started", "closed"]


def test_a_module_that_cannot_start_is_refused(monkeypatch):
    monkeypatch.setenv("TOY_FAULT", "no namespaces")
    with pytest.raises(UserError, match="toy_rewards:length can't be used: no sandbox: no namespaces"):
        LocalScorer([RewardSpec(((f"{TOYS}:length", 1.0),))])


def test_a_data_file_is_handed_to_the_module_that_uses_one(monkeypatch):
    seen = []
    monkeypatch.setattr(toy_rewards, "use_data", seen.append, raising=False)
    Reward(RewardSpec(((f"{TOYS}:length", 1.0),), "/data/file.gz")).start()
    assert seen == ["/data/file.gz"]


def test_the_source_follows_the_code_that_scores(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    package = tmp_path / "own_rewards_of_test"
    package.mkdir()
    files = {name: package / f"{name}.py" for name in ("mine", "used", "other")}
    files["mine"].write_text("from own_rewards_of_test.used import worth\n\ndef f(completions, **c): return worth()\n")
    files["used"].write_text("def worth(): return [1.0]\n")
    files["other"].write_text("import own_rewards_of_test.mine\n")
    reward = Reward(RewardSpec((("own_rewards_of_test.mine:f", 1.0),)))
    seen = [reward.source()]
    for name in ("other", "mine", "used"):
        files[name].write_text(files[name].read_text() + "# changed\n")
        seen.append(reward.source())
    assert seen[0] == seen[1] and len(set(seen)) == 3
