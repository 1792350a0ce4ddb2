"""The rewards that have processes of their own, in Ray's actors."""

import sys
from pathlib import Path

import ray

ROOT = Path(__file__).parents[2]


def test_answers_are_judged_in_actors_of_every_kind(ray_instance):
    def score():
        sys.path.insert(0, str(ROOT))
        from rewards.math import pool as math_pool
        from rewards.math500 import math500_reward

        math_pool.TIME_LIMIT = 1.0
        texts = ["$2\\sqrt{3}$", "$3\\sqrt{2}$", "$(n!)!$"]  # the last takes longer than any limit
        return math500_reward(None, texts, answer=["\\sqrt{12}"] * 3)

    class Plain:
        def score(self):
            return score()

    class Async:
        async def score(self):
            return score()

    kinds = [ray.remote(Plain).options(num_cpus=0), ray.remote(Plain).options(num_cpus=0, max_concurrency=3)]
    actors = [kind.remote() for kind in [*kinds, ray.remote(Async).options(num_cpus=0)]]
    assert ray.get([actor.score.remote() for actor in actors]) == [[1.0, 0.0, 0.0]] * 3


def test_programs_run_in_an_actor(ray_instance, tmp_path):
    @ray.remote(num_cpus=0)
    class Scorer:
        def score(self, folder):
            sys.path.insert(0, str(ROOT))
            from tests.rewards.mbpp_squares import score, scoring

            with scoring("plain", Path(folder)):
                return score(["def f(n): return n * n + 1", "import os\ndef f(n): os._exit(0)"])

    results = ray.get(Scorer.remote().score.remote(str(tmp_path)))
    assert results == [(1.0, "correct"), (0.0, "wrong: its process ended")]
