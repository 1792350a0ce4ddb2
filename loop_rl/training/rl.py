"""The RL loop: prompts, rollouts, rewards, advantages, update, weights; one step after another, resumable at each."""

import dataclasses
import logging
import math
import os
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
from loop_rl.evaluation.task import Task, about_left_out
from loop_rl.learner.objective import group_advantages
from loop_rl.learner.update import rollout_weights
from loop_rl.recipe import Recipe
from loop_rl.rollout.engine import Engine
from loop_rl.rollout.local import LocalEngine
from loop_rl.rollout.pool import RolloutPool
from loop_rl.rollout.record import Rollout
from loop_rl.training.checkpoints import save_checkpoint
from loop_rl.training.disk import INCOMPLETE, writing
from loop_rl.training.lock import run_lock
from loop_rl.training.mirror import Mirror, mirrored
from loop_rl.training.progress import Progress
from loop_rl.training.rows import append_row
from loop_rl.training.run_folder import is_finished, open_run, say_finished, start_run, warn_of_schedule
from loop_rl.training.stop import stop_requests
from loop_rl.training.trainer import Trainer

log = logging.getLogger(__name__)

_LOGGED_COMPLETIONS = 64
# Keys that decide no result (rounding aside), and those of which a user may want more of the same run.
_MAY_CHANGE = (
    *("run.name", "run.folder", "run.max_steps", "run.save_steps", "run.keep_checkpoints", "run.threads", "run.wandb"),
    *("eval", "health", "reward.workers", "rollout.workers", "rollout.cluster", "rollout.max_batch_tokens"),
    "learner.per_device_train_batch_size",
)


def train(recipe: Recipe, resume: bool = False, progress: bool = True) -> Path:
    """Run the recipe and return its run folder.

    Everything that the user can get wrong is checked before a worker starts. Ctrl-C ends the step under way, saves a
    checkpoint and raises KeyboardInterrupt. A run that is finished is left as it is.

    Raises:
        UserError: see above; also a reward function that fails.
    """
    if recipe.run.threads is not None:
        torch.set_num_threads(recipe.run.threads)
    run = Path(recipe.run.folder) / recipe.run.name
    main = os.environ.get("RANK", "0") == "0"  # asked before the ranks have met
    with run_lock(run, wanted=main):
        checkpoint = open_run(run, recipe, _MAY_CHANGE, resume)
        if checkpoint is None or not is_finished(checkpoint, recipe.run.max_steps):
            _train(recipe, run, checkpoint, progress)
        elif main:
            say_finished(run, checkpoint, recipe.run.max_steps)
    return run


def _train(recipe: Recipe, run: Path, checkpoint: Path | None, progress: bool) -> None:
    """The steps that are left after the checkpoint, or all of them."""
    if checkpoint is not None and recipe.optim.lr_scheduler_type != "constant":
        warn_of_schedule(run, "run.max_steps", recipe.run.max_steps)
    trainer = Trainer(recipe)
    if checkpoint is not None:
        trainer.load(checkpoint)
    if not trainer.accelerator.is_main_process:
        trainer.follow()
        return
    start_run(run, recipe, trainer.accelerator.device, None if checkpoint is None else trainer.step)
    rewards = [task.reward for task in trainer.held_out]
    with mirrored(recipe, run) as mirror:  # first: what wandb lacks is said before a worker starts
        with _engine(trainer) as pool, make_scorer(rewards, recipe.reward.workers) as scorer:
            _lead(trainer, pool, scorer, run, progress, mirror, fresh=checkpoint is None)


def _engine(trainer: Trainer) -> Engine:
    """What samples: the recipe's rollout workers, or with none of them this process."""
    recipe, config = trainer.recipe, trainer.looped.config
    if recipe.rollout.workers == 0:
        return LocalEngine(config, recipe.model.dtype, trainer.student, trainer.tokenizer)
    return RolloutPool(
        config,
        recipe.model.dtype,
        recipe.rollout.workers,
        recipe.rollout.cluster,
        recipe.run.threads or torch.get_num_threads(),
        student=trainer.student,
        tokenizer=trainer.tokenizer,
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
    with shown, stop_requests() as stop:

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
            row |= mirror.metrics()
            with writing(run / "metrics.jsonl"):
                append_row(run / "metrics.jsonl", row)
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
    return {name: None if value is None or not math.isfinite(value) else value for name, value in row.items()}


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
        stop=task.stop,
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
    about = {"depth": depth, "cache": sampling.cache, "depth_tolerance": sampling.tolerance, **about_left_out(task)}
    with writing(run / "evals"):
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
    file = run / "completions" / f"step_{step}.parquet"
    with writing(file):
        file.parent.mkdir(exist_ok=True)
        temporary = file.with_name(f"{INCOMPLETE}{file.name}")
        pyarrow.parquet.write_table(pa.Table.from_pylist(rows[:_LOGGED_COMPLETIONS]), temporary)
        os.replace(temporary, file)
