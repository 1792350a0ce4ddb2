"""The RL loop: prompts, rollouts, rewards, advantages, update, weights; one step after another, resumable at each."""

import contextlib
import sys
from pathlib import Path
from typing import Any

import torch
from ray.exceptions import RayError

from loop_rl.evaluation.heldout import HeldOut, unmeasured
from loop_rl.evaluation.sample import sample_and_submit
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
from loop_rl.runs.checkpoints import reading
from loop_rl.runs.closing import closing_lines
from loop_rl.runs.folder import checkpoint_to_resume, record_placement, run_folder
from loop_rl.runs.mirror import import_wandb
from loop_rl.runs.run import Run, open_run
from loop_rl.training.rl_metrics import (
    Phases,
    reward_matrix,
    reward_metrics,
    step_details,
    step_text,
    write_completions,
)
from loop_rl.training.trainer import Trainer

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
    def missing(step: int) -> set[str]:
        return unmeasured(recipe, run_folder(recipe), step)

    with open_run(recipe, _MAY_CHANGE, resume, ranks=ranks, shown=progress, unmeasured=missing) as run:
        if run.finished:
            if ranks.main:
                run.say_finished()
            return run.folder
        if ranks.main:
            if recipe.optim.lr_scheduler_type != "constant":
                run.warn_of_schedule()
            check_machine(recipe)
        trainer = Trainer(recipe, ranks)
        if run.checkpoint is not None:
            with reading(run.checkpoint):
                trainer.load(run.checkpoint)
        if not ranks.main:
            trainer.follow()
            return run.folder
        run.start(trainer.accelerator.device, trainer.step)
        rewards = [task.reward for task in trainer.held_out]
        with run.mirrored():  # first: what wandb lacks is said before a worker starts
            if progress and (recipe.rollout.workers or recipe.reward.workers):
                print(f"run folder: {run.folder}; starting Ray's workers", flush=True)
            with _engine(trainer) as engine, make_scorer(rewards, recipe.reward.workers) as scorer:
                _lead(trainer, engine, scorer, run)
        trainer.dismiss()
        if progress:
            print("\n".join(closing_lines(run.folder)), flush=True)
    return run.folder


def check_folder(recipe: Recipe, resume: bool) -> Path | None:
    """The checkpoint to go on from, or None to start; UserError where the run's folder does not let it start."""
    return checkpoint_to_resume(run_folder(recipe), recipe, _MAY_CHANGE, resume)


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


def _lead(trainer: Trainer, engine: Engine, scorer: Scorer, run: Run) -> None:
    """The main rank's part, with its workers: the steps that are left, or those until it is asked to stop."""
    recipe, ranks = trainer.recipe, trainer.ranks
    record_placement(run.folder, str(trainer.accelerator.device), ranks.count, engine.places)
    for note in [*engine.notes, *scorer.notes]:
        print(f"loop-rl: {note}", file=sys.stderr)
    engine.send_weights(rollout_weights(trainer.model), trainer.step)
    # A launcher of several ranks kills them some time after it has passed a signal on. A bar would draw over the prompt
    # of a debugger in a reward function, which runs in this process without workers.
    with run.working(trainer.step, at_once=ranks.count > 1, bar=recipe.reward.workers > 0):
        try:
            _loop(trainer, engine, scorer, run)
        except KeyboardInterrupt:
            if not run.stop.is_set():
                raise
        except (ServerDied, RayError):  # what asks a whole job to end asks Ray's processes too
            if not run.stop.is_set() or run.torn:
                raise
        if run.stop.is_set() and not run.over(trainer.step):
            if not run.torn:
                run.save(trainer.step, trainer.save)
            raise run.stopped(trainer.step)


def _loop(trainer: Trainer, engine: Engine, scorer: Scorer, run: Run) -> None:
    """Steps, their checkpoints, and the evaluations before, among and after them."""
    recipe = trainer.recipe
    held_out = HeldOut(recipe, trainer.held_out, trainer.tokenizer, trainer.sampling, run)
    while True:
        held_out.measure(trainer.step, engine.generate, scorer)
        if trainer.step >= recipe.run.max_steps or run.stop.is_set():
            break
        run.stop.doing = "the step under way"
        row = step(trainer, engine, scorer, run)
        run.tell(row, step_text(row, held_out.last), step_details(row))
        trainer.health.stop_where_learning_failed(trainer.step, run.saved, lambda: run.save(trainer.step, trainer.save))
        last = trainer.step == recipe.run.max_steps
        # Weights whose updates fail may be bad already, and each checkpoint removes an older one.
        if last or (run.due(trainer.step) and not trainer.health.not_finite_in_a_row):
            run.save(trainer.step, trainer.save)


def step(trainer: Trainer, engine: Engine, scorer: Scorer, run: Run) -> dict[str, Any]:
    """One RL step; returns its row of metrics, which is written. Weights and row change together or not at all."""
    clock = Phases()
    with clock("rollout"):  # groups are scored as they end, beside the sampling of others
        examples, seeds = trainer.prompts(trainer.step)
        sampled = sample_and_submit(
            engine.generate, trainer.tokenizer, scorer, trainer.task.reward, examples, trainer.sampling, seeds
        )
    with clock("reward_wait"):
        scores = scorer.gather(sampled.tickets)
    rewards = reward_matrix([score.rewards for score in scores])
    advantages = group_advantages(rewards)
    with run.whole():
        learned = trainer.learn(sampled.rollouts, advantages)
        with clock("weights"):
            weights = trained_weights(trainer.model)
            if not run.stop.is_set():  # no one will sample with them, and a job that is ended has lost its workers
                engine.send_weights(weights, trainer.step)
        with clock("write"):
            write_completions(run.folder, trainer.step, examples, sampled, scores, advantages)
        times = clock.metrics()
        return run.write(
            {
                "step": trainer.step,
                **reward_metrics(rewards, scores, sampled.rollouts),
                **learned,
                "rollout/weight_bytes": float(sum(value.nbytes for value in weights.values())),
                "rollout/worker_restarts": engine.restarts,
                "reward/worker_restarts": scorer.restarts,
                **run.mirror.metrics(),
                "time/reward": sum(score.seconds for score in scores),
                **times,
            }
        )
