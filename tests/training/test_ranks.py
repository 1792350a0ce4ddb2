"""RL on several ranks: the same weights, Ctrl-C saves, and the end of one is the end of all, with one message."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file
from transformers import AutoTokenizer

from loop_rl.models.loading import EMBEDDED
from tests.tiny import tiny_model

_HERE = Path(__file__).parent
_STEPS = 6


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")]), **more}


# ---- a whole run


@pytest.fixture(scope="module")
def recipe_file(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    tiny_model(vocab_size=512).save_pretrained(folder / "model")
    AutoTokenizer.from_pretrained(EMBEDDED).save_pretrained(folder / "model")
    values = {
        "model": {"path": str(folder / "model"), "dtype": "float64"},
        "data": {"train_size": 20, "eval_size": 2},
        "reward": {"name": "tests.training.ranks_run:reward", "workers": 0},
        "rollout": {"num_generations": 6, "prompts_per_step": 1, "max_completion_length": 6, "workers": 0},
        "optim": {"learning_rate": 0.01},
        "health": {"cosine_steps": 2},
        "eval": {"samples": 2},
        "run": {"max_steps": _STEPS, "save_steps": 1, "threads": 1, "folder": str(folder / "runs")},
    }
    (folder / "tiny.yaml").write_text(yaml.safe_dump(values))
    return folder / "tiny.yaml"


def launch(file: Path, *names: str, ranks: int = 2, **env: str) -> subprocess.Popen:
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
    return subprocess.Popen(
        [sys.executable, *launcher, str(_HERE / "ranks_run.py"), str(file), *names],
        env=environment(**env),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def last_weights(file: Path, name: str) -> dict[str, torch.Tensor]:
    return load_file(file.parent / "runs" / name / "checkpoints" / f"step_{_STEPS}" / "model" / "model.safetensors")


def test_two_ranks_learn_what_one_does_and_resume_after_ctrl_c(recipe_file: Path) -> None:
    alone = launch(recipe_file, "one", ranks=1)
    cut = launch(recipe_file, "cut", REWARD_SECONDS="0.5")
    while not list(recipe_file.parent.glob("runs/cut/checkpoints/step_2")):
        assert cut.poll() is None, cut.communicate()[1]
        time.sleep(0.02)
    os.killpg(cut.pid, signal.SIGINT)  # as a terminal does, to all; torchrun passes it on to the ranks once more
    _, errors = cut.communicate(timeout=60)
    ours = [line for line in errors.splitlines() if line.startswith("loop-rl:")]
    assert len(ours) == 2 and "saving the last finished step" in ours[0], errors
    assert "stopped after step" in ours[1] and "is complete" in ours[1]
    assert not list(recipe_file.parent.glob(f"runs/cut/checkpoints/step_{_STEPS}"))

    both = launch(recipe_file, "whole", "cut")
    _, errors = both.communicate(timeout=120)
    assert both.returncode == 0, errors
    whole, resumed = last_weights(recipe_file, "whole"), last_weights(recipe_file, "cut")
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)

    _, errors = alone.communicate(timeout=120)
    assert alone.returncode == 0, errors
    one, start = last_weights(recipe_file, "one"), load_file(recipe_file.parent / "model" / "model.safetensors")
    for name in one:
        torch.testing.assert_close(whole[name], one[name], rtol=0, atol=1e-9, msg=name)
    assert max((one[name] - start[name]).abs().max() for name in one) > 1e-3
    for run in ("whole", "cut"):
        rows, expected = (
            [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
            for folder in (recipe_file.parent / "runs" / run, recipe_file.parent / "runs" / "one")
        )
        assert [row["step"] for row in rows] == list(range(1, _STEPS + 1))
        assert {row["skipped_update"] for row in rows} == {0.0, 1.0}  # batches with a signal and without
        for row, other in zip(rows, expected, strict=True):
            assert row.keys() == other.keys()
            assert row["completions/learned_from"] == other["completions/learned_from"]


# ---- the end of one is the end of all


@pytest.fixture(scope="module")
def cases() -> dict[str, dict]:
    script = subprocess.run(
        [sys.executable, str(_HERE / "ranks_cases.py")], env=environment(), capture_output=True, text=True, timeout=240
    )
    assert script.returncode == 0, script.stderr
    return json.loads(script.stdout)


@pytest.mark.parametrize(
    ("case", "codes", "line"),
    [
        ("end_well", [0, 0], None),
        ("main_fails", [2, 2], "loop-rl: the main rank's fault"),
        ("both_fail", [2, 2], "loop-rl: a recipe that all ranks refuse"),
        ("other_fails", [1, 1], "ValueError: a bug"),
        ("fails_in_a_collective", [2, 2], "loop-rl: out of memory on one rank"),
        ("other_is_killed", [2, -signal.SIGKILL], "loop-rl: lost another rank (Connection "),  # or reset
        ("other_is_asked_to_stop", [130, 130], "loop-rl: interrupted; go on with --resume"),
    ],
)
def test_the_end_of_one_rank_ends_all_with_one_message(cases, case: str, codes: list[int], line: str | None) -> None:
    """Whichever rank it is, and whatever the others are doing: waiting, sampling, or in a collective with it."""
    found = cases[case]
    assert found["codes"] == codes, found
    written = [text for lines in found["stderr"] for text in lines]
    said = [text for text in written if text.startswith("loop-rl:") or text == line]
    assert (said == []) if line is None else (len(said) == 1 and said[0].startswith(line)), written
