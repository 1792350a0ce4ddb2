"""What a finished RL run says at its end, read from its run folder: what it learned, the time it took, what is next."""

import shlex
import statistics
from collections import Counter
from pathlib import Path
from typing import Any

from loop_rl.runs.checkpoints import latest_checkpoint
from loop_rl.runs.progress import duration
from loop_rl.runs.rows import read_rows, value_of

_PHASES = {"rollout": "rollouts", "reward_wait": "scoring", "update": "updates"}


def last_evaluation(run: Path, data: str) -> dict[str, Any] | None:
    """The newest row of evals.jsonl on these questions."""
    rows = [row for row in read_rows(run / "evals.jsonl")[0] if row.get("data") == data]
    return rows[-1] if rows else None


def closing_lines(run: Path) -> list[str]:
    """A few lines for the user; of a resumed run, about all of its steps."""
    steps, evals = read_rows(run / "metrics.jsonl")[0], read_rows(run / "evals.jsonl")[0]
    lines = []
    for data in dict.fromkeys(row.get("data") for row in evals):
        rows = [row for row in evals if row.get("data") == data]
        rows = [row for row in rows if None not in (value_of(row, "pass@1"), value_of(row, "questions"))]
        if rows:
            first, last = rows[0], rows[-1]
            lines.append(
                f"held-out pass@1 on {data}: {first['pass@1']:.3f} (step {first['step']}) -> {last['pass@1']:.3f} "
                f"(step {last['step']}), {last['questions']} questions"
            )
    rewards = [reward for row in steps if (reward := value_of(row, "reward")) is not None]
    if rewards:
        part = -(-len(rewards) // 10)
        first, last = statistics.fmean(rewards[:part]), statistics.fmean(rewards[-part:])
        lines.append(f"training reward: {first:.3f} -> {last:.3f} (first and last tenth of {len(steps)} steps)")
    spent = Counter({text: _seconds(steps, phase) for phase, text in _PHASES.items()})
    spent["evaluations"] = _seconds(evals, "eval")
    total = _seconds(steps, "step") + spent["evaluations"]
    if total:
        shares = ", ".join(f"{text} {seconds / total:.0%}" for text, seconds in spent.most_common())
        lines.append(f"time: {duration(total)} ({shares})")
    lines.append(f"model: {latest_checkpoint(run / 'checkpoints')}/model")
    lines.append(f"next: loop-rl report {shlex.quote(str(run))}; loop-rl eval {shlex.quote(str(run))}")
    return lines


def _seconds(rows: list[dict[str, Any]], phase: str) -> float:
    return sum(value_of(row, f"time/{phase}") or 0.0 for row in rows)
