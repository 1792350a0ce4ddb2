"""`loop-rl eval`: a run's newest weights, or a model, on held-out questions, in this process."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from loop_rl.errors import UserError
from loop_rl.recipe import REWARDS, Recipe, load_recipe


@dataclass(frozen=True)
class Target:
    """What is evaluated: the model's folder or name, its run's folder and step (None and 0 for a model alone)."""

    model: str
    run: Path | None
    step: int
    recipe_file: Path | None


def find_target(name: str) -> Target:
    """A run folder (its newest complete checkpoint, else its final model) or whatever names a model."""
    folder = Path(name)
    if not (folder / "recipe.yaml").is_file():
        return Target(name, None, 0, None)
    from loop_rl.training.checkpoints import checkpoint_step, latest_checkpoint
    from loop_rl.training.run_folder import saved_recipe

    recipe_file = folder / "recipe.yaml" if "learner" in saved_recipe(folder) else None
    checkpoint = latest_checkpoint(folder / "checkpoints") if (folder / "checkpoints").is_dir() else None
    if checkpoint is not None:
        inside = checkpoint / "model"
        return Target(str(inside if inside.is_dir() else checkpoint), folder, checkpoint_step(checkpoint), recipe_file)
    if (folder / "model").is_dir():
        return Target(str(folder / "model"), folder, 0, recipe_file)
    raise UserError(
        f"{folder} has no complete checkpoint yet; wait for one (run.save_steps), or evaluate its model.path"
    )


def resolve(target: Target, data: str | None, overrides: Sequence[str]) -> Recipe:
    """The run's recipe, or the defaults for a model, with the data set's name and the overrides put in."""
    changes = [*overrides]
    if data is not None:
        changes.insert(0, f"data.name={json.dumps(data)}")
        if target.recipe_file is not None and "data.name=" not in "".join(overrides):
            # The sizes in the run's recipe are those of its own data.
            own = yaml.safe_load(target.recipe_file.read_text(encoding="utf-8"))["data"]["name"]
            changes[:0] = ["data.train_size=null", "data.eval_size=null"] if own != data else []
    if target.recipe_file is not None:
        return load_recipe(target.recipe_file, changes)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "eval.yaml"
        file.write_text(yaml.safe_dump({"model": {"path": target.model}}))
        return load_recipe(file, changes)


def run_eval(
    name: str,
    data: Sequence[str],
    samples: int,
    temperature: float | None,
    size: int | None,
    overrides: Sequence[str],
    progress: bool = True,
) -> list[dict[str, Any]]:
    """Evaluates on each data set (none named: the run's own) and returns a row for each, as in evals.jsonl.

    Everything is read and checked before the first sample. A run's rows go into its evals.jsonl too.
    """
    target = find_target(name)
    changes = overrides if size is None else [*overrides, f"data.eval_size={size}"]
    recipes = [resolve(target, one, changes) for one in (data or [None])]
    from loop_rl.data import load_dataset
    from loop_rl.evaluation import evaluate, load_reward, record_evaluation
    from loop_rl.evaluation.record import eval_row
    from loop_rl.rollout.sampler import Sampling, sample_groups
    from loop_rl.training.load import load_model

    jobs = []
    for recipe in recipes:
        reward = load_reward(recipe.reward.name)
        jobs.append((recipe, reward, load_dataset(recipe.data, numeric=recipe.reward.name in REWARDS).test))
    if recipes[0].run.threads is not None:
        import torch

        torch.set_num_threads(recipes[0].run.threads)
    model, tokenizer = load_model(target.model, recipes[0].model.dtype)
    model.eval()
    rows = []
    for recipe, reward, examples in jobs:
        sampling = Sampling(
            num_generations=samples,
            max_completion_length=recipe.rollout.max_completion_length,
            temperature=recipe.eval.temperature if temperature is None else temperature,
            depth=recipe.model.depth,
            eos_token_ids=end_tokens(model, tokenizer),
            save_states=False,
        )
        with _bar(progress) as bar:
            task = bar.add_task(f"{recipe.data.name}", total=len(examples))
            result = evaluate(
                lambda prompts, sampling, seeds: sample_groups(model, prompts, sampling, seeds),
                tokenizer,
                examples,
                reward,
                sampling,
                seed=recipe.data.seed,  # as in training, so a run's last evaluation comes out again
                on_batch=lambda count, task=task, bar=bar: bar.advance(task, count),
            )
        if target.run is not None:
            rows.append(record_evaluation(target.run, target.step, recipe.data.name, result, {"by": "loop-rl eval"}))
        else:
            rows.append(eval_row(target.step, recipe.data.name, result))
    return rows


def end_tokens(model: Any, tokenizer: Any) -> tuple[int, ...]:
    """The ids that end a completion: the generation config's, which may be several, and the tokenizer's."""
    configured = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    if configured is None:
        configured = getattr(model.config, "eos_token_id", None)
    ids = list(configured) if isinstance(configured, list | tuple) else [configured]
    return tuple(sorted({token for token in (*ids, tokenizer.eos_token_id) if token is not None}))


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows for a terminal."""
    import io

    from rich.console import Console
    from rich.table import Table

    grid = Table()
    for name in ("data", "step", "questions", "samples", "temperature", "pass@1", "pass@8", "cut at the cap"):
        grid.add_column(name, justify="left" if name == "data" else "right")
    for row in rows:
        error = "" if row["stderr"] is None else f" ± {row['stderr']:.3f}"
        grid.add_row(
            row["data"],
            str(row["step"]),
            str(row["questions"]),
            str(row["samples"]),
            f"{row['temperature']:g}",
            "–" if row["pass@1"] is None else f"{row['pass@1']:.3f}{error}",
            "–" if row["pass@8"] is None else f"{row['pass@8']:.3f}",
            f"{row['truncated']:.1%}",
        )
    console = Console(file=io.StringIO(), width=160, color_system=None)
    console.print(grid)
    text = console.file.getvalue()
    missing = sum(row["not_scored"] for row in rows)
    return text + (f"{missing} completions were not scored and left out\n" if missing else "")


def _bar(progress: bool) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=Console(stderr=True), disable=not progress)
