"""A slice of scripts/check_against_evalplus.py: the same verdicts as evalplus, on right and on changed programs."""

import os
import random
from pathlib import Path

import pytest

from rewards import mbpp_plus
from rewards.code.tasks import FILE_NAMES, load_tasks
from tests.rewards.mbpp_squares import score, scoring

DATA = Path(os.environ.get("LOOP_RL_DATA") or Path(__file__).parents[2] / "../shared/data") / FILE_NAMES[0]
# Sets, matches, second readings, a tolerance, floats, complex numbers, tuples, no plus inputs.
TASKS = ("Mbpp/2", "Mbpp/737", "Mbpp/558", "Mbpp/581", "Mbpp/82", "Mbpp/98", "Mbpp/252", "Mbpp/63", "Mbpp/793")


def test_verdicts_are_evalplus_verdicts(tmp_path, monkeypatch):
    pytest.importorskip("evalplus", reason="evalplus is not installed")
    if not DATA.exists():
        pytest.skip(f"{DATA} is missing")
    monkeypatch.setenv("EVALPLUS_MAX_MEMORY_BYTES", "-1")
    from scripts.check_against_evalplus import Evalplus, mutate

    random_, theirs = random.Random(3), Evalplus()
    different, passed = [], 0
    with scoring("plain", tmp_path):
        mbpp_plus.use_data(DATA)
        for task in map(load_tasks(DATA).__getitem__, TASKS):
            changed = [mutate(task.canonical_solution, random_)[0] for _ in range(4)]
            programs = [task.canonical_solution, *changed]
            for code, (reward, reason) in zip(programs, score(programs, task.task_id), strict=True):
                passes, _ = theirs.share(task, code, to_the_end=False)
                passed += passes
                if (reward == 1.0) != passes:
                    different.append((task.task_id, code, reason))
    assert different == []
    assert len(TASKS) <= passed < 2 * len(TASKS)
