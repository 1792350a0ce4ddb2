"""The RL loop: prompts, rollouts, rewards, advantages, update, weights; one step after another, resumable at each."""

import dataclasses
import json
import logging
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate.utils import broadcast_object_list

from loop_rl.data import Example
from loop_rl.errors import UserError
from loop_rl.evaluation import Scores, evaluate, record_evaluation
from loop_rl.evaluation.reward_pool import make_scorer
from loop_rl.evaluation.sample import Sampled, sample_and_submit
from loop_rl.evaluation.scorer import Scorer
from loop_rl.evaluation.task import Task
from loop_rl.learner.objective import group_advantages
from loop_rl.learner.update import rollout_weights
from loop_rl.recipe import Recipe, load_recipe
from loop_rl.rollout.engine import Engine
from loop_rl.rollout.local import LocalEngine
from loop_rl.rollout.pool import RolloutPool
from loop_rl.rollout.record import Rollout
from loop_rl.training.checkpoints import checkpoint_step, latest_checkpoint, save_checkpoint
from loop_rl.training.mirror import Mirror, mirrored
from loop_rl.training.progress import Progress
from loop_rl.training.rows import drop_rows_after
from loop_rl.training.run_folder import environment, holds_a_run
from loop_rl.training.stop import stop_requests
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
            drop_rows_after(run / name, None if checkpoint is None else trainer.step)
    if not main:
        trainer.follow()
        return run
    rewards = [task.reward for task in trainer.held_out]
    with _engine(trainer) as pool, make_scorer(rewards, recipe.reward.workers) as scorer:
        with mirrored(recipe, run) as mirror:
            _lead(trainer, pool, scorer, run, progress, mirror, fresh=checkpoint is None)
    return run


def _engine(trainer: Trainer) -> Engine:
    """What samples: the recipe's rollout workers, or with none of them this process."""
    recipe, config = trainer.recipe, trainer.looped.config
    if recipe.rollout.workers == 0:
        return LocalEngine(config, recipe.model.dtype, trainer.student)
    return RolloutPool(
        config,
        recipe.model.dtype,
        recipe.rollout.workers,
        recipe.rollout.cluster,
        recipe.run.threads or torch.get_num_threads(),
        student=trainer.student,
    )


def _lead(
    trainer: Trainer,
    pool: Engine,
    scorer: Scorer,
    run: Path,
    progress: bool,
    mirror: Mirror,
    fresh: bool,
) -> None:
    """The main rank's loop."""
    recipe = trainer.recipe
    for note in scorer.notes:
        print(f"loop-rl: {note}", file=sys.stderr)
    pool.send_weights(rollout_weights(trainer.model), trainer.step)

    bar = recipe.reward.workers > 0  # it would draw over a debugger's prompt
    shown = Progress(recipe.run.max_steps, trainer.step, progress, bar=bar)
    with shown, stop_requests() as stop, (run / "metrics.jsonl").open("a") as metrics:

        def held_out() -> dict[str, Any]:
            stop.doing = "the evaluation under way"
            rows = [_evaluate(trainer, task, pool, scorer, run, shown) for task in trainer.held_out]
            stop.doing = "the step under way"
            for task, row in zip(trainer.held_out, rows, strict=True):
                prefix = "eval" if task is trainer.task else f"eval/{task.data}"
                mirror.log({f"{prefix}/{k}": v for k, v in row.items() if isinstance(v, float)}, trainer.step)
            return rows[0]

        def checkpoint() -> Path:
            return save_checkpoint(run / "checkpoints", trainer.step, trainer.save, recipe.run.keep_checkpoints)

        evaluation = held_out() if fresh and trainer.step == 0 else None
        while trainer.step < recipe.run.max_steps and not stop.is_set():
            row = _step(trainer, pool, scorer, run)
            metrics.write(json.dumps(row) + "\n")
            metrics.flush()
            mirror.log(row, trainer.step)
            if trainer.unhealthy is not None and recipe.health.on_breach == "stop":
                raise UserError(
                    f"stopped after step {trainer.step}, whose {trainer.unhealthy} (section health); {checkpoint()} is "
                    "complete: raise the limit, or start a run with another learner.estimator from its model"
                )
            shown.step(trainer.step, _text(row, evaluation), _more(row))
            last = trainer.step == recipe.run.max_steps
            if last or (recipe.eval.eval_steps and trainer.step % recipe.eval.eval_steps == 0):
                evaluation = held_out()
            if last or (recipe.run.save_steps and trainer.step % recipe.run.save_steps == 0):
                checkpoint()
        if trainer.step < recipe.run.max_steps:
            saved = checkpoint()
            if trainer.accelerator.num_processes > 1:
                broadcast_object_list([None])
            raise KeyboardInterrupt(f"stopped after step {trainer.step}; {saved} is complete, --resume goes on")


def _step(trainer: Trainer, pool: Engine, scorer: Scorer, run: Path) -> dict[str, Any]:
    """One RL step; returns its row of metrics."""
    start = time.perf_counter()
    examples, seeds = trainer.prompts(trainer.step)
    sampled = sample_and_submit(
        pool.generate, trainer.tokenizer, scorer, trainer.task.reward, examples, trainer.sampling, seeds
    )
    generated = time.perf_counter()
    scores = scorer.gather(sampled.tickets)
    scored = time.perf_counter()
    rewards = _matrix([score.rewards for score in scores])
    advantages = group_advantages(rewards)
    if trainer.accelerator.num_processes > 1:
        broadcast_object_list([(sampled.rollouts, advantages)])
    learned = trainer.learn(sampled.rollouts, advantages)
    before_weights = time.perf_counter()
    pool.send_weights(rollout_weights(trainer.model), trainer.step)
    done = time.perf_counter()
    _write_completions(run, trainer.step, examples, sampled, scores, advantages)
    row = {
        "step": trainer.step,
        **_reward_metrics(rewards, scores, sampled.rollouts),
        **learned,
        "rollout/worker_restarts": pool.restarts,
        "reward/worker_restarts": scorer.restarts,
        "time/rollout": generated - start,
        "time/reward": sum(score.seconds for score in scores),
        "time/reward_wait": scored - generated,
        "time/weights": done - before_weights,
        "time/step": time.perf_counter() - start,
    }
    return {name: value if isinstance(value, int) or math.isfinite(value) else None for name, value in row.items()}


def _text(row: dict[str, Any], evaluation: dict[str, Any] | None) -> str:
    """How a step went, for the bar."""
    text = f"reward {row['reward']:.3f}" if row["reward"] is not None else "nothing scored"
    if evaluation and evaluation["pass@1"] is not None:
        text += f"  held-out pass@1 {evaluation['pass@1']:.3f} (step {evaluation['step']})"
    return text


def _more(row: dict[str, Any]) -> str:
    """What a line has room for beyond that."""
    residual = row.get("residual/median")
    parts = [
        f"length {row['completions/mean_length']:.0f}",
        f"residual {residual:.2g}" if residual is not None else "",
        f"{row['time/step']:.1f} s",
        f"{row['tokens'] / row['time/step']:,.0f} tokens/s",
    ]
    return "  ".join(part for part in parts if part)


def _matrix(rows: Sequence[Sequence[float | None]]) -> torch.Tensor:
    """float64 [groups, G]; NaN for None."""
    return torch.tensor([[math.nan if value is None else value for value in row] for row in rows], dtype=torch.float64)


def _reward_metrics(rewards: torch.Tensor, scores: Sequence[Scores], rollouts: list[Rollout]) -> dict[str, Any]:
    """TRL's names; what was not scored is in no mean.

    Equal rewards of a group carry no signal: `frac_reward_zero_std` is the share of such groups.
    """
    lengths = np.array([len(c.token_ids) for r in rollouts for c in r.completions])
    cut = np.array([c.finish_reason == "length" for r in rollouts for c in r.completions])
    equal = (group_advantages(rewards).nan_to_num() == 0).all(-1)
    deviations = [group[~group.isnan()].std().item() for group in rewards if (~group.isnan()).sum() > 1]
    parts: dict[str, float] = {}
    for name in scores[0].parts:
        mean, deviation = _mean_and_deviation(_matrix([score.parts[name] for score in scores]))
        parts |= {f"rewards/{name}/mean": mean, f"rewards/{name}/std": deviation}
    return {
        "reward": _mean_and_deviation(rewards)[0],
        "reward_std": float(np.mean(deviations)) if deviations else 0.0,
        **parts,
        "frac_reward_zero_std": equal.double().mean().item(),
        "reward_errors": int(rewards.isnan().sum()),
        "completions/mean_length": float(lengths.mean()),
        "completions/max_length": int(lengths.max()),
        "completions/clipped_ratio": float(cut.mean()),
        "rollout/mean_depth": float(np.mean([c.mean_depth for r in rollouts for c in r.completions])),
        "policy_version": rollouts[0].version,
        "tokens": int(lengths.sum()),
    }


def _mean_and_deviation(values: torch.Tensor) -> tuple[float, float]:
    """Of the values that are no NaN; NaN where there are too few."""
    scored = values[~values.isnan()]
    return scored.mean().item(), scored.std().item() if len(scored) > 1 else math.nan


def _evaluate(trainer: Trainer, task: Task, pool: Engine, scorer: Scorer, run: Path, shown: Progress) -> dict[str, Any]:
    """pass@k on a task's held-out questions with the pool's present weights, written to the run folder."""
    recipe = trainer.recipe
    sampling = dataclasses.replace(
        trainer.sampling,
        num_generations=recipe.eval.samples,
        temperature=recipe.eval.temperature,
        top_p=1.0,
        top_k=0,
        save_states=False,
    )
    name = "held-out questions" if task is trainer.task else task.data
    with shown.counting(f"{name}, step {trainer.step}", len(task.splits.test)) as advance:
        result = evaluate(
            pool.generate,
            trainer.tokenizer,
            task.splits.test,
            scorer,
            task.reward,
            sampling,
            recipe.data.seed,
            on_batch=advance,
        )
    depth = recipe.model.depth or trainer.looped.config.depth
    about = {"depth": depth, "cache": sampling.cache, "depth_tolerance": sampling.tolerance}
    return record_evaluation(run, trainer.step, task.data, result, about)


def _write_completions(
    run: Path,
    step: int,
    examples: list[Example],
    sampled: Sampled,
    scores: Sequence[Scores],
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
            **{name: values[j] for name, values in scores[i].parts.items()},
            "reward": scores[i].rewards[j],
            "reason": scores[i].reasons[j],
            "advantage": None if scores[i].rewards[j] is None else float(advantages[i, j]),
        }
        for i, example in enumerate(examples)
        for j, text in enumerate(sampled.texts[i])
    ]
    folder = run / "completions"
    folder.mkdir(exist_ok=True)
    pyarrow.parquet.write_table(pa.Table.from_pylist(rows[:_LOGGED_COMPLETIONS]), folder / f"step_{step}.parquet")


def _check_run_folder(run: Path, recipe: Recipe, resume: bool) -> Path | None:
    """The checkpoint to go on from, or None for a start; UserError for a folder in use or a changed recipe."""
    if not resume:
        if holds_a_run(run):
            raise UserError(f"{run} already holds a run: --resume goes on with it, --set run.name=... starts another")
        return None
    if not (run / "recipe.yaml").is_file():
        raise UserError(f"there is no run to resume in {run}: check run.folder and run.name, or start without --resume")
    before, now = load_recipe(run / "recipe.yaml").model_dump(), recipe.model_dump()
    for values in (before, now):
        # How many sample and score changes nothing but rounding.
        for section, key in (("reward", "workers"), ("rollout", "workers"), ("rollout", "cluster")):
            values[section].pop(key)
    for section in ("model", "data", "reward", "rollout", "learner", "optim", "lora"):
        if before[section] != now[section]:
            raise UserError(
                f"the section {section} is not the one that {run} was started with; undo the change, or start a new run"
            )
    checkpoint = latest_checkpoint(run / "checkpoints")
    if checkpoint is None:
        log.warning("%s has no complete checkpoint; starting from the beginning", run)
    else:
        log.info("resuming %s from step %d", run, checkpoint_step(checkpoint))
    return checkpoint
