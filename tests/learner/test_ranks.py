"""The number of ranks changes nothing but time: 1, 2 and 3 gloo ranks take the same steps and report the same."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from safetensors.torch import load_file

from loop_rl.learner.batch import samples_of, shares
from tests.learner.ranks_run import CASES, EPS, RATE, run
from tests.tiny import tiny_model, tiny_rollouts

RANKS = (1, 2, 3)


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> dict[tuple[str, int, int], dict[str, torch.Tensor]]:
    """By case, rank and number of ranks."""
    folder = tmp_path_factory.mktemp("ranks")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")])}
    one = {(case, 0, 1): run(case, Accelerator(cpu=True)) for case in CASES}
    script = [sys.executable, str(Path(__file__).with_name("ranks_run.py")), str(folder), *map(str, RANKS[1:])]
    subprocess.run(script, env=env, check=True, timeout=240)
    return one | {
        (case, rank, ranks): load_file(folder / f"{case} {rank} of {ranks}.safetensors")
        for case in CASES
        for ranks in RANKS[1:]
        for rank in range(ranks)
    }


@pytest.mark.parametrize("case", CASES)
def test_weights_and_metrics_are_those_of_one_rank(results, case: str) -> None:
    """In float64. AdamW divides by at least EPS, so round-off of a gradient below 1, some 1e-16, may be 1e-16 / EPS of
    a step of the size RATE, in each of three updates."""
    one = results[case, 0, 1]
    assert one["moved"] > 0.1, "there is something to compare"
    for ranks in RANKS[1:]:
        apart = 0.0
        for rank in range(ranks):
            found = results[case, rank, ranks]
            assert found.keys() == one.keys()
            for name, value in one.items():
                if name.startswith("metric time/"):
                    continue
                tolerance = 3 * RATE * 1e-16 / EPS if name.startswith("weight") else 1e-7 * max(1.0, abs(float(value)))
                torch.testing.assert_close(
                    found[name], value, rtol=0, atol=tolerance, equal_nan=True, msg=f"{name}, rank {rank} of {ranks}"
                )
            differences = [(found[n] - one[n]).square().sum() for n in one if n.startswith("weight")]
            apart = max(apart, float(torch.stack(differences).sum().sqrt()))
        print(f"{case}: |dw| {float(one['moved']):.3f}; {ranks} ranks differ from one by {apart:.1e}")


def test_a_batch_without_signal_is_skipped_on_every_number_of_ranks(results) -> None:
    for ranks in RANKS:
        found = results["without signal", 0, ranks]
        assert found["metric skipped_update"] == 1 and found["metric grad_norm"].isnan()
        assert results["AdamW", 0, ranks]["metric skipped_update"] == 0


def test_shares_are_all_samples_once_balanced_by_tokens_and_without_other_states() -> None:
    samples = samples_of(tiny_rollouts(tiny_model()), torch.zeros(3, 4))
    for ranks in (1, 2, 3, 20):
        parts = shares(samples, ranks)
        assert sorted(id(s.completion) for part in parts for s in part) == sorted(id(s.completion) for s in samples)
        tokens = [sum(s.length for s in part) for part in parts]
        assert max(tokens) - min(tokens) <= max(s.length for s in samples)
        for part in parts:
            groups = {id(s.rollout): s.rollout for s in part}
            held = [id(c) for rollout in groups.values() for c in rollout.completions]
            assert sorted(held) == sorted(id(s.completion) for s in part)
