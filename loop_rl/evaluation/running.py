"""`loop-rl eval`: a run's newest weights, a model, or a recipe's, on held-out questions; stopped, it can go on."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from loop_rl.errors import UserError, type_and_message
from loop_rl.recipe.rl import Recipe, load_recipe

if TYPE_CHECKING:
    from loop_rl.evaluation.sample import Generate
    from loop_rl.evaluation.task import Task
    from loop_rl.recipe.rl import LoraSection
    from loop_rl.reward.reward import RewardSpec
    from loop_rl.reward.scorer import Scorer

# Sections that decide nothing of an evaluation, and so must not refuse one, such as a truncated window a lower depth.
_OF_TRAINING = ("learner", "health", "optim")


@dataclass(frozen=True)
class Target:
    """What is evaluated: the model's folder or name, its run's folder and step (None and 0 for a model alone).

    `recipe`: the run's recipe, or the one that was named; None for a model, which takes the defaults.
    """

    model: str
    run: Path | None
    step: int
    recipe: Path | None


def find_target(name: str) -> Target:
    """A run folder (see loop_rl.models.loading.run_weights), a recipe, or whatever names a model."""
    folder = Path(name)
    recipe_file: Path | None = folder / "recipe.yaml"
    lost = not recipe_file.is_file()
    if lost and ((folder / "config.json").is_file() or not (folder / "checkpoints").is_dir()):
        recipe = _recipe_file(name)
        return Target(name if recipe is None else load_recipe(recipe).model.path, None, 0, recipe)
    from loop_rl.models.loading import resolve_model, run_weights
    from loop_rl.runs.folder import saved_recipe

    if lost:
        print(f"loop-rl: {folder} has no recipe.yaml; what it would set takes its default", file=sys.stderr)
    if lost or "learner" not in saved_recipe(folder):
        recipe_file = None
    weights = run_weights(folder)
    if weights is None:
        return Target(resolve_model(folder), folder, 0, recipe_file)  # says what is missing
    return Target(str(weights[0]), folder, weights[1], recipe_file)


def _recipe_file(name: str) -> Path | None:
    from loop_rl.recipe.kinds import find, load_any, shipped

    if Path(name).is_dir() or not (name.endswith((".yaml", ".yml")) or name in {file.stem for file in shipped()}):
        return None
    if not isinstance(load_any(name), Recipe):
        raise UserError(f"{name} is no recipe for loop-rl train: make its model first, then evaluate its run's folder")
    return find(name)


def resolve(target: Target, data: str | None, overrides: Sequence[str]) -> Recipe:
    """The recipe of one evaluation: the target's, with the data set's name and the overrides put in.

    Data that isn't the recipe's own comes with its own prompts, columns and reward, and with eval.size questions. A
    run's workers and cluster were for training; they are not taken over.
    """
    values: dict[str, Any] = {"model": {"path": target.model}, "run": {"name": "eval"}}
    if target.recipe is not None:
        values = load_recipe(target.recipe).model_dump()
        for section in _OF_TRAINING:
            del values[section]
        values["model"]["path"] = target.model
        own = values["data"]
        if data is not None and data != own["name"]:
            values["data"] = {"folder": own["folder"], "seed": own["seed"], "eval_size": values["eval"]["size"]}
            values["reward"] = {"workers": values["reward"]["workers"]}
    if target.run is not None:
        values["rollout"] = {**values.get("rollout", {}), "workers": 1, "cluster": None}
    if data is not None:
        values["data"] = {**values.get("data", {}), "name": data}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "eval.yaml"
        file.write_text(yaml.safe_dump(values))
        try:
            return load_recipe(file, overrides)
        except UserError as error:  # of a file that the user has never seen
            raise UserError(str(error).removeprefix(f"{file}: ")) from None


def run_eval(
    name: str,
    data: Sequence[str],
    overrides: Sequence[str],
    out: str | None = None,
    progress: bool = True,
) -> list[dict[str, Any]]:
    """Evaluates on each data set (none named: the recipe's own and its eval.data); returns a row for each.

    Everything is read and checked before the first sample. The rows go into evals.jsonl, of the run or in the folder
    `out` (evals/<model> by default), and the samples beside it. What is kept there of the same evaluation, finished
    or not, is used and not sampled again.
    """
    target = find_target(name)
    first = resolve(target, None, overrides)
    recipes = [resolve(target, one, overrides) for one in data or [first.data.name, *first.eval.data]]
    from loop_rl.evaluation.context import check_context, forward_depth
    from loop_rl.evaluation.task import about_left_out, load_task, short_enough

    tasks = [load_task(recipe.data, recipe.reward, recipe.rollout.stop) for recipe in recipes]
    for task in tasks:
        if not task.splits.test:
            raise UserError(f"data.name: {task.data} has no held-out questions to evaluate on")
    if _pooled(first):
        from loop_rl.rollout.instance import check_workers

        check_workers(first.rollout.workers, first.rollout.cluster)
    loaded = _load(target, first)
    depth = forward_depth(first, loaded.model.config)
    limit = first.data.max_prompt_length
    tasks = [short_enough(task, loaded.tokenizer, limit, ["test"]) for task in tasks]
    questions = [(task.data, task.splits.test) for task in tasks]
    check_context(questions, loaded.tokenizer, loaded.model.config, first.rollout.max_completion_length)
    folder = Path(out) if out is not None else target.run or Path("evals") / model_name(first.model.path)
    about = {
        "by": "loop-rl eval",
        "model": first.model.path,
        "depth": depth,
        "cache": first.rollout.cache,
        "depth_tolerance": first.rollout.depth_tolerance,
    }
    rows = []
    with contextlib.ExitStack() as stack:
        tools: tuple[Generate, Scorer] | None = None
        for recipe, task in zip(recipes, tasks, strict=True):
            one = _Evaluation(recipe, task, loaded, folder, target.step, progress)
            row = one.finished()
            if row is None:
                tools = tools or stack.enter_context(
                    _tools(loaded, first, [task.reward for task in tasks], target.step)
                )
                row = one.run(*tools, {**about, **about_left_out(task)})
            rows.append(row)
    return rows


@dataclass(frozen=True)
class _Loaded:
    """A model with its tokenizer, the student that reads its prompts, if any, their digest, where they sample, and the
    adapters that it has beside its weights."""

    model: Any
    tokenizer: Any
    student: Any
    weights: str
    device: str
    lora: LoraSection | None


def _load(target: Target, recipe: Recipe) -> _Loaded:
    import torch

    from loop_rl.evaluation.settings import weights_digest
    from loop_rl.models.adapters import adapted, load_adapters
    from loop_rl.models.loading import differing_weight, load_model, resolve_model
    from loop_rl.models.prefill import PrefillStudent

    if recipe.run.threads is not None:
        torch.set_num_threads(recipe.run.threads)
    trained = recipe if target.run is None or target.recipe is None else load_recipe(target.recipe)
    lora = trained.lora if _samples_as_trained(target, recipe, trained) else None
    try:
        model, tokenizer = load_model(recipe.model.path if lora is None else trained.model.path, recipe.model.dtype)
    except UserError as error:
        if lora is None:
            raise
        raise UserError(f"{error}; the run's adapters belong on it; or evaluate {target.model}") from error
    student = None
    if recipe.rollout.prefill == "student":
        # A run's student is the one that lies beside the model which it started from.
        student = PrefillStudent.load(Path(resolve_model(trained.model.path)), model)
    if lora is not None:
        model.config.depth = trained.model.depth or model.config.depth
        wrapped, folder = adapted(model, lora), Path(target.model).parent
        try:
            load_adapters(wrapped, folder)
        except Exception as error:  # of safetensors or our own: damaged, or not those of the run's recipe
            cause = type_and_message(error)[:200]
            raise UserError(f"cannot use the adapters in {folder} ({cause}); or evaluate {target.model}") from error
        changed = differing_weight(model, Path(target.model))
        if changed is not None:
            raise UserError(
                f"model.path: {trained.model.path} is no longer the model that the run started from ({changed} differs "
                f"from {target.model} without the adapters); evaluate {target.model} instead"
            )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model.to("cpu" if _pooled(recipe) else device).eval()  # a pool's workers have copies of their own
    weights = weights_digest(model.state_dict())
    if student is not None:
        student.to(model.device)
        weights += weights_digest(student.state_dict())
    return _Loaded(model, tokenizer, student, weights, recipe.rollout.cluster or device, lora)


def _samples_as_trained(target: Target, recipe: Recipe, trained: Recipe) -> bool:
    """Whether adapters stay beside the weights which the run started from, as in training, rather than merged.

    In bfloat16 the merged weights are rounded, so they sample something else.
    """
    from loop_rl.models.adapters import ADAPTER_FILE

    return (
        target.run is not None
        and (Path(target.model).parent / ADAPTER_FILE).is_file()
        and (recipe.model.path, recipe.model.dtype) == (target.model, trained.model.dtype)
    )


def _pooled(recipe: Recipe) -> bool:
    return recipe.rollout.workers > 1 or recipe.rollout.cluster is not None


class _Evaluation:
    """One data set's evaluation, and where it is kept."""

    def __init__(self, recipe: Recipe, task: Task, loaded: _Loaded, folder: Path, step: int, bar: bool) -> None:
        from loop_rl.evaluation.record import sample_name
        from loop_rl.evaluation.settings import eval_settings, settings_digest
        from loop_rl.models.generation import model_end_tokens
        from loop_rl.rollout.sampling import Sampling

        model, self.tokenizer = loaded.model, loaded.tokenizer
        self.task, self.folder, self.step, self.bar = task, folder, step, bar
        self.seed = recipe.data.seed  # as in training, so a run's last evaluation comes out again
        self.sampling = Sampling(
            num_generations=recipe.eval.samples,
            max_completion_length=recipe.rollout.max_completion_length,
            temperature=recipe.eval.temperature,
            depth=recipe.model.depth or model.config.depth,
            eos_token_ids=model_end_tokens(model, loaded.tokenizer),
            save_states=False,
            cache=recipe.rollout.cache,
            tolerance=recipe.rollout.depth_tolerance,
            min_depth=recipe.rollout.min_depth,
            stop=task.stop,
            max_batch_tokens=recipe.rollout.max_batch_tokens,
        )
        self.settings = eval_settings(
            loaded.weights, loaded.device, task.data, task.splits.test, task.reward, self.sampling, self.seed
        )
        self.name = f"{sample_name(step, task.data)}_{settings_digest(self.settings)}"

    def finished(self) -> dict[str, Any] | None:
        """The row of the same evaluation made before, if its samples are there."""
        from loop_rl.runs.rows import read_rows

        file = f"evals/{self.name}.parquet"
        rows = read_rows(self.folder / "evals.jsonl")[0]  # first: a file that can't be read takes no new row either
        if not (self.folder / file).is_file() or self._parts().is_dir():
            return None
        found = next((row for row in reversed(rows) if row.get("file") == file), None)
        if found is not None and self.bar:
            print(
                f"loop-rl: {self.task.data}: read from {self.folder / file}; remove it to sample again", file=sys.stderr
            )
        return found

    def run(self, generate: Generate, scorer: Scorer, about: dict[str, Any]) -> dict[str, Any]:
        """Samples what is not kept yet, and records the evaluation."""
        from loop_rl.evaluation import evaluate, record_evaluation
        from loop_rl.evaluation.record import PartFiles

        self._parts().mkdir(parents=True, exist_ok=True)
        (self.folder / "evals" / f"{self.name}.json").write_text(json.dumps(self.settings, indent=1) + "\n")
        with _bar(self.bar) as bar:
            shown = bar.add_task(self.task.data, total=len(self.task.splits.test))
            result = evaluate(
                generate,
                self.tokenizer,
                self.task.splits.test,
                scorer,
                self.task.reward,
                self.sampling,
                self.seed,
                on_batch=lambda count: bar.advance(shown, count),
                parts=PartFiles(self._parts()),
            )
        row = record_evaluation(self.folder, self.step, self.task.data, result, about, self.name)
        shutil.rmtree(self._parts())
        return row

    def _parts(self) -> Path:
        return self.folder / "evals" / f"{self.name}.parts"


@contextlib.contextmanager
def _tools(
    loaded: _Loaded, recipe: Recipe, rewards: Sequence[RewardSpec], step: int
) -> Iterator[tuple[Generate, Scorer]]:
    """What samples and what scores: this process, or with several workers or a cluster, pools of them."""
    model, student = loaded.model, loaded.student
    if not _pooled(recipe):
        from loop_rl.reward.scorer import LocalScorer
        from loop_rl.rollout.sampler import sample_groups

        with LocalScorer(rewards) as scorer:
            _tell(scorer)
            options = {"student": student, "version": step, "tokenizer": loaded.tokenizer}
            yield lambda *arguments: sample_groups(model, *arguments, **options), scorer
        return
    import torch

    from loop_rl.reward.pool import make_scorer
    from loop_rl.rollout.ray_engine import RolloutPool

    pool = RolloutPool(
        model.config,
        recipe.model.dtype,
        recipe.rollout.workers,
        recipe.rollout.cluster,
        recipe.run.threads or torch.get_num_threads(),
        learner_gpus=0,
        student=student,
        tokenizer=loaded.tokenizer,
        lora=loaded.lora,
    )
    with pool, make_scorer(rewards, recipe.reward.workers) as scorer:
        _tell(scorer)
        pool.send_weights(model.state_dict(), step)
        yield pool.generate, scorer


def _tell(scorer: Scorer) -> None:
    for note in scorer.notes:
        print(f"loop-rl: {note}", file=sys.stderr)


def model_name(path: str) -> str:
    """A folder's name for a model: the last part of its path that says something."""
    parts = [part for part in Path(path).parts if part not in ("model", "checkpoints", "/", ".", "..")]
    return re.sub(r"[^\w.-]", "_", parts[-1]) if parts else "model"


def _bar(progress: bool) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=Console(stderr=True), disable=not progress)
