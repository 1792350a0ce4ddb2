"""Runs every case of test_ranks.py on several numbers of ranks: `python ranks_run.py FOLDER RANKS...`.

The ranks are forked from one process, which has imported everything.
"""

import math
import os
import socket
import sys
import traceback

import torch
from accelerate import Accelerator
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file

from loop_rl.fixed_point import parse_estimator
from loop_rl.learner.batch import samples_of, shares
from loop_rl.learner.objective import group_advantages
from loop_rl.learner.update import Learner, Objective
from tests.tiny import tiny_model, tiny_rollouts

RATE, EPS = 0.02, 1e-6
SIGNAL = [[1.0, 0, 0, 1], [0, 0, 0, 0], [1, 0, 1, 1]]
SILENT = [[1.0] * 4, [0.0] * 4, [math.nan, 0.5, 0.5, 0.5]]
UNEVEN = [[1.0, 0, math.nan, math.nan], [0, 0, 0, 0], [1, 1, 1, 1]]  # two completions: a third rank has none
CASES = {
    # name: estimator, beta, adapters, iterations, rewards of the steps
    "AdamW": ("reuse_neumann4", 0.0, False, 1, [SIGNAL, SIGNAL]),
    "KL": ("reuse_neumann4", 0.05, False, 1, [SIGNAL, SILENT]),
    "LoRA": ("full_bptt", 0.05, True, 1, [SIGNAL, SIGNAL]),
    "uneven": ("recompute_neumann3_tail", 0.0, False, 1, [UNEVEN, UNEVEN]),
    "without signal": ("reuse_neumann4", 0.0, False, 1, [SIGNAL, SILENT]),
    "iterations": ("reuse_implicit", 0.0, False, 3, [SIGNAL]),
}


def run(name: str, accelerator: Accelerator) -> dict[str, torch.Tensor]:
    """Trained weights, how far they went, and the metrics of the last update. The exit gate gets no gradient."""
    estimator, beta, lora, iterations, steps = CASES[name]
    model = tiny_model(torch.float64, exit_gate=True)
    rollouts = tiny_rollouts(model)
    if lora:
        torch.manual_seed(0)
        settings = LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM", lora_dropout=0.2)
        model = get_peft_model(model, settings)
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    start = {name: p.detach().clone() for name, p in trained.items()}
    optimizer = torch.optim.AdamW(trained.values(), lr=RATE, eps=EPS, weight_decay=0.1)
    objective = Objective(7, beta=beta, importance_sampling_cap=2.0 if iterations > 1 else None)
    learner = Learner(model, parse_estimator(estimator), objective, optimizer, 1.0, 3, accelerator)
    for rewards in steps:
        samples = samples_of(rollouts, group_advantages(torch.tensor(rewards)))
        scored = sum(not math.isnan(sample.advantage) for sample in samples)
        mine = shares(learner.useful(samples), accelerator.num_processes)[accelerator.process_index]
        mine, _ = learner.prepare(mine, iterations)
        for _ in range(iterations):
            metrics = learner.update(mine, scored)
    moved = math.sqrt(sum(float((p.detach() - start[name]).square().sum()) for name, p in trained.items()))
    values = {f"metric {key}": math.nan if value is None else value for key, value in metrics.items()}
    numbers = {key: torch.tensor(value, dtype=torch.float64) for key, value in {**values, "moved": moved}.items()}
    return {**{f"weight {key}": p.detach() for key, p in trained.items()}, **numbers}


def run_cases(folder: str) -> None:
    """All cases on this rank, as the environment says which it is."""
    accelerator = Accelerator(cpu=True)
    for case in CASES:
        place = f"{folder}/{case} {accelerator.process_index} of {accelerator.num_processes}.safetensors"
        save_file(run(case, accelerator), place)


def fork_ranks(folder: str, ranks: int) -> bool:
    """Whether all ended well."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    os.environ |= {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    children = []
    for rank in range(ranks):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
                run_cases(folder)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        children.append(child)
    # One that failed is not waited for by the others: gloo's connections to it are closed.
    return all([os.waitpid(child, 0)[1] == 0 for child in children])


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(not all(fork_ranks(sys.argv[1], int(ranks)) for ranks in sys.argv[2:]))
