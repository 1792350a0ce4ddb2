"""What a step of an RL run leaves in words and numbers: its metrics, its completions, its line in a log."""

import contextlib
import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from loop_rl.data import Example
from loop_rl.evaluation import Rewards
from loop_rl.evaluation.sample import Sampled
from loop_rl.learner.objective import group_advantages
from loop_rl.rollout.record import Rollout
from loop_rl.runs.disk import replacing, writing
from loop_rl.runs.rows import value_of

_LOGGED_COMPLETIONS = 64


class Phases:
    """A step's seconds from its beginning, and those of its phases."""

    def __init__(self) -> None:
        self._start, self._phases = time.perf_counter(), Counter[str]()

    @contextlib.contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """What is done inside belongs to the phase."""
        start = time.perf_counter()
        yield
        self._phases[phase] += time.perf_counter() - start

    def metrics(self) -> dict[str, float]:
        """`time/step` so far, and `time/<phase>` of each phase."""
        whole = time.perf_counter() - self._start
        return {**{f"time/{phase}": seconds for phase, seconds in self._phases.items()}, "time/step": whole}


def step_text(row: dict[str, Any], evaluation: dict[str, Any] | None) -> str:
    """How a step went, for the bar."""
    text = f"reward {row['reward']:.3f}" if row["reward"] is not None else "nothing scored"
    if evaluation and (solved := value_of(evaluation, "pass@1")) is not None:
        text += f"  held-out pass@1 {solved:.3f} (step {evaluation['step']})"
    return text


def step_details(row: dict[str, Any]) -> str:
    """What a line has room for beyond that."""
    residual = row.get("residual/median")
    parts = [
        f"length {row['completions/mean_length']:.0f}",
        f"residual {residual:.2g}" if residual is not None else "",
        f"{row['time/step']:.1f} s",
        f"{row['tokens'] / row['time/step']:,.0f} tokens/s",
    ]
    return "  ".join(part for part in parts if part)


def reward_matrix(rows: Sequence[Sequence[float | None]]) -> torch.Tensor:
    """float64 [groups, G]; NaN for None."""
    return torch.tensor([[math.nan if value is None else value for value in row] for row in rows], dtype=torch.float64)


def reward_metrics(rewards: torch.Tensor, scores: Sequence[Rewards], rollouts: list[Rollout]) -> dict[str, Any]:
    """TRL's names; what was not scored is in no mean.

    Equal rewards of a group carry no signal: `frac_reward_zero_std` is the share of such groups.
    """
    lengths = np.array([len(c.token_ids) for r in rollouts for c in r.completions])
    cut = np.array([c.finish_reason == "length" for r in rollouts for c in r.completions])
    equal = (group_advantages(rewards).nan_to_num() == 0).all(-1)
    deviations = [group[~group.isnan()].std().item() for group in rewards if (~group.isnan()).sum() > 1]
    parts: dict[str, float] = {}
    for name in scores[0].parts:
        mean, deviation = _mean_and_deviation(reward_matrix([score.parts[name] for score in scores]))
        parts |= {f"rewards/{name}/mean": mean, f"rewards/{name}/std": deviation}
    return {
        "reward": _mean_and_deviation(rewards)[0],
        "reward_std": float(np.mean(deviations)) if deviations else math.nan,
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


def write_completions(
    run: Path,
    step: int,
    examples: list[Example],
    sampled: Sampled,
    scores: Sequence[Rewards],
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
    table = pa.Table.from_pylist(rows[:_LOGGED_COMPLETIONS])
    file = run / "completions" / f"step_{step}.parquet"
    with writing(file):
        file.parent.mkdir(exist_ok=True)
        with replacing(file) as temporary:
            pyarrow.parquet.write_table(table, temporary)
