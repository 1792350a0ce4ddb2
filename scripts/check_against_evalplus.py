"""Compare the MBPP+ reward with evalplus 0.3.1, on every canonical solution and on wrong programs made from them.

    pip install --no-deps evalplus==0.3.1 psutil
    python scripts/check_against_evalplus.py --data FOLDER --output summary.json

Wrong programs are canonical solutions with one seeded change of an operator, a comparison, a constant, a condition, a
range's end or a returned value. Both give the share of inputs passed; a program over our time limit is compared by its
verdict alone, since evalplus would wait a second for each of its inputs. Mbpp/599 alone takes evalplus a minute.
"""

import argparse
import ast
import copy
import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

os.environ["EVALPLUS_MAX_MEMORY_BYTES"] = "-1"  # its limit counts the memory of whoever calls it

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from rewards import mbpp_plus
from rewards.code.oracle import NOT_NONE
from rewards.code.tasks import MbppTask

_OPERATORS = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.FloorDiv, ast.FloorDiv: ast.Div,
    ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.BitXor: ast.BitOr, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip


def _changes(node: ast.AST) -> list[tuple[str, Any]]:
    """The changes that can be made to a node: a name, and a function that makes it in place."""
    found: list[tuple[str, Any]] = []
    if isinstance(node, ast.BinOp | ast.BoolOp | ast.AugAssign) and type(node.op) in _OPERATORS:
        found.append(("operator", lambda: setattr(node, "op", _OPERATORS[type(node.op)]())))
    if isinstance(node, ast.Compare) and type(node.ops[0]) in _OPERATORS:
        found.append(("comparison", lambda: node.ops.__setitem__(0, _OPERATORS[type(node.ops[0])]())))
    if isinstance(node, ast.Constant) and type(node.value) is int:
        found.append(("constant", lambda: setattr(node, "value", node.value + 1)))
    if isinstance(node, ast.Constant) and type(node.value) is bool:
        found.append(("constant", lambda: setattr(node, "value", not node.value)))
    if isinstance(node, ast.Constant) and type(node.value) is str and node.value:
        found.append(("constant", lambda: setattr(node, "value", node.value[1:])))
    if isinstance(node, ast.If | ast.While | ast.IfExp):
        found.append(("condition", lambda: setattr(node, "test", ast.UnaryOp(ast.Not(), node.test))))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "range":
        less = ast.BinOp(copy.deepcopy(node.args[-1]), ast.Sub(), ast.Constant(1))
        found.append(("range", lambda: node.args.__setitem__(-1, less)))
    if isinstance(node, ast.Return) and node.value is not None:
        found.append(("return dropped", lambda: setattr(node, "value", ast.Constant(None))))
        wrapped = ast.List([copy.deepcopy(node.value)], ast.Load())
        found.append(("return wrapped", lambda: setattr(node, "value", wrapped)))
        as_text = ast.Call(ast.Name("str", ast.Load()), [copy.deepcopy(node.value)], [])
        found.append(("return as text", lambda: setattr(node, "value", as_text)))
    return found


def mutate(code: str, random_: random.Random) -> tuple[str, str]:
    """The code with one change, and the change's kind."""
    tree = ast.parse(code)
    changes = [change for node in ast.walk(tree) for change in _changes(node)]
    kind = random_.choice(sorted({kind for kind, _ in changes}))
    random_.choice([make for known, make in changes if known == kind])()
    return ast.unparse(ast.fix_missing_locations(tree)), kind


class Evalplus:
    """evalplus' expected outputs, a task at a time, and its verdicts."""

    def __init__(self) -> None:
        self._task, self._expected, self._times = "", [], []

    def share(self, task: MbppTask, code: str, to_the_end: bool) -> tuple[bool, float]:
        """Whether it passes, and the share of inputs that do."""
        import numpy  # noqa: F401  (before evalplus forks, which then needs no import)
        from evalplus.eval import PASS, untrusted_check  # late: --help does without
        from evalplus.gen.util import trusted_exec

        if self._task != task.task_id:
            self._expected, self._times = trusted_exec(
                task.canonical_solution, task.inputs, task.entry_point, record_time=True,
                output_not_none=task.entry_point in NOT_NONE,
            )  # fmt: skip
            self._task = task.task_id
        status, details = untrusted_check(
            "mbpp", code, task.inputs, task.entry_point, self._expected, task.atol, self._times, not to_the_end
        )
        return status == PASS, sum(bool(passed) for passed in details) / len(task.inputs)


def _ours(task: MbppTask, codes: list[str]) -> list[tuple[float | None, str]]:
    reasons: list[str] = []
    completions = [f"```python\n{code}\n```" for code in codes]
    rewards = mbpp_plus.mbpp_plus_share_reward(
        [""] * len(codes),
        completions,
        task_id=[task.task_id] * len(codes),
        log_extra=lambda _, new: reasons.extend(new),
    )
    return list(zip(rewards, reasons, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="MBPP+'s file, or its folder")
    parser.add_argument(
        "--output", default="evalplus_summary.json", help="the summary's JSON file (default: evalplus_summary.json)"
    )
    parser.add_argument("--wrong", type=int, default=400, help="wrong programs (default: 400)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the wrong programs (default: 0)")
    parser.add_argument("--tasks", type=int, help="only the first so many tasks (default: all)")
    settings = parser.parse_args()
    mbpp_plus.use_data(settings.data)
    print(mbpp_plus.start(), file=sys.stderr)
    tasks = list(mbpp_plus.tasks().values())[: settings.tasks]
    random_ = random.Random(settings.seed)
    mutants: dict[str, list[tuple[str, str]]] = {task.task_id: [] for task in tasks}
    while sum(map(len, mutants.values())) < settings.wrong:
        task = random_.choice(tasks)
        mutants[task.task_id].append(mutate(task.canonical_solution, random_))
    evalplus, rows, disagreements = Evalplus(), [], []
    for number, task in enumerate(tasks):
        programs = [("canonical", task.canonical_solution)] + [(kind, code) for code, kind in mutants[task.task_id]]
        for (kind, code), (reward, reason) in zip(programs, _ours(task, [code for _, code in programs]), strict=True):
            began, timed_out = time.monotonic(), "time limit" in reason
            passes, share = evalplus.share(task, code, to_the_end=not timed_out)
            same = (reward == 1.0) == passes
            row = {
                "same_verdict": same,
                "task_id": task.task_id,
                "kind": kind,
                "ours": reward,
                "reason": reason,
                "evalplus": share,
            }
            row |= {"evalplus_passes": passes, "evalplus_seconds": round(time.monotonic() - began, 2)}
            rows.append(row)
            if not same or (not timed_out and abs((reward or 0) - share) > 1e-9):
                disagreements.append(row | {"code": code})
        print(f"{number + 1}/{len(tasks)} {task.task_id}: {len(disagreements)} differ", file=sys.stderr, flush=True)
    canonical = [row for row in rows if row["kind"] == "canonical"]
    wrong = [row for row in rows if row["kind"] != "canonical"]
    summary = {
        "canonical": len(canonical),
        "canonical_passed_by_both": sum(row["ours"] == 1.0 and row["evalplus_passes"] for row in canonical),
        "changed": len(wrong),
        "changed_by_kind": {
            kind: sum(row["kind"] == kind for row in wrong) for kind in sorted({r["kind"] for r in wrong})
        },
        "changed_passed_by_ours": sum(row["ours"] == 1.0 for row in wrong),
        "changed_passed_by_evalplus": sum(row["evalplus_passes"] for row in wrong),
        "changed_partly_right": sum(0 < (row["ours"] or 0) < 1 for row in wrong),
        "changed_over_our_time_limit": sum("time limit" in row["reason"] for row in wrong),
        "other_verdict": sum(not row["same_verdict"] for row in rows),
        "same_verdict_other_share": sum(row["same_verdict"] for row in disagreements),
        "disagreements": disagreements,
    }
    Path(settings.output).write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    print(json.dumps({key: value for key, value in summary.items() if key != "disagreements"}, indent=1))
    print(f"{len(disagreements)} programs differ; see {settings.output}")
    mbpp_plus.close()


if __name__ == "__main__":
    main()
