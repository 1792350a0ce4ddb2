"""The RL loop: prompts, rollouts, rewards, advantages, update, weights; one step after another, resumable at each."""

import dataclasses
import json
import logging
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from accelerate.utils import broadcast_object_list

from loop_rl.data import Example
from loop_rl.errors import UserError
from loop_rl.evaluation import evaluate, record_evaluation
from loop_rl.evaluation.reward_function import score as score_completions
from loop_rl.learner.objective import group_advantages
from loop_rl.learner.update import rollout_weights
from loop_rl.recipe import Recipe
from loop_rl.rollout.pool import RolloutPool
from loop_rl.rollout.record import Rollout
from loop_rl.training.checkpoints import checkpoint_step, latest_checkpoint, save_checkpoint
from loop_rl.training.mirror import Mirror, mirrored
from loop_rl.training.run_folder import drop_rows_after, environment, progress_bar, saved_recipe, stop_requests
from loop_rl.training.trainer import Trainer

log = logging.getLogger(__name__)

_LOGGED_COMPLETIONS = 64


def train(recipe: Recipe, resume: bool = False, progress: bool = True) -> Path:
    """Run the recipe and return its run folder.

    Everything that the user can get wrong is checked before a worker starts. Ctrl-C ends the step under way, saves a
    checkpoint and raises KeyboardInterrupt.

    Raises:
        UserError: see above; also a reward function that fails.
    """
    if recipe.run.threads is not None:
        torch.set_num_threads(recipe.run.threads)
    run = Path(recipe.run.folder) / recipe.run.name
    checkpoint = _check_run_folder(run, recipe, resume)
    trainer = Trainer(recipe)
    main = trainer.accelerator.is_main_process
    if checkpoint is not None:
        trainer.load(checkpoint)
    if main:
        run.mkdir(parents=True, exist_ok=True)
        (run / "recipe.yaml").write_text(recipe.dump_yaml())
        (run / "environment.json").write_text(json.dumps(environment(trainer.accelerator.device), indent=1) + "\n")
        for name in ("metrics.jsonl", "evals.jsonl"):
            drop_rows_after(run / name, trainer.step)
    if not main:
        trainer.follow()
        return run
    pool = RolloutPool(
        trainer.looped.config,
        recipe.model.dtype,
        recipe.rollout.workers,
        recipe.rollout.cluster,
        recipe.run.threads or torch.get_num_threads(),
    )
    with pool, mirrored(recipe, run) as mirror:
        _lead(trainer, pool, run, progress, mirror, fresh=checkpoint is None)
    return run


def _lead(trainer: Trainer, pool: RolloutPool, run: Path, progress: bool, mirror: Mirror, fresh: bool) -> None:
    """The main rank's loop."""
    recipe = trainer.recipe
    pool.send_weights(rollout_weights(trainer.model), trainer.step)

    with progress_bar(progress) as bar, stop_requests() as stop, (run / "metrics.jsonl").open("a") as metrics:
        task = bar.add_task("starting", total=recipe.run.max_steps, completed=trainer.step)

        def held_out() -> dict[str, Any]:
            return _evaluate(trainer, pool, run, bar)

        def checkpoint() -> Path:
            return save_checkpoint(run / "checkpoints", trainer.step, trainer.save, recipe.run.keep_checkpoints)

        evaluation = held_out() if fresh and trainer.step == 0 else None
        while trainer.step < recipe.run.max_steps and not stop.is_set():
            row = _step(trainer, pool, run)
            metrics.write(json.dumps(row) + "\n")
            metrics.flush()
            mirror.log(row, trainer.step)
            shown = f"reward {row['reward']:.3f}" if row["reward"] is not None else "nothing scored"
            if evaluation:
                shown += f"  held-out pass@1 {evaluation['pass@1']:.3f} (step {evaluation['step']})"
            bar.update(task, completed=trainer.step, description=shown)
            last = trainer.step == recipe.run.max_steps
            if last or (recipe.eval.eval_steps and trainer.step % recipe.eval.eval_steps == 0):
                evaluation = held_out()
                mirror.log({f"eval/{k}": v for k, v in evaluation.items() if isinstance(v, float)}, trainer.step)
            if last or (recipe.run.save_steps and trainer.step % recipe.run.save_steps == 0):
                checkpoint()
        if trainer.step < recipe.run.max_steps:
            saved = checkpoint()
            if trainer.accelerator.num_processes > 1:
                broadcast_object_list([None])
            raise KeyboardInterrupt(f"stopped after step {trainer.step}; {saved} is complete, --resume goes on")


def _step(trainer: Trainer, pool: RolloutPool, run: Path) -> dict[str, Any]:
    """One RL step; returns its row of metrics."""
    start = time.perf_counter()
    examples, seeds = trainer.prompts(trainer.step)
    prompts = [trainer.tokenizer(example.prompt).input_ids for example in examples]
    rewards = torch.full((len(prompts), trainer.sampling.num_generations), math.nan, dtype=torch.float64)
    texts: list[list[str]] = [[] for _ in prompts]
    scoring = 0.0

    def on_group(index: int, rollout: Rollout) -> None:
        nonlocal scoring
        began = time.perf_counter()
        ids = [[int(token) for token in completion.token_ids] for completion in rollout.completions]
        texts[index] = trainer.tokenizer.batch_decode(ids, skip_special_tokens=True)
        scores = score_completions(trainer.reward, [examples[index]] * len(ids), texts[index], ids)
        rewards[index] = torch.tensor([math.nan if s is None else s for s in scores], dtype=torch.float64)
        scoring += time.perf_counter() - began

    rollouts = pool.generate(prompts, trainer.sampling, seeds, on_group)
    generated = time.perf_counter()
    advantages = group_advantages(rewards)
    if trainer.accelerator.num_processes > 1:
        broadcast_object_list([(rollouts, advantages)])
    learned = trainer.learn(rollouts, advantages)
    before_weights = time.perf_counter()
    pool.send_weights(rollout_weights(trainer.model), trainer.step)
    done = time.perf_counter()
    _write_completions(run, trainer.step, examples, texts, rewards, advantages)
    row = {
        "step": trainer.step,
        **_reward_metrics(rewards, rollouts),
        **learned,
        "rollout/worker_restarts": pool.restarts,
        "time/rollout": generated - start - scoring,
        "time/reward": scoring,
        "time/weights": done - before_weights,
        "time/step": time.perf_counter() - start,
    }
    return {name: value if isinstance(value, int) or math.isfinite(value) else None for name, value in row.items()}


def _reward_metrics(rewards: torch.Tensor, rollouts: list[Rollout]) -> dict[str, Any]:
    """TRL's names. Equal rewards of a group carry no signal: `frac_reward_zero_std` is the share of such groups."""
    lengths = np.array([len(c.token_ids) for r in rollouts for c in r.completions])
    cut = np.array([c.finish_reason == "length" for r in rollouts for c in r.completions])
    scored = rewards[~rewards.isnan()]
    equal = (group_advantages(rewards).nan_to_num() == 0).all(-1)
    deviations = [group[~group.isnan()].std().item() for group in rewards if (~group.isnan()).sum() > 1]
    return {
        "reward": scored.mean().item() if len(scored) else math.nan,
        "reward_std": float(np.mean(deviations)) if deviations else 0.0,
        "frac_reward_zero_std": equal.double().mean().item(),
        "reward_errors": int(rewards.isnan().sum()),
        "completions/mean_length": float(lengths.mean()),
        "completions/max_length": int(lengths.max()),
        "completions/clipped_ratio": float(cut.mean()),
        "policy_version": rollouts[0].version,
        "tokens": int(lengths.sum()),
    }


def _evaluate(trainer: Trainer, pool: RolloutPool, run: Path, bar: Any) -> dict[str, Any]:
    """pass@k on the held-out questions with the pool's present weights, written to the run folder."""
    recipe = trainer.recipe
    sampling = dataclasses.replace(
        trainer.sampling,
        num_generations=recipe.eval.samples,
        temperature=recipe.eval.temperature,
        top_p=1.0,
        top_k=0,
        save_states=False,
    )
    task = bar.add_task(f"held-out questions, step {trainer.step}", total=len(trainer.splits.test))
    result = evaluate(
        pool.generate,
        trainer.tokenizer,
        trainer.splits.test,
        trainer.reward,
        sampling,
        recipe.data.seed,
        on_batch=lambda count: bar.advance(task, count),
    )
    bar.remove_task(task)
    return record_evaluation(run, trainer.step, recipe.data.name, result)


def _write_completions(
    run: Path,
    step: int,
    examples: list[Example],
    texts: list[list[str]],
    rewards: torch.Tensor,
    advantages: torch.Tensor,
) -> None:
    """The step's first completions as parquet, with TRL's columns."""
    import pyarrow as pa
    import pyarrow.parquet

    rows = [
        {
            "step": step,
            "prompt": example.prompt,
            "completion": text,
            "reward": float(rewards[i, j]),
            "advantage": float(advantages[i, j]),
        }
        for i, example in enumerate(examples)
        for j, text in enumerate(texts[i])
    ]
    folder = run / "completions"
    folder.mkdir(exist_ok=True)
    pyarrow.parquet.write_table(pa.Table.from_pylist(rows[:_LOGGED_COMPLETIONS]), folder / f"step_{step}.parquet")


def _check_run_folder(run: Path, recipe: Recipe, resume: bool) -> Path | None:
    """The checkpoint to go on from, or None for a start; UserError for a folder in use or a changed recipe."""
    if not resume:
        if run.exists() and any(run.iterdir()):
            raise UserError(f"{run} already holds a run: --resume goes on with it, --set run.name=... starts another")
        return None
    if not (run / "recipe.yaml").is_file():
        raise UserError(f"there is no run to resume in {run}: check run.folder and run.name, or start without --resume")
    before, now = saved_recipe(run), yaml.safe_load(recipe.dump_yaml())
    for section in ("model", "data", "reward", "rollout", "learner", "optim", "lora"):
        if before.get(section) != now.get(section):
            raise UserError(
                f"the section {section} is not the one that {run} was started with; undo the change, or start a new run"
            )
    checkpoint = latest_checkpoint(run / "checkpoints")
    if checkpoint is None:
        log.warning("%s has no complete checkpoint; starting from the beginning", run)
    else:
        log.info("resuming %s from step %d", run, checkpoint_step(checkpoint))
    return checkpoint
