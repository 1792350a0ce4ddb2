"""The Ray pool: same rollouts as in one process, weights by version, dead workers replaced."""

import os
import signal

import numpy as np
import pytest
import ray
import torch

from loop_rl.errors import UserError
from loop_rl.rollout.actors import answer
from loop_rl.rollout.local_engine import LocalEngine
from loop_rl.rollout.ray_engine import RolloutPool
from loop_rl.rollout.sampler import sample_groups
from loop_rl.rollout.sampling import Sampling
from tests.rollout.test_sampler import plain_pass
from tests.rounding import rounding
from tests.tiny import PROMPTS, tiny_model

SAMPLING = Sampling(3, 6, eos_token_ids=(2, 3))
SEEDS = [11, 12, 13]


@pytest.fixture(scope="module")
def pool(ray_instance):
    with RolloutPool(tiny_model().config, workers=2, learner_gpus=0) as pool:
        yield pool
    assert ray.is_initialized()  # it is another's


def assert_same(a, b, model) -> None:
    """Batches of other sizes: the same but for rounding."""
    for x, y in zip(a, b, strict=True):
        np.testing.assert_array_equal(x.prompt_ids, y.prompt_ids)
        bounds = [2 * rounding(lambda m, c=c, y=y: plain_pass(m, y, c)[0], model) for c in y.completions]
        np.testing.assert_allclose(x.prompt_states, y.prompt_states, rtol=0, atol=max(bounds))
        for c, d, bound in zip(x.completions, y.completions, bounds, strict=True):
            np.testing.assert_array_equal(c.token_ids, d.token_ids)
            np.testing.assert_allclose(c.states, d.states, rtol=0, atol=bound)


def test_pool_samples_what_one_process_samples_with_current_weights(pool) -> None:
    for version, seed in ((0, 0), (1, 5)):
        model = tiny_model(seed=seed)
        pool.send_weights(model.state_dict(), version)
        seen: dict[int, object] = {}
        rollouts = pool.generate(PROMPTS, SAMPLING, SEEDS, on_group=seen.__setitem__)
        assert seen == dict(enumerate(rollouts))
        assert {rollout.version for rollout in rollouts} == {version}
        assert_same(rollouts, sample_groups(model, PROMPTS, SAMPLING, SEEDS), model)


def test_weights_that_are_not_finite_end_sampling_in_one_line(pool) -> None:
    weights = {name: value.clone() for name, value in tiny_model().state_dict().items()}
    weights["lm_head.weight"][7] = torch.nan
    pool.send_weights(weights, 3)
    with pytest.raises(UserError, match="^the logits of the weights of step 3 are NaN[^\n]*$"):
        pool.generate(PROMPTS, SAMPLING, SEEDS)


def _sampled_with(engine, version: int, seed: int):
    arrived: list[int] = []
    engine.send_weights(tiny_model(seed=seed).state_dict(), version)
    rollouts = engine.generate(PROMPTS, SAMPLING, SEEDS, lambda index, _: arrived.append(index))
    return arrived, rollouts


def test_the_engine_of_this_process_samples_what_one_worker_does(pool) -> None:
    config, workers = tiny_model().config, pool.workers
    pool.workers = workers[:1]
    try:
        with LocalEngine(config) as engine:
            for version, seed in ((0, 0), (1, 5)):
                here, there = (_sampled_with(each, version, seed) for each in (engine, pool))
                assert here[0] == there[0]  # the order in which groups end
                for one, other in zip(here[1], there[1], strict=True):
                    assert one.version == other.version == version
                    np.testing.assert_array_equal(one.prompt_states, other.prompt_states)
                    for mine, its in zip(one.completions, other.completions, strict=True):
                        for field in ("token_ids", "logps", "states"):
                            np.testing.assert_array_equal(getattr(mine, field), getattr(its, field))
                        assert (mine.seed, mine.finish_reason) == (its.seed, its.finish_reason)
    finally:
        pool.workers = workers


def test_the_engine_of_this_process_leaves_its_random_stream_and_the_learners_weights_alone() -> None:
    model = tiny_model()
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    engine = LocalEngine(model.config)
    engine.send_weights(model.state_dict(), 0)
    with torch.no_grad():
        model.lm_head.weight.zero_()
    assert engine.model.lm_head.weight.abs().sum() > 0
    torch.testing.assert_close(torch.rand(4), expected, rtol=0, atol=0)


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
    assert_same(rollouts, sample_groups(model, PROMPTS, SAMPLING, SEEDS), model)
    assert {rollout.version for rollout in rollouts} == {7}
    assert pool.restarts >= 1


def test_a_worker_that_died_while_idle_gets_its_weights_again(pool) -> None:
    model = tiny_model()
    pool.send_weights(model.state_dict(), 8)
    pid = int(ray.get(pool.workers[1].environment.remote())["pid"])
    os.kill(pid, signal.SIGKILL)
    assert (
        int(answer(pool.workers[1], pool.workers[1].environment.remote, "worker 1")["pid"]) != pid
    )  # back, without weights
    before = pool.restarts
    assert_same(pool.generate(PROMPTS, SAMPLING, SEEDS), sample_groups(model, PROMPTS, SAMPLING, SEEDS), model)
    assert pool.restarts == before + 1


def test_workers_see_the_environment(pool) -> None:
    for worker in pool.workers:
        assert ray.get(worker.environment.remote())["LOOP_RL_TEST_VALUE"] == "seen"
