"""The shipped benchmarks with their rewards, in the processes that a run scores in: references right, others wrong."""

from pathlib import Path

import pytest

from loop_rl.evaluation.task import Task, load_task
from loop_rl.recipe.reward import RewardSection
from loop_rl.recipe.rl import DataSection
from loop_rl.reward.pool import RewardPool
from rewards.mbpp_plus import load_tasks

DATA = Path(__file__).resolve().parents[2] / "../shared/data"
SIZES = {"gsm8k": {"train_size": 0}, "mbpp_plus": {"train_size": 0}, "math500": {}, "aqua": {"train_size": 0}}


def right_answers(task: Task) -> list[str]:
    """A completion of each held-out question that its reference makes correct."""
    if task.data == "mbpp_plus":
        programs = load_tasks(task.reward.data_file)
        solutions = [programs[example.columns["task_id"]].canonical_solution for example in task.splits.test]
        return [f"```python\n{solution}\n```" for solution in solutions]
    words = {"gsm8k": "{}", "math500": "So it is \\boxed{{{}}}.", "aqua": "The answer is {}."}[task.data]
    return [words.format(example.answer) for example in task.splits.test]


def rotated(values: list) -> list:
    """Each question with the next one's."""
    return values[1:] + values[:1]


@pytest.mark.skipif(not DATA.is_dir(), reason="the data sets are not here")
def test_references_are_right_and_other_questions_answers_are_not(monkeypatch, ray_instance) -> None:
    monkeypatch.delenv("LOOP_RL_DATA", raising=False)
    monkeypatch.delenv("MBPP_OVERRIDE_PATH", raising=False)  # the recipe's folder alone leads the workers to the file
    sections = [DataSection(name=name, folder=str(DATA), eval_size=4, **sizes) for name, sizes in SIZES.items()]
    tasks = [load_task(section, RewardSection()) for section in sections]
    with RewardPool([task.reward for task in tasks]) as pool:
        assert any("MBPP+" in note for note in pool.notes)
        for task in tasks:
            examples, answers = task.splits.test, right_answers(task)
            alike = [one.answer == other.answer for one, other in zip(examples, rotated(examples), strict=True)]
            for given, right in ((answers, [True] * 4), (rotated(answers), alike), ([""] * 4, [False] * 4)):
                (scores,) = pool.gather([pool.submit(task.reward, examples, given, [[1]] * 4)])
                assert scores.rewards == [float(one) for one in right], (task.data, scores.reasons)
                # Of another task's program, MBPP+ finds that the wanted function is not there.
                fault = "wrong" if any(given) and task.data != "mbpp_plus" else "no answer"
                for one, reason in zip(right, scores.reasons, strict=True):
                    assert reason.startswith("correct" if one else fault), (task.data, reason)
