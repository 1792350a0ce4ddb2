"""GPUs that Ray counts but that are not there: none of the learner's goes to a worker while there are others."""

import pytest
import ray

from loop_rl.rollout.ray_engine import RolloutPool
from tests.tiny import tiny_model


@pytest.mark.parametrize(
    ("visible", "workers", "learner", "expected", "said"),
    [
        ("2", 2, 1, {"0", "1"}, "learner on GPU 2; rollout worker 0 on GPU"),
        ("0,1", 2, 2, {"2"}, "2 workers share 1 GPUs"),
        (None, 1, 3, set(), "share the learner's GPU 0, 1, 2, for there is no other"),
    ],
)
def test_workers_are_kept_off_the_learners_gpus(
    ray_instance, monkeypatch, visible, workers, learner, expected, said
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with RolloutPool(tiny_model().config, workers=workers, learner_gpus=learner) as pool:
        places = ray.get([worker.place.remote() for worker in pool.workers])
        assert {gpu for _, gpus in places for gpu in gpus} == expected
        assert pool.places == [(ray.nodes()[0]["NodeManagerHostname"], gpus) for _, gpus in places]
        (note,) = pool.notes
        assert said in note
