"""The RL loop: prompts, rollouts, rewards, advantages, update, weights; one step after another, resumable at each."""

import contextlib
import dataclasses
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from ray.exceptions import RayError

from loop_rl.errors import UserError
from loop_rl.evaluation import evaluate, record_evaluation
from loop_rl.evaluation.sample import sample_and_submit
from loop_rl.evaluation.task import Task, about_left_out
from loop_rl.learner.objective import group_advantages
from loop_rl.learner.ranks import Ranks, joined
from loop_rl.learner.update import rollout_weights, trained_weights
from loop_rl.recipe.rl import Recipe
from loop_rl.reward.pool import make_scorer
from loop_rl.reward.scorer import Scorer
from loop_rl.rollout.engine import Engine
from loop_rl.rollout.instance import ServerDied, check_workers
from loop_rl.rollout.local_engine import LocalEngine
from loop_rl.rollout.ray_engine import RolloutPool
from loop_rl.runs.checkpoints import checkpoint_step, latest_checkpoint, reading, save_checkpoint
from loop_rl.runs.closing import closing_lines, last_evaluation
from loop_rl.runs.disk import writing
from loop_rl.runs.folder import (
    is_finished,
    open_run,
    record_placement,
    say_finished,
    start_run,
    warn_of_schedule,
)
from loop_rl.runs.lock import run_lock
from loop_rl.runs.mirror import Mirror, import_wandb, mirrored
from loop_rl.runs.progress import Progress, duration
from loop_rl.runs.rows import append_row, read_rows
from loop_rl.runs.stop import StopRequests, stop_requests
from loop_rl.training.rl_metrics import reward_matrix, reward_metrics, step_details, step_text, write_completions
from loop_rl.training.trainer import MAX_NOT_FINITE_IN_A_ROW, Trainer

# Keys that decide no result (rounding aside), and those of which a user may want more of the same run.
_MAY_CHANGE = (
    *("run.name", "run.folder", "run.max_steps", "run.save_steps", "run.keep_checkpoints", "run.threads", "run.wandb"),
    *("eval", "health", "reward.workers", "rollout.workers", "rollout.cluster", "rollout.max_batch_tokens"),
    "learner.per_device_train_batch_size",
)


def train(recipe: Recipe, resume: bool = False, progress: bool = True, ranks: Ranks | None = None) -> Path:
    """Run the recipe and return its run folder. Under torchrun every rank calls it; see loop_rl.learner.ranks.

    Everything that the user can get wrong is checked before a worker starts. Ctrl-C ends the step under way, a second
    one (or, of several ranks, the first) gives it up; then a checkpoint is saved, and KeyboardInterrupt is raised. A
    run that is finished is left as it is.

    Raises:
        UserError: see above; also a reward function that fails, and updates that are not finite.
    """
    with joined() if ranks is None else contextlib.nullcontext(ranks) as ranks:
        return _train(recipe, resume, progress, ranks)


def _train(recipe: Recipe, resume: bool, progress: bool, ranks: Ranks) -> Path:
    if recipe.run.threads is not None:
        torch.set_num_threads(recipe.run.threads)
    run, length = Path(recipe.run.folder) / recipe.run.name, recipe.run.max_steps

    def opened() -> tuple[str | None, bool]:
        """The checkpoint to go on from, and whether there is nothing left to do."""
        found = check_folder(recipe, resume)
        if found is None:
            return None, False
        done = is_finished(found, length) and not _unmeasured(recipe, run, checkpoint_step(found))
        if done:
            say_finished(run, found, length)
        elif recipe.optim.lr_scheduler_type != "constant":
            warn_of_schedule(run, "run.max_steps", length)
        return str(found), done

    with run_lock(run, wanted=ranks.main):
        checkpoint, done = ranks.from_main(opened)
        if done:
            return run
        if ranks.main:
            check_machine(recipe)
        trainer = Trainer(recipe, ranks)
        if checkpoint is not None:
            with reading(Path(checkpoint)):
                trainer.load(Path(checkpoint))
        if not ranks.main:
            trainer.follow()
            return run
        start_run(run, recipe, trainer.accelerator.device, None if checkpoint is None else trainer.step)
        rewards = [task.reward for task in trainer.held_out]
        with mirrored(recipe, run) as mirror:  # first: what wandb lacks is said before a worker starts
            if progress and (recipe.rollout.workers or recipe.reward.workers):
                print(f"run folder: {run}; starting Ray's workers", flush=True)
            with _engine(trainer) as pool, make_scorer(rewards, recipe.reward.workers) as scorer:
                _lead(trainer, pool, scorer, run, progress, mirror)
        trainer.dismiss()
        if progress:
            print("\n".join(closing_lines(run)), flush=True)
    return run


def check_folder(recipe: Recipe, resume: bool) -> Path | None:
    """The checkpoint to go on from, or None to start; UserError where the run's folder does not let it start."""
    return open_run(Path(recipe.run.folder) / recipe.run.name, recipe, _MAY_CHANGE, resume)


def check_machine(recipe: Recipe) -> None:
    """UserError where this machine hasn't got wandb or the workers that the run wants, or its cluster those."""
    if recipe.run.wandb != "off":
        import_wandb()
    if recipe.rollout.workers or recipe.reward.workers:
        check_workers(recipe.rollout.workers, recipe.rollout.cluster)


def _engine(trainer: Trainer) -> Engine:
    """What samples: the recipe's rollout workers, or with none of them this process."""
    recipe, config = trainer.recipe, trainer.looped.config
    if recipe.rollout.workers == 0:
        return LocalEngine(config, recipe.model.dtype, trainer.student, trainer.tokenizer, recipe.lora)
    return RolloutPool(
        config,
        recipe.model.dtype,
        recipe.rollout.workers,
        recipe.rollout.cluster,
        recipe.run.threads or torch.get_num_threads(),
        learner_gpus=trainer.ranks.here if trainer.accelerator.device.type == "cuda" else 0,
        student=trainer.student,
        tokenizer=trainer.tokenizer,
        lora=recipe.lora,
    )


def _lead(trainer: Trainer, pool: Engine, scorer: Scorer, run: Path, progress: bool, mirror: Mirror) -> None:
    """The main rank's loop."""
    recipe = trainer.recipe
    record_placement(run, str(trainer.accelerator.device), trainer.ranks.count, pool.places)
    for note in [*pool.notes, *scorer.notes]:
        print(f"loop-rl: {note}", file=sys.stderr)
    pool.send_weights(rollout_weights(trainer.model), trainer.step)

    bar = recipe.reward.workers > 0  # it would draw over a debugger's prompt
    shown = Progress(recipe.run.max_steps, trainer.step, progress, bar=bar)
    # A launcher of several ranks kills them some time after it has passed a signal on.
    with shown, stop_requests("the step under way", at_once=trainer.ranks.count > 1) as stop:

        def checkpoint() -> Path:
            with stop.whole():
                return save_checkpoint(run / "checkpoints", trainer.step, trainer.save, recipe.run.keep_checkpoints)

        evaluation, written = last_evaluation(run, trainer.task.data), trainer.step
        try:
            while True:
                missing = _unmeasured(recipe, run, trainer.step)
                for task in trainer.held_out:
                    if task.data not in missing or stop.is_set():
                        continue
                    stop.doing = "the evaluation under way"
                    row = _evaluate(trainer, task, pool, scorer, run, shown)
                    evaluation = row if task is trainer.task else evaluation
                    prefix = "eval" if task is trainer.task else f"eval/{task.data}"
                    mirror.log({f"{prefix}/{k}": v for k, v in row.items() if isinstance(v, float)}, trainer.step)
                stop.doing = "the step under way"
                if trainer.step >= recipe.run.max_steps or stop.is_set():
                    break
                row = _step(trainer, pool, scorer, run, stop, mirror)
                written = trainer.step
                _stop_where_learning_failed(trainer, run, checkpoint)
                shown.step(trainer.step, step_text(row, evaluation), step_details(row))
                every, last = recipe.run.save_steps, trainer.step == recipe.run.max_steps
                # Weights whose updates fail may be bad already, and each checkpoint removes an older one.
                if last or (every and trainer.step % every == 0 and not trainer.not_finite_in_a_row):
                    checkpoint()
        except KeyboardInterrupt:
            if not stop.is_set():
                raise
        except (ServerDied, RayError):  # what asks a whole job to end asks Ray's processes too
            if not stop.is_set() or trainer.step != written:
                raise
        finished = trainer.step >= recipe.run.max_steps
        if stop.is_set() and not (finished and not _unmeasured(recipe, run, trainer.step)):
            saved = latest_checkpoint(run / "checkpoints") if finished else checkpoint()
            raise KeyboardInterrupt(f"stopped after step {trainer.step}; {saved} is complete")


def _unmeasured(recipe: Recipe, run: Path, step: int) -> set[str]:
    """The data sets to evaluate on at this step (before, after and every eval_steps) that have no row of it yet."""
    every = recipe.eval.eval_steps
    if not (step == 0 or step >= recipe.run.max_steps or (every and step % every == 0)):
        return set()
    done = {row.get("data") for row in read_rows(run / "evals.jsonl")[0] if row["step"] == step}
    return {recipe.data.name, *recipe.eval.data} - done


def _stop_where_learning_failed(trainer: Trainer, run: Path, checkpoint: Callable[[], Path]) -> None:
    if trainer.not_finite_in_a_row >= MAX_NOT_FINITE_IN_A_ROW:
        last = latest_checkpoint(run / "checkpoints")
        kept = f"the last checkpoint is {last}" if last else "no checkpoint was saved"
        raise UserError(
            f"stopped after step {trainer.step}: {trainer.not_finite_in_a_row} updates in a row had a gradient that is "
            f"not finite; {kept}; lower optim.learning_rate"
        )
    if trainer.unhealthy is not None and trainer.recipe.health.on_breach == "stop":
        raise UserError(
            f"stopped after step {trainer.step}, whose {trainer.unhealthy} (section health); {checkpoint()} is "
            "complete: raise the limit, or start a run with another learner.estimator from its model"
        )


def _step(
    trainer: Trainer, pool: Engine, scorer: Scorer, run: Path, stop: StopRequests, mirror: Mirror
) -> dict[str, Any]:
    """One RL step; returns its row of metrics, which is written. Weights and row change together or not at all."""
    start = time.perf_counter()
    examples, seeds = trainer.prompts(trainer.step)
    sampled = sample_and_submit(
        pool.generate, trainer.tokenizer, scorer, trainer.task.reward, examples, trainer.sampling, seeds
    )
    generated = time.perf_counter()
    scores = scorer.gather(sampled.tickets)
    scored = time.perf_counter()
    rewards = reward_matrix([score.rewards for score in scores])
    advantages = group_advantages(rewards)
    with stop.whole():
        learned = trainer.learn(sampled.rollouts, advantages)
        before_weights = time.perf_counter()
        sent = trained_weights(trainer.model)
        if not stop.is_set():  # no one will sample with them, and a job that is ended has lost its workers by now
            pool.send_weights(sent, trainer.step)
        done = time.perf_counter()
        write_completions(run, trainer.step, examples, sampled, scores, advantages)
        end = time.perf_counter()
        values = {
            "step": trainer.step,
            **reward_metrics(rewards, scores, sampled.rollouts),
            **learned,
            "rollout/weight_bytes": float(sum(value.nbytes for value in sent.values())),
            "rollout/worker_restarts": pool.restarts,
            "reward/worker_restarts": scorer.restarts,
            **mirror.metrics(),
            "time/rollout": generated - start,
            "time/reward": sum(score.seconds for score in scores),
            "time/reward_wait": scored - generated,
            "time/weights": done - before_weights,
            "time/write": end - done,
            "time/step": end - start,
        }
        with writing(run / "metrics.jsonl"):
            row = append_row(run / "metrics.jsonl", values)
    mirror.log(row, trainer.step)
    return row


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
    start = time.perf_counter()
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
    depth = trainer.looped.config.depth
    about = {"depth": depth, "cache": sampling.cache, "depth_tolerance": sampling.tolerance, **about_left_out(task)}
    seconds = time.perf_counter() - start
    with writing(run / "evals"):
        row = record_evaluation(run, trainer.step, task.data, result, {**about, "time/eval": seconds})
    measured = "nothing scored" if row["pass@1"] is None else f"pass@1 {row['pass@1']:.3f}"
    shown.say(f"{name}, step {trainer.step}: {measured} ({row['questions']} questions, {duration(seconds)})")
    return row
