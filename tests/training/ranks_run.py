"""What tests/training/test_ranks.py starts on several ranks: RL runs of a recipe, in float64 so that sums agree.

`torchrun ... ranks_run.py RECIPE NAME...` runs the recipe once for each name, or resumes where that run's folder is.
"""

import os
import sys
import time
from pathlib import Path

import torch.distributed as dist

from loop_rl.recipe.rl import ModelSection, Recipe, load_recipe
from loop_rl.training.rl import train


def reward(completions: list[str], answer, **_) -> list[float]:
    """None of the signal for odd answers, so that some batches of one prompt have none; slow where the test asks."""
    time.sleep(float(os.environ.get("REWARD_SECONDS", "0")))
    return [float(len(c) % 5) if int(a.split()[-1]) % 2 == 0 else 0.0 for c, a in zip(completions, answer, strict=True)]


def allow_float64() -> None:
    """Let a recipe ask for it in this process."""
    ModelSection.model_fields["dtype"].annotation = str
    ModelSection.model_rebuild(force=True)
    Recipe.model_rebuild(force=True)


if __name__ == "__main__":
    allow_float64()
    for number, name in enumerate(sys.argv[2:]):
        os.environ["TORCHELASTIC_RESTART_COUNT"] = str(number)  # a fresh start for the ranks
        recipe = load_recipe(sys.argv[1], [f"run.name={name}"])
        train(recipe, resume=(Path(recipe.run.folder) / name).exists(), progress=False)
    assert not dist.is_initialized()
