"""A training run's evaluations: pass@k on held-out questions before, now and then, and after, each made once."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loop_rl.evaluation.evaluate import evaluate
from loop_rl.evaluation.record import record_evaluation
from loop_rl.evaluation.sample import Generate
from loop_rl.evaluation.task import Task, about_left_out
from loop_rl.recipe.rl import Recipe
from loop_rl.reward.scorer import Scorer
from loop_rl.runs.closing import last_evaluation
from loop_rl.runs.disk import writing
from loop_rl.runs.progress import duration
from loop_rl.runs.rows import read_rows
from loop_rl.runs.run import Run

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from loop_rl.rollout.sampling import Sampling


def unmeasured(recipe: Recipe, run: Path, step: int) -> set[str]:
    """The data sets to evaluate on at this step (before, after and every eval_steps) that have no row of it yet."""
    every = recipe.eval.eval_steps
    if not (step == 0 or step >= recipe.run.max_steps or (every and step % every == 0)):
        return set()
    done = {row.get("data") for row in read_rows(run / "evals.jsonl")[0] if row["step"] == step}
    return {recipe.data.name, *recipe.eval.data} - done


class HeldOut:
    """Evaluates a run's tasks, its own first. last: the newest row of evals.jsonl on its own questions, if any."""

    def __init__(
        self, recipe: Recipe, tasks: Sequence[Task], tokenizer: PreTrainedTokenizerBase, sampling: Sampling, run: Run
    ) -> None:
        """sampling: of the run's rollouts, whose depth, cache and lengths are kept."""
        self.recipe, self.tasks, self.tokenizer, self.run = recipe, tasks, tokenizer, run
        self.sampling = dataclasses.replace(
            sampling,
            num_generations=recipe.eval.samples,
            temperature=recipe.eval.temperature,
            top_p=1.0,
            top_k=0,
            save_states=False,
        )
        self.last = last_evaluation(run.folder, tasks[0].data)

    def measure(self, step: int, generate: Generate, scorer: Scorer) -> None:
        """The evaluations that the run still lacks at this step, until it is asked to stop."""
        missing = unmeasured(self.recipe, self.run.folder, step)
        for task in self.tasks:
            if task.data not in missing or self.run.stop.is_set():
                continue
            self.run.stop.doing = "the evaluation under way"
            row, own = self._evaluate(task, step, generate, scorer), task is self.tasks[0]
            self.last = row if own else self.last
            prefix = "eval" if own else f"eval/{task.data}"
            self.run.mirror.log({f"{prefix}/{k}": v for k, v in row.items() if isinstance(v, float)}, step)

    def _evaluate(self, task: Task, step: int, generate: Generate, scorer: Scorer) -> dict[str, Any]:
        """pass@k on a task's held-out questions with the present weights, written to the run folder."""
        sampling = dataclasses.replace(self.sampling, stop=task.stop)
        name = "held-out questions" if task is self.tasks[0] else task.data
        start = time.perf_counter()
        with self.run.progress.counting(f"{name}, step {step}", len(task.splits.test)) as advance:
            result = evaluate(
                generate,
                self.tokenizer,
                task.splits.test,
                scorer,
                task.reward,
                sampling,
                self.recipe.data.seed,
                on_batch=advance,
            )
        seconds = time.perf_counter() - start
        about = {
            "depth": sampling.depth,
            "cache": sampling.cache,
            "depth_tolerance": sampling.tolerance,
            **about_left_out(task),
            "time/eval": seconds,
        }
        with writing(self.run.folder / "evals"):
            row = record_evaluation(self.run.folder, step, task.data, result, about)
        measured = "nothing scored" if row["pass@1"] is None else f"pass@1 {row['pass@1']:.3f}"
        self.run.progress.say(f"{name}, step {step}: {measured} ({row['questions']} questions, {duration(seconds)})")
        return row
