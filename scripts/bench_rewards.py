"""How many completions per second each reward scores, on reference answers, other questions' answers, short programs.

    python scripts/bench_rewards.py --data FOLDER

FOLDER holds gsm8k_test.jsonl, math500_test.jsonl and MbppPlus-v0.2.0.jsonl.gz; what is missing is left out. MBPP+ is
measured on programs that return at once, so that the sandbox is what is measured; expected outputs are made before.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from rewards import gsm8k, math500, mbpp_plus
from rewards.code.tasks import FILE_NAMES

PROMISED = {"gsm8k": 20_000.0, "math500": 100.0, "mbpp_plus": 15.0}  # per second, on two cores


def _rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _timed(score: Callable[[], list], least: float = 2.0) -> tuple[int, float]:
    """Completions scored and seconds taken, over whole rounds of at least `least` seconds."""
    score()  # pools start, caches fill
    count, began = 0, time.perf_counter()
    while (seconds := time.perf_counter() - began) < least:
        count += len(score())
    return count, seconds


def _gsm8k(folder: Path) -> tuple[int, float]:
    rows = _rows(folder / "gsm8k_test.jsonl")
    golds = [row["answer"] for row in rows] * 2
    texts = [row["answer"] for row in rows] + [f"The answer is {number}." for number in range(len(rows))]
    return _timed(lambda: gsm8k.gsm8k_reward(texts, texts, answer=golds))


def _math500(folder: Path) -> tuple[int, float]:
    rows = _rows(folder / "math500_test.jsonl")
    golds = [row["answer"] for row in rows]
    shift = 0

    def score() -> list:
        # Verdicts are remembered, so no pair may come twice: in each round, a question gets another one's answer.
        nonlocal shift
        shift += 1
        texts = [f"\\boxed{{{golds[(at + shift) % len(golds)]}}}" for at in range(len(golds))]
        return math500.math500_reward(texts, texts, answer=golds)

    return _timed(score)


def _mbpp_plus(folder: Path) -> tuple[int, float]:
    mbpp_plus.use_data(folder)
    print(mbpp_plus.start(), file=sys.stderr)
    tasks = list(mbpp_plus.tasks().values())[:100]
    names = [task.task_id for task in tasks]
    programs = [f"```python\ndef {task.entry_point}(*arguments): return 0\n```" for task in tasks]
    # The share reward runs every input, where the other stops at the first wrong one.
    return _timed(lambda: mbpp_plus.mbpp_plus_share_reward(programs, programs, task_id=names))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, type=Path, help="the folder of the data sets")
    folder = parser.parse_args().data
    measures = {
        "gsm8k": ("gsm8k_test.jsonl", _gsm8k),
        "math500": ("math500_test.jsonl", _math500),
        "mbpp_plus": (FILE_NAMES[0], _mbpp_plus),
    }
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    print(f"{'reward':<12}{'completions':>12}{'seconds':>10}{'per second':>12}{'promised':>12}")
    for name, (file, measure) in measures.items():
        if not (folder / file).exists():
            print(f"{name:<12} {folder / file} is missing")
            continue
        count, seconds = measure(folder)
        print(f"{name:<12}{count:>12}{seconds:>10.2f}{count / seconds:>12.0f}{PROMISED[name]:>12.0f}")
    for module in (math500, mbpp_plus):
        getattr(module, "close", lambda: None)()


if __name__ == "__main__":
    main()
