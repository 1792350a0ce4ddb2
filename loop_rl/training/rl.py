"""The RL loop: prompts, rollouts, rewards, advantages, update, weights; one step after another, resumable at each."""

import dataclasses
import json
import logging
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list
from safetensors.torch import load_file, save_file

from loop_rl.data import Example, load_dataset
from loop_rl.errors import UserError
from loop_rl.evaluation import evaluate, record_evaluation
from loop_rl.evaluation.reward_function import load_reward
from loop_rl.evaluation.reward_function import score as score_completions
from loop_rl.fixed_point import parse_estimator
from loop_rl.learner.batch import samples_of
from loop_rl.learner.objective import group_advantages
from loop_rl.learner.update import Learner, Objective, make_optimizer, rollout_weights
from loop_rl.models import LoopedForCausalLM
from loop_rl.recipe import REWARDS, Recipe
from loop_rl.rollout.pool import RolloutPool
from loop_rl.rollout.record import Rollout
from loop_rl.rollout.sampling import Sampling
from loop_rl.training.checkpoints import (
    checkpoint_step,
    latest_checkpoint,
    load_training_state,
    save_checkpoint,
    save_training_state,
)
from loop_rl.training.load import load_model
from loop_rl.training.run_folder import drop_rows_after, environment, progress_bar, stop_requests
from loop_rl.training.schedule import decay_factor

log = logging.getLogger(__name__)

_ADAPTER_FILE = "adapter.safetensors"
_STATE_FILE = "training_state.pt"
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
    with pool, _mirror(recipe, run) as mirror:
        _lead(trainer, pool, run, progress, mirror, fresh=checkpoint is None)
    return run


class Trainer:
    """The learner's side of a run: model, optimizer, data and position; every rank has one."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.accelerator = Accelerator(cpu=not torch.cuda.is_available())
        if torch.distributed.is_initialized():
            world = torch.distributed.get_world_size()
            assert world == self.accelerator.num_processes, "accelerate fell back to fewer processes than were launched"
        self.reward = load_reward(recipe.reward.name)
        self.splits = load_dataset(recipe.data, numeric=recipe.reward.name in REWARDS)
        looped, self.tokenizer = load_model(recipe.model.path, recipe.model.dtype)
        self.looped: LoopedForCausalLM = looped.to(self.accelerator.device).eval()
        torch.manual_seed(recipe.run.seed)
        self.model: torch.nn.Module = _adapted(self.looped, recipe)
        rollout, learner = recipe.rollout, recipe.learner
        self.learner = Learner(
            self.model,
            parse_estimator(learner.estimator),
            Objective(
                rollout.max_completion_length,
                rollout.temperature,
                learner.epsilon,
                learner.epsilon_high,
                learner.beta,
                learner.importance_sampling_cap,
            ),
            make_optimizer(self.model, recipe.optim),
            recipe.optim.max_grad_norm,
            learner.per_device_train_batch_size,
            self.accelerator,
        )
        eos = {self.tokenizer.eos_token_id, *_ids(self.looped.config.eos_token_id)} - {None}
        self.sampling = Sampling(
            rollout.num_generations,
            rollout.max_completion_length,
            rollout.temperature,
            rollout.top_p,
            rollout.top_k,
            recipe.model.depth,
            tuple(sorted(eos)),
            save_states=self.learner.estimator.reuses,
        )
        self.step = 0

    def prompts(self, step: int) -> tuple[list[Example], list[int]]:
        """Examples and seeds of a step (0-based): a function of the step alone, one permutation an epoch."""
        size, count = len(self.splits.train), self.recipe.rollout.prompts_per_step
        chosen = []
        for place in range(step * count, (step + 1) * count):
            epoch, offset = divmod(place, size)
            order = np.random.default_rng([self.recipe.run.seed, 1, epoch]).permutation(size)
            chosen.append(self.splits.train[order[offset]])
        seeds = np.random.default_rng([self.recipe.run.seed, 2, step]).integers(2**62, size=count)
        return chosen, seeds.tolist()

    def learn(self, rollouts: list[Rollout], advantages: torch.Tensor) -> dict[str, float]:
        """The updates of one batch; metrics of the first, times summed."""
        total = self.recipe.run.max_steps * self.recipe.learner.num_iterations
        samples = samples_of(rollouts, advantages)
        metrics: dict[str, float] = {}
        iterations = self.recipe.learner.num_iterations
        if iterations > 1 and self.learner.objective.importance_sampling_cap is not None:
            samples = self.learner.with_old_logps(samples)
        for iteration in range(iterations):
            update = self.step * iterations + iteration
            optim = self.recipe.optim
            rate = optim.learning_rate * decay_factor(update, total, optim.warmup_steps, optim.lr_scheduler_type)
            for group in self.learner.optimizer.param_groups:
                group["lr"] = rate
            figures = self.learner.update(samples)
            if not metrics:
                metrics = {**figures, "learning_rate": rate}
            else:
                for name in ("time/update", "time/optimizer", "skipped_update"):
                    metrics[name] += figures[name]
        self.step += 1
        return metrics

    def follow(self) -> None:
        """What ranks other than the first do: learn from the batches that it sends."""
        while self.step < self.recipe.run.max_steps:
            batch: list[Any] = [None]
            broadcast_object_list(batch)
            if batch[0] is None:
                return
            self.learn(*batch[0])

    def save(self, folder: Path) -> None:
        """A checkpoint: a plain looped model that any command loads, and what resuming needs beyond it."""
        weights = {name: value.contiguous() for name, value in rollout_weights(self.model).items()}
        LoopedForCausalLM.save_pretrained(_detached(self.looped), folder / "model", state_dict=weights)
        self.tokenizer.save_pretrained(folder / "model")
        if self.recipe.lora is not None:
            save_file(self._adapters(), folder / _ADAPTER_FILE)
        save_training_state(folder / _STATE_FILE, {"optimizer": self.learner.optimizer}, {"step": self.step})

    def load(self, folder: Path) -> None:
        """Take up a checkpoint of `save`."""
        if self.recipe.lora is None:
            model, _ = load_model(str(folder / "model"), self.recipe.model.dtype)
            self.looped.load_state_dict(model.state_dict())
        else:
            own = self._adapters()
            for name, value in load_file(folder / _ADAPTER_FILE).items():
                own[name].data.copy_(value)
        self.step = load_training_state(folder / _STATE_FILE, {"optimizer": self.learner.optimizer})["step"]

    def _adapters(self) -> dict[str, torch.Tensor]:
        return {name: p for name, p in self.model.named_parameters() if p.requires_grad}


def _lead(trainer: Trainer, pool: RolloutPool, run: Path, progress: bool, mirror: "Mirror", fresh: bool) -> None:
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


class Mirror:
    """Metrics to wandb, or nowhere."""

    def __init__(self, run: Any = None) -> None:
        self.run = run

    def log(self, row: dict[str, Any], step: int) -> None:
        if self.run is not None:
            self.run.log({name: value for name, value in row.items() if value is not None}, step=step)


class _mirror:
    """Context of a Mirror: opens and finishes the wandb run that the recipe asks for."""

    def __init__(self, recipe: Recipe, run: Path) -> None:
        self.recipe, self.folder, self.wandb = recipe, run, None

    def __enter__(self) -> Mirror:
        if self.recipe.run.wandb != "off":
            import wandb

            self.wandb = wandb.init(
                project="loop-rl",
                name=self.recipe.run.name,
                dir=self.folder,
                mode=self.recipe.run.wandb,
                config=yaml.safe_load(self.recipe.dump_yaml()),
            )
        return Mirror(self.wandb)

    def __exit__(self, *_: object) -> None:
        if self.wandb is not None:
            self.wandb.finish()


def _ids(value: int | list[int] | None) -> Iterator[int]:
    if value is not None:
        yield from [value] if isinstance(value, int) else value


def _detached(looped: LoopedForCausalLM) -> LoopedForCausalLM:
    """A shell with the config, for saving a state dict that is not the module's own."""
    with torch.device("meta"):
        return LoopedForCausalLM(looped.config)


def _adapted(looped: LoopedForCausalLM, recipe: Recipe) -> torch.nn.Module:
    """The model wrapped by PEFT when the recipe has a `lora` section."""
    if recipe.lora is None:
        return looped
    from peft import LoraConfig, get_peft_model

    targets = recipe.lora.target_modules
    if targets != "all-linear":
        names = {name.rpartition(".")[2] for name, _ in looped.named_modules()} | {n for n, _ in looped.named_modules()}
        for target in targets:
            if target not in names:
                raise UserError(f"lora.target_modules: the model has no module {target!r}")
    return get_peft_model(
        looped,
        LoraConfig(
            r=recipe.lora.r,
            lora_alpha=recipe.lora.lora_alpha,
            lora_dropout=recipe.lora.lora_dropout,
            target_modules=targets,
            task_type="CAUSAL_LM",
        ),
    )


def _check_run_folder(run: Path, recipe: Recipe, resume: bool) -> Path | None:
    """The checkpoint to go on from, or None for a start; UserError for a folder in use or a changed recipe."""
    if not resume:
        if run.exists() and any(run.iterdir()):
            raise UserError(f"{run} already holds a run: --resume goes on with it, --set run.name=... starts another")
        return None
    if not (run / "recipe.yaml").is_file():
        raise UserError(f"there is no run to resume in {run}: check run.folder and run.name, or start without --resume")
    before, now = yaml.safe_load((run / "recipe.yaml").read_text()), yaml.safe_load(recipe.dump_yaml())
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
