"""Scoring in other processes: beside the sampling, through deaths, and with errors that stay one line."""

import os
import signal
import time

import pytest
import ray

from loop_rl.data import Example
from loop_rl.errors import UserError
from loop_rl.evaluation import LocalScorer, RewardSpec
from loop_rl.evaluation.sample import sample_and_submit
from loop_rl.reward.pool import RewardPool
from loop_rl.rollout.actors import answer
from tests.evaluation.doubles import Characters, Settings, completion, generator

TOYS = "tests.reward.toy_rewards"


def spec(*names: str) -> RewardSpec:
    return RewardSpec(tuple((f"{TOYS}:{name}", 1.0) for name in names))


SPECS = [spec(name) for name in ("digits", "length", "marks", "meeting", "once_deadly", "deadly", "failing")]
DIGITS, LENGTH, MARKS, MEETING, ONCE_DEADLY, DEADLY, FAILING = SPECS


@pytest.fixture(scope="module")
def pool(ray_instance):
    with RewardPool(SPECS, workers=2) as pool:
        yield pool


def examples(count: int, **columns: object) -> list[Example]:
    return [Example("p", "7", index, columns) for index in range(count)]


def test_the_pool_scores_what_this_process_scores(pool) -> None:
    texts = [["7", "8", ""], ["?", "7", "77"], ["?"] * 3]
    tickets = [pool.submit(DIGITS, examples(3), some, [[1]] * 3) for some in texts]
    with LocalScorer([DIGITS]) as here:
        expected = here.gather([here.submit(DIGITS, examples(3), some, [[1]] * 3) for some in texts])
    scores = pool.gather(tickets)
    assert scores == expected
    assert scores[2].rewards == [None] * 3
    assert all(score.seconds > 0 for score in scores)
    assert pool.notes == ["toys are guarded"]


def test_a_group_is_scored_before_the_last_one_is_sampled(pool, tmp_path) -> None:
    groups = {"first": [completion("one")] * 2, "last": [completion("two")] * 2}
    events: list[str] = []

    def generate(prompts, sampling, seeds, on_group):
        def told(index, rollout):
            on_group(index, rollout)
            if index == 1:  # the one that ends first: nothing more is sampled until it has been scored
                deadline = time.monotonic() + 60
                while not (tmp_path / "one").exists():
                    assert time.monotonic() < deadline, "no score while another group is still being sampled"
                    time.sleep(0.01)
                events.append(f"scored {sorted(path.name for path in tmp_path.iterdir())}")
            events.append(f"sampled {index}")

        return generator(groups)(prompts, sampling, seeds, told)

    some = [Example("last", "", 0, {"folder": str(tmp_path)}), Example("first", "", 1, {"folder": str(tmp_path)})]
    sampling = Settings(2, save_states=False)
    sampled = sample_and_submit(generate, Characters(), pool, MARKS, some, sampling, [0, 1])
    assert events == ["scored ['one']", "sampled 1", "sampled 0"]
    assert [score.rewards for score in pool.gather(sampled.tickets)] == [[1.0, 1.0]] * 2
    assert (tmp_path / "one").read_text() != str(os.getpid())


def test_work_is_shared_out(pool, tmp_path) -> None:
    some = examples(1, folder=str(tmp_path))
    pool.gather([pool.submit(MEETING, some, [str(number)], [[1]]) for number in range(6)])
    assert len({path.read_text() for path in tmp_path.iterdir()}) == 2


def test_a_killed_worker_is_replaced_and_its_groups_are_scored_again(pool, tmp_path) -> None:
    pid = ray.get(pool.workers[0].pid.remote())
    os.kill(pid, signal.SIGKILL)
    assert answer(pool.workers[0], pool.workers[0].pid.remote, "worker 0") != pid  # back, without rewards
    before = pool.restarts
    tickets = [pool.submit(DIGITS, examples(2), ["7", "8"], [[1]] * 2) for _ in range(4)]
    assert [score.rewards for score in pool.gather(tickets)] == [[1.0, 0.0]] * 4
    assert pool.restarts == before + 1
    texts = ["a", "bomb", "ccc", "dd"]  # killed while it scores: what queues behind is scored too
    some = examples(1, folder=str(tmp_path))
    tickets = [pool.submit(ONCE_DEADLY, some, [text], [[1]]) for text in texts]
    assert [score.rewards for score in pool.gather(tickets)] == [[1.0], [4.0], [3.0], [2.0]]
    assert pool.restarts == before + 2


def test_completions_that_kill_every_worker_end_in_one_line(pool) -> None:
    ticket = pool.submit(DEADLY, examples(1), ["x"], [[1]])
    with pytest.raises(UserError, match="^tests.reward.toy_rewards:deadly: .* died 4 times") as caught:
        pool.gather([ticket])
    assert "no reward was made up" in str(caught.value) and "\n" not in str(caught.value)


def test_a_function_that_raises_is_one_line_and_no_reward(pool, capsys) -> None:
    ticket = pool.submit(FAILING, examples(1), ["x"], [[1]])
    with pytest.raises(UserError, match=r"failing failed at .*toy_rewards.py:\d+ \(KeyError: 'solution'\)") as caught:
        pool.gather([ticket])
    shown = capsys.readouterr().err
    assert "line" in shown and "completion 'x'" in shown and "it printed: about to fail" in shown
    assert "\n" not in str(caught.value)


def test_a_reward_that_cannot_start_is_refused_before_any_work(pool, monkeypatch) -> None:
    with pytest.raises(UserError, match="has no function nothing"):
        RewardPool([RewardSpec(((f"{TOYS}:nothing", 1.0),))])
