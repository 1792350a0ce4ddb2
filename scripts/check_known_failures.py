"""Run every collected failure on this version and say, case by case, whether it now comes out right.

    python scripts/check_known_failures.py --cases FOLDER
    python scripts/check_known_failures.py --cases FOLDER --only rl-02 math-06 --variants

FOLDER holds known_failures.jsonl and known_failures_2.jsonl, of which one is enough, and may hold math_pairs.jsonl. A
line of the first two is a case, with `id`, `area`, `symptom`, `input` and `expected` (and, in the second, what was
`observed` when it was collected). A line of the last has `gold`, `completion` and `score`.

A case is run by a function of its own in scripts/known_failures/: through the rewards, the functions that a run calls,
or the `loop-rl` command in a temporary folder, with the embedded model on the CPU. It runs every input of the line and
some of the same kind. The table says what is expected, how many variants came out so, and how long it took; each
variant that did not is shown below its row with what was wanted and seen. A case that needs more than its input names
the tests that run it, and is marked `tests`: they are looked for, not run. A case without a function is wrong. Exit
code 1 where any is.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

A_TEST = "a test"  # what a case that names tests wants of each
FILES = ("known_failures_2.jsonl", "known_failures.jsonl", "math_pairs.jsonl")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=Path, required=True, metavar="FOLDER", help="folder of the .jsonl files")
    parser.add_argument("--only", nargs="+", metavar="ID", help="these cases only, such as rl-02; math_pairs is an id")
    parser.add_argument("--variants", action="store_true", help="show every variant, the right ones too")
    arguments = parser.parse_args()
    cases = [(file, case) for file in FILES for case in read(arguments.cases / file)]
    if not cases:
        parser.error(f"--cases {arguments.cases}: no {' or '.join(FILES)} there")
    known = [case["id"] for _, case in cases]
    if unknown := [name for name in arguments.only or [] if name not in known]:
        parser.error(f"--only: no case {unknown[0]} in {arguments.cases}; there are {', '.join(sorted(set(known)))}")

    from known_failures import CHECKS  # late: it brings torch, which --help does without

    counts = {"right": 0, "tests": 0, "WRONG": 0}
    for file in FILES:
        chosen = [case for place, case in cases if place == file and case["id"] in (arguments.only or known)]
        if chosen:
            print(f"\n{file}\n{'id':12} {'':6}{'seconds':>8}  {'variants':>9}  expected", flush=True)
        for case in chosen:
            counts[show(case, CHECKS[file], arguments.variants)] += 1
    print(f"\n{counts['right']} right, {counts['tests']} left to tests that are not run here, {counts['WRONG']} wrong")
    return 1 if counts["WRONG"] else 0


def read(file: Path) -> list[dict]:
    """A file's cases; the pairs are one. None where there is no such file."""
    if not file.is_file():
        return []
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    return [{"id": file.stem, "input": {"pairs": lines}}] if file.name == FILES[-1] else lines


def show(case: dict, checks: Mapping, variants: bool) -> str:
    """Runs a case in a folder of its own and prints its row: right, WRONG, or tests where it names some."""
    check, began, seen, failure = checks.get(case["id"]), time.monotonic(), [], ""
    with tempfile.TemporaryDirectory(prefix="known_failures_") as folder, contextlib.chdir(folder):
        try:
            # what is logged meanwhile is not the table's; one by one, so that those before an exception are shown
            with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
                for one in check({**case["input"], "expected": case.get("expected")}) if check else ():
                    seen.append(one)
        except Exception:
            failure = traceback.format_exc()
    good = sum(one.right for one in seen)
    state = "right" if seen and good == len(seen) and not failure else "WRONG"
    if state == "right" and all(one.wanted == A_TEST for one in seen):
        state = "tests"
    what = (check.__doc__ or "").strip() if check else "no function runs it"
    count, seconds = f"{good} of {len(seen)}", time.monotonic() - began
    print(f"{case['id']:12} {state:6}{seconds:>8.1f}  {count:>9}  {what}", flush=True)
    for one in seen:
        if variants or not one.right or state == "tests":
            print(
                f"    {'right' if one.right else 'WRONG'}  {one.variant}: {one.seen}"
                + ("" if one.right else f", not {one.wanted}")
            )
    if failure:
        print("    " + failure.replace("\n", "\n    "))
    return state


if __name__ == "__main__":
    sys.exit(main())
