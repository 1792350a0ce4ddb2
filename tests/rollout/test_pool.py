"""The Ray pool: same rollouts as in one process, weights by version, dead workers replaced."""

import os
import signal

import numpy as np
import pytest
import ray

from loop_rl.rollout.actors import answer
from loop_rl.rollout.pool import RolloutPool
from loop_rl.rollout.sampler import sample_groups
from loop_rl.rollout.sampling import Sampling
from tests.tiny import PROMPTS, tiny_model

SAMPLING = Sampling(3, 6, eos_token_ids=(2, 3))
SEEDS = [11, 12, 13]


@pytest.fixture(scope="module")
def pool():
    os.environ["LOOP_RL_TEST_VALUE"] = "seen"
    with RolloutPool(tiny_model().config, workers=2) as pool:
        yield pool
    assert not ray.is_initialized()


def assert_same(a, b) -> None:
    for x, y in zip(a, b, strict=True):
        np.testing.assert_array_equal(x.prompt_ids, y.prompt_ids)
        np.testing.assert_allclose(x.prompt_states, y.prompt_states, atol=1e-5)
        for c, d in zip(x.completions, y.completions, strict=True):
            np.testing.assert_array_equal(c.token_ids, d.token_ids)
            np.testing.assert_allclose(c.states, d.states, atol=1e-5)


def test_pool_samples_what_one_process_samples_with_current_weights(pool) -> None:
    for version, seed in ((0, 0), (1, 5)):
        model = tiny_model(seed=seed)
        pool.send_weights(model.state_dict(), version)
        seen: dict[int, object] = {}
        rollouts = pool.generate(PROMPTS, SAMPLING, SEEDS, on_group=seen.__setitem__)
        assert seen == dict(enumerate(rollouts))
        assert {rollout.version for rollout in rollouts} == {version}
        assert_same(rollouts, sample_groups(model, PROMPTS, SAMPLING, SEEDS))


def test_groups_arrive_as_they_end_and_not_when_their_chunk_does(pool) -> None:
    prompts, seeds, sampling = PROMPTS * 4, list(range(12)), Sampling(2, 40, eos_token_ids=tuple(range(2, 8)))
    pool.send_weights(tiny_model().state_dict(), 3)
    arrived: list[int] = []
    rollouts = pool.generate(prompts, sampling, seeds, on_group=lambda index, _: arrived.append(index))
    steps = [max(len(c.token_ids) for c in rollout.completions) for rollout in rollouts]
    for chunk in (range(6), range(6, 12)):  # one worker's groups each
        ends = [steps[index] for index in arrived if index in chunk]
        assert ends == sorted(ends)
        assert len(set(ends)) > 2
    assert sorted(arrived) == list(range(12)) != arrived


def test_a_killed_worker_costs_a_retry(pool) -> None:
    model = tiny_model()
    pool.send_weights(model.state_dict(), 7)
    pid = int(ray.get(pool.workers[0].environment.remote())["pid"])
    os.kill(pid, signal.SIGKILL)
    rollouts = pool.generate(PROMPTS, SAMPLING, SEEDS)
    assert_same(rollouts, sample_groups(model, PROMPTS, SAMPLING, SEEDS))
    assert {rollout.version for rollout in rollouts} == {7}
    assert pool.restarts >= 1


def test_a_worker_that_died_while_idle_gets_its_weights_again(pool) -> None:
    model = tiny_model()
    pool.send_weights(model.state_dict(), 8)
    pid = int(ray.get(pool.workers[1].environment.remote())["pid"])
    os.kill(pid, signal.SIGKILL)
    assert int(answer(lambda: pool.workers[1].environment.remote(), "worker 1")["pid"]) != pid  # back, without weights
    before = pool.restarts
    assert_same(pool.generate(PROMPTS, SAMPLING, SEEDS), sample_groups(model, PROMPTS, SAMPLING, SEEDS))
    assert pool.restarts == before + 1


def test_workers_see_the_environment(pool) -> None:
    for worker in pool.workers:
        assert ray.get(worker.environment.remote())["LOOP_RL_TEST_VALUE"] == "seen"
