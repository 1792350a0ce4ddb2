"""Two gloo ranks take the same gradient as one process."""

import os
import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

from loop_rl.learner.batch import samples_of, shares
from tests.tiny import tiny_model, tiny_rollouts

_SCRIPT = """
import sys, torch
from accelerate import Accelerator
from safetensors.torch import save_file
from loop_rl.fixed_point import parse_estimator
from loop_rl.learner.batch import samples_of, shares
from loop_rl.learner.objective import group_advantages
from loop_rl.learner.update import Learner, Objective
from tests.tiny import tiny_model, tiny_rollouts
torch.set_num_threads(1)
accelerator = Accelerator(cpu=True)
model = tiny_model(torch.float64)
rewards = torch.tensor([[1.0, 0, 0, 1], [0, 0, 0, 0], [1, 0, 1, 1]])
samples = samples_of(tiny_rollouts(model), group_advantages(rewards))[:11]
learner = Learner(model, parse_estimator("reuse_neumann4"), Objective(7), torch.optim.SGD(model.parameters(), lr=0.1),
                  1.0, 3, accelerator)
metrics = learner.update(shares(samples, accelerator.num_processes)[accelerator.process_index], len(samples))
out = {name: p.detach() for name, p in model.named_parameters()}
out["metrics"] = torch.tensor([metrics["loss"], metrics["grad_norm"], metrics["entropy"], accelerator.num_processes],
                              dtype=torch.float64)
save_file(out, sys.argv[1] + f"/rank{accelerator.process_index}_of{accelerator.num_processes}.safetensors")
"""


def test_two_ranks_equal_one(tmp_path: Path) -> None:
    script = tmp_path / "ranks.py"
    script.write_text(_SCRIPT)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")])}
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    subprocess.run([sys.executable, script, tmp_path], env=env, check=True, timeout=120)
    subprocess.run([*launch, script, tmp_path], env=env, check=True, timeout=240)
    one = load_file(tmp_path / "rank0_of1.safetensors")
    for rank in (0, 1):
        two = load_file(tmp_path / f"rank{rank}_of2.safetensors")
        assert two["metrics"][3] == 2
        torch.testing.assert_close(two["metrics"][:3], one["metrics"][:3], rtol=1e-12, atol=1e-12)
        for name in one.keys() - {"metrics"}:
            torch.testing.assert_close(two[name], one[name], rtol=0, atol=1e-13, msg=name)


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
