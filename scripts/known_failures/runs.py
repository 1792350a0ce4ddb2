"""Training: what is learned, refused, resumed and said."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import torch
import yaml
from safetensors.torch import load_file
from torch import Tensor

from known_failures.seen import (
    VARIED,
    Given,
    Seen,
    command,
    completions,
    covered,
    embedded,
    ended,
    equal,
    listed,
    near,
    no_model_is_loaded,
    recipe,
    refused,
    reward,
    rows,
    saved,
    varied,
)
from loop_rl.data.prompts import all_prompt_ids
from loop_rl.models.loading import EMBEDDED
from loop_rl.recipe.rl import load_recipe
from loop_rl.training.trainer import Trainer

_HEAD = "lm_head.weight"


def _started(*words: str) -> subprocess.Popen:
    """`loop-rl WORDS` as a process of its own, in this folder; stdout and stderr are in `log`."""
    path = os.pathsep.join(map(os.path.abspath, filter(None, sys.path)))
    with Path("log").open("w") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "loop_rl.cli", *words],
            env={**os.environ, "PYTHONPATH": path},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def low_precision(given: Given) -> Iterator[Seen]:
    """in bfloat16 the same weights move, and as far, as in float32"""
    rate, steps = 1e-6, given["recipe"]["run"]["max_steps"]
    start = _moved(load_file(EMBEDDED / "model.safetensors"), {})
    shares, norms = {}, {}
    for dtype in ("float32", "bfloat16"):
        sections = {"rollout": {"prompts_per_step": 4}, "optim": {"learning_rate": rate}, "run": {"max_steps": steps}}
        file = recipe(dtype, model={"dtype": dtype}, reward=varied("moves"), **sections)
        yield ended(f"train in {dtype}", command("train", file))
        trainer = Trainer(load_recipe(file))
        trainer.load(saved(f"runs/{dtype}", steps).parent)
        masters = [master for master, _ in getattr(trainer.learner.optimizer, "copies", [])]
        names = [name for name, _ in trainer.model.named_parameters()]
        weights = dict(zip(names, masters or trainer.model.parameters(), strict=True))
        change = _moved(weights, start)
        moved = torch.cat([value.flatten() for value in change.values()])
        shares[dtype], norms[dtype] = float((moved != 0).double().mean()), float(moved.norm())
        moments = [v.dtype for s in trainer.learner.optimizer.state.values() for v in s.values() if v.dim()]
        yield equal(f"AdamW's moments, {dtype}", {torch.float32}, set(moments))
    yield near("share of weights that moved, beside float32", shares["float32"], shares["bfloat16"], 0.05)
    yield near("how far they moved, as a multiple of float32", 1.0, norms["bfloat16"] / norms["float32"], 0.25)


def _moved(weights: dict[str, Tensor], start: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.detach().double() - start.get(name, 0.0) for name, value in weights.items()}


def one_wandb_run(given: Given) -> Iterator[Seen]:
    """a resumed run goes on in the same wandb run; what wandb lacks is one line"""
    from wandb.errors import UsageError

    settings = {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}
    with mock.patch.dict(os.environ, settings):
        parts = {"run": {"wandb": "offline", "max_steps": 2}, "reward": varied("mirrored_reward")}
        yield ended("train", command("train", recipe("mirrored", **parts)))
        parts["run"]["max_steps"] = 3
        yield ended("train --resume", command("train", recipe("mirrored", **parts), "--resume"))
    opened = sorted(
        path.name.rpartition("-")[2] for path in Path("runs/mirrored").rglob("offline-run-*") if path.is_dir()
    )
    yield Seen("wandb runs opened", "twice the same", opened, len(opened) == 2 and len(set(opened)) == 1)
    online = {"run": {"wandb": "online"}, "rollout": {"workers": 1}}
    with mock.patch("ray.init", side_effect=AssertionError("Ray was started")):
        with mock.patch.dict(sys.modules, {"wandb": None}):
            yield refused(
                "wandb is not installed", command("train", recipe("absent", **online)), "run.wandb", "pip install"
            )
        with mock.patch("wandb.init", side_effect=UsageError("No API key configured")):
            yield refused("no key", command("train", recipe("no_key", **online)), "run.wandb", "No API key")
    failing = mock.Mock(id="one", log=mock.Mock(side_effect=OSError("no route to host")))
    with mock.patch("wandb.init", return_value=failing):
        yield ended("a log() that fails", command("train", recipe("failing", run={"wandb": "online"})))
    yield equal("its failures in the metrics", True, rows("runs/failing")[-1]["wandb/failures"] > 0)


def dropout(given: Given) -> Iterator[Seen]:
    """ratios are 1 and the cosine of one gradient to itself is 1"""
    section = {"r": given["recipe"]["lora"]["r"], "lora_dropout": given["recipe"]["lora"]["dropout"]}
    for estimator, rank in (("full_bptt", section), ("reuse_neumann4", section), ("recompute_neumann4", section)):
        parts = {"lora": rank, "learner": {"estimator": estimator}, "health": {"cosine_steps": 1}}
        said = command("train", recipe(estimator, **parts, reward=varied("dropped")))
        yield ended(f"train, {estimator}", said)
        yield Seen(
            f"said, {estimator}", "no effect in RL", "no effect in RL" in said.text, "no effect in RL" in said.text
        )
        for row in rows(f"runs/{estimator}"):
            yield near(f"ratio, {estimator}", 1.0, row["sampling/importance_sampling_ratio/mean"], 1e-4)
            if estimator == "full_bptt":
                yield near("gradient/cosine", 1.0, row["gradient/cosine"], 1e-5)


def several_rewards(given: Given) -> Iterator[Seen]:
    """a None is left out of the sum; without any number a sample is not scored"""
    names = {"of_maths": ("1.0", "None"), "of_code": ("None", "0.5"), "of_nothing": ("None", "None")}
    for name, (even, odd) in names.items():
        reward(f"def f(completions, **c): return [{odd} if i % 2 else {even} for i in range(len(completions))]", name)
    for name, functions, wanted in (
        ("both", {"of_maths:f": 1.0, "of_code:f": 1.0}, [1.0, 0.5]),
        ("weighted", {"of_code:f": 4.0, "of_maths:f": 1.0}, [1.0, 2.0]),
        ("one", {"of_maths:f": 1.0}, [1.0, None]),
        ("none", {"of_nothing:f": 1.0}, [None, None]),
    ):
        yield ended(f"train, {name}", command("train", recipe(name, reward={"functions": functions})))
        found = [one["reward"] for one in completions(f"runs/{name}", 1)]
        yield equal(f"rewards, {name}", wanted * 4, found)
        yield equal(f"reward_errors, {name}", found.count(None), rows(f"runs/{name}")[0]["reward_errors"])


def past_the_context(given: Given) -> Iterator[Seen]:
    """refused before the first step, and taken where it just fits"""
    length = given["recipe"]["rollout"]["max_completion_length"]
    folder = str(embedded("short", max_position_embeddings=64))
    about = {"model": {"path": folder}, "reward": varied("short_reward")}
    file = recipe("long", **about, rollout={"max_completion_length": length, "workers": 1})
    size = f"rollout.max_completion_length={length}"
    for words in (("train", file), ("train", file, "--dry-run"), ("eval", folder, "--size", "2", "--set", size)):
        yield refused(" ".join(words[:3]), command(*words), "context of 64", "max_completion_length")
    trainer = Trainer(load_recipe(recipe("known", **about)))
    prompts = [one.prompt for part in (trainer.task.splits.train, trainer.task.splits.test) for one in part]
    room = 64 - max(map(len, all_prompt_ids(trainer.tokenizer, prompts)))
    for more in (0, 1):
        said = command("train", recipe(f"room_{more}", **about, rollout={"max_completion_length": room + more}))
        variant = f"the longest completion that fits{' and a token' * more}"
        yield refused(variant, said, "context of 64") if more else ended(variant, said)


def not_finite(given: Given) -> Iterator[Seen]:
    """the run stops with one line within a few steps, and saves nothing bad"""
    for tensor in (_HEAD, "model.embed_tokens.weight", "model.core.0.mlp.up_proj.weight"):

        def spoil(tensors: dict[str, Tensor], tensor: str = tensor) -> None:
            tensors[tensor][5] = float("nan")

        folder = str(embedded(f"nan_{tensor}", None, spoil))
        template = {"template": "Q?{question}%"}
        about = {"model": {"path": folder}, "run": {"max_steps": 5}, "data": template, "reward": varied("nan_reward")}
        everywhere = tensor != "model.embed_tokens.weight"
        said = command("train", recipe(f"run_{tensor}", **about))
        if everywhere or said.code:  # a row of the embedding that no prompt has does no harm until it is sampled
            yield refused(f"train, NaN in {tensor}", said, "finite")
        kept = list(Path("runs", f"run_{tensor}").glob("checkpoints/step_*"))
        bad = [
            path.name
            for path in kept
            if any(v.isnan().any() for v in load_file(path / "model/model.safetensors").values())
        ]
        yield equal(f"bad checkpoints, NaN in {tensor}", [], bad if everywhere else [])
        if everywhere:
            yield refused(f"eval, NaN in {tensor}", command("eval", folder, "--size", "2"), "finite")
    file = recipe("blown_up", optim={"learning_rate": 1e4}, run={"max_steps": 20}, reward=varied("nan_reward"))
    yield refused("train, learning rate 1e4", command("train", file), "learning_rate must be at most 1")
    steps = len(rows("runs/blown_up")) if Path("runs/blown_up/metrics.jsonl").is_file() else 0
    yield Seen("its steps", "at most 5", steps, steps <= 5)


def killed_before_a_checkpoint(given: Given) -> Iterator[Seen]:
    """each evaluation and each step once"""
    # 2 held-out questions are scored at step 0, then 2 prompts a step: the 8th call is in step 3
    code = "calls = itertools.count(1)\ndef f(completions, **columns):\n"
    code += "    if next(calls) == 8 and not os.path.exists('killed'):\n        open('killed', 'w')\n"
    code += "        os.kill(os.getpid(), signal.SIGKILL)\n    return varied(completions)"
    parts = {"run": {"max_steps": 4, "save_steps": 10}, "reward": reward(f"{VARIED}\n{code}", "deadly")}
    file = recipe("killed_run", **parts)
    yield equal("train, killed in step 3", -signal.SIGKILL, _started("train", file).wait())
    yield equal("steps before", [1, 2], [row["step"] for row in rows("runs/killed_run")])
    for key, value in (("run.seed", 1), ("optim.learning_rate", 0.5)):
        said = command("train", file, "--resume", "--set", f"{key}={value}")
        yield refused(f"resumed with another {key}", said, key, str(value))
    yield ended("resumed with other eval settings", command("train", file, "--resume", "--set", "eval.samples=2"))
    yield equal("evaluations", [0, 4], [row["step"] for row in rows("runs/killed_run", "evals.jsonl")])
    yield equal("steps", [1, 2, 3, 4], [row["step"] for row in rows("runs/killed_run")])
    report = command("report", "runs/killed_run", "--evals").text
    lines = [line for line in report.splitlines() if "arithmetic" in line]
    yield Seen("report --evals", "a line for each of 2", report, len(lines) == 2)


def hangs(given: Given) -> Iterator[Seen]:
    """it is said what is waited for; Ctrl-C is answered, a second one ends the run"""
    # the evaluation's two questions are the first two calls
    for name, workers, call, doing in (
        ("a reward worker, in an evaluation", 1, 1, "the evaluation under way"),
        ("the training process, in a step", 0, 3, "the step under way"),
    ):
        code = f"{given['reward']}\n{VARIED}\ncalls = itertools.count(1)\ndef f(completions, **columns):\n"
        code += f"    if next(calls) == {call}:\n        open('hangs_{workers}', 'w')\n        hang(completions)\n"
        section = reward(f"{code}    return varied(completions)", f"hanging_{workers}")
        process = _started("train", recipe(f"run_{workers}", reward={**section, "workers": workers}))
        try:
            yield equal(f"{name}: hangs", True, _wait_for(process, Path(f"hangs_{workers}").exists))
            if workers:  # without, there may be a debugger, and Ctrl-C shows where it is
                yield _logged(f"{name}: said after a minute", process, "waiting for scores of hanging_1:f")
            process.send_signal(signal.SIGINT)
            yield _logged(f"{name}: first Ctrl-C", process, f"stopping after {doing}; Ctrl-C again ends at once")
            yield equal(f"{name}: runs on", None, process.poll())
            process.send_signal(signal.SIGINT)
            yield equal(f"{name}: second Ctrl-C ends it", True, _wait_for(process, lambda: False))
            yield equal(f"{name}: its exit code", 130, process.poll())
            yield equal(f"{name}: tracebacks", 0, Path("log").read_text().count("Traceback"))
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait_for(process: subprocess.Popen, there: Callable[[], bool], seconds: float = 300) -> bool:
    """Whether it came to be while the process ran, or the process ended."""
    deadline = time.monotonic() + seconds
    while process.poll() is None and not there():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.5)
    return True


def _logged(variant: str, process: subprocess.Popen, words: str) -> Seen:
    """Right where a line of the process's log comes to have the words."""
    log = Path("log")
    _wait_for(process, lambda: words in log.read_text())
    line = next((line for line in log.read_text().splitlines() if words in line), "no such line")
    return Seen(variant, words, line, words in line)


def long_temporary_folder(given: Given) -> Iterator[Seen]:
    """one line that names the folder, before the model is loaded"""
    long = Path.cwd() / ("x" * 110)
    long.mkdir()
    file = recipe("long", rollout={"workers": 1}, reward={"workers": 1})
    for name, variables, word in (
        ("TMPDIR", {"TMPDIR": str(long)}, "TMPDIR"),
        ("RAY_TMPDIR", {"RAY_TMPDIR": str(long)}, "RAY_TMPDIR"),
        ("a TMPDIR that can't be made", {"TMPDIR": str(Path(file).resolve())}, "TMPDIR"),
    ):
        with mock.patch.dict(os.environ, variables), no_model_is_loaded():
            yield refused(name, command("train", file), word)
        with mock.patch.dict(os.environ, variables):
            scorers = recipe("scorers", reward={"workers": 1})
            with no_model_is_loaded():
                yield refused(f"{name}, reward workers alone", command("train", scorers), word)
            if "can't" not in name:
                yield ended(f"{name}, without Ray", command("train", recipe(f"none_{word}")))


def misspelt(given: Given) -> Iterator[Seen]:
    """exit code 2, naming the key"""
    own = [{"rollout": {"num_generations": 1}}, {"optim": {"learning_rate": "fast"}}, {"rollout": {"topp": 0.9}}]
    for number, edit in enumerate([*listed(given.get("recipe_edits", given.get("recipe"))), *own]):
        Path(f"wrong_{number}.yaml").write_text(yaml.safe_dump({"extends": "quickstart_reuse_neumann4.yaml", **edit}))
        section, keys = next(iter(edit.items()))
        words = [section, *(keys if isinstance(keys, dict) else {})]
        with no_model_is_loaded():
            yield refused(f"{edit}", command("train", f"wrong_{number}.yaml"), *words)


def offline(given: Given) -> Iterator[Seen]:
    """one line that names the file and what to set, before any worker"""
    bare = {name: value for name, value in os.environ.items() if name not in ("LOOP_RL_DATA", "MBPP_OVERRIDE_PATH")}
    with mock.patch.dict(os.environ, {**bare, "HF_HOME": "empty", "HF_HUB_OFFLINE": "1"}, clear=True):
        with mock.patch("ray.init", side_effect=AssertionError("Ray was started")), no_model_is_loaded():
            said = command("train", "mbpp_reuse_neumann4", "--set", "model.path=embedded")
    yield refused("train", said, "data.folder", "LOOP_RL_DATA")


COLLECTED = {
    "rl-01": low_precision,
    "rl-05": one_wandb_run,
    "rl-06": dropout,
    "rl-07": several_rewards,
    "rl-08": past_the_context,
    "rl-12": not_finite,
    "rl-14": killed_before_a_checkpoint,
    "rl-15": hangs,
    "rl-16": long_temporary_folder,
}
EARLIER = {
    "config-01": misspelt,
    "grpo-08": misspelt,
    "mbpp-07": offline,
    "resume-01": covered("training/test_rl.py::test_every_step_draws_its_prompts_from_its_number"),
    "resume-02": covered("training/test_rl.py::test_a_run_killed_at_a_random_moment_ends_with_the_same_weights"),
    "resume-03": covered("learner/test_optimizer.py::test_resumed_training_is_bitwise_that_of_one_go"),
    "resume-04": covered(
        "runs/test_checkpoints.py::test_the_newest_is_chosen_by_number",
        "runs/test_checkpoints.py::test_a_damaged_newest_is_named_and_passed_over",
        "runs/test_checkpoints.py::test_a_save_that_dies_leaves_nothing_visible",
    ),
    "ray-02": covered(
        "rollout/test_ray_engine.py::test_workers_see_the_environment",
        "rollout/test_ray_engine.py::test_a_killed_worker_costs_a_retry",
    ),
}
