r"""Rewards: what is read of a completion, and whether it equals the reference.

A case's `expected` is prose in one table and scores in the other; the wanted scores of the first are written here.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from known_failures.seen import Given, Seen, command, covered, equal, listed, recipe, refused
from loop_rl.data import default_stop
from loop_rl.models.loading import load_config, load_tokenizer
from loop_rl.recipe.rl import DataSection
from loop_rl.rollout.sampling import Sampling
from loop_rl.rollout.text import CompletionText
from rewards.choice import choice_reward
from rewards.code.asserts import mbpp_reward
from rewards.gsm8k import gsm8k_reward
from rewards.math500 import check_gold, math500_reward

Reward = Callable[..., list[float | None]]


def scores(reward: Reward, cases: Sequence[tuple[str, str, float | None]]) -> Iterator[Seen]:
    """A completion, a reference and the wanted score each."""
    texts, golds, wanted = zip(*cases, strict=True)
    found = reward([""] * len(texts), list(texts), answer=list(golds))
    for text, gold, want, have in zip(texts, golds, wanted, found, strict=True):
        yield equal(f"{_short(text)} for {_short(gold)}", want, have)


def _short(text: str) -> str:
    return repr(text)[1:-1] if len(text) < 60 else f"{text[:25]!r}...{text[-25:]!r}"


def run_on(given: Given) -> Iterator[Seen]:
    """the answer before a made-up question counts"""
    text, gold = given["completion"], given["gold"]
    yield from scores(gsm8k_reward, [(text, gold, 1.0), (text, "11", 0.0), (text.replace("\n\n", "\n"), gold, 1.0)])
    choice = "Red is no number.\nAnswer: B\n\nQuestion: Which one is green?\n(A) 1 (B) 2\nAnswer: A"
    yield from scores(choice_reward, [(choice, "B", 1.0), (choice, "A", 0.0)])
    boxed = "So \\boxed{7}.\n\nQuestion: What is 5 + 6?\nAnswer: \\boxed{11}"
    yield from scores(math500_reward, [(boxed, "7", 1.0), (boxed, "11", 0.0)])
    # The reward knows the usual label alone; for any other the sampler's stop string ends the completion.
    for label in ("Question:", "Q:", "### Problem:"):
        stop = default_stop(DataSection(template=f"{label} {{question}}\nAnswer:"))
        tokenizer = load_tokenizer("embedded", load_config("embedded"))
        reader = CompletionText(tokenizer, Sampling(1, 99, eos_token_ids=(2,), stop=stop))
        ids = tokenizer(text.replace("Question:", label), add_special_tokens=False).input_ids
        yield from scores(gsm8k_reward, [(reader.text(ids), gold, 1.0), (reader.text(ids), "11", 0.0)])


def headings(given: Given) -> Iterator[Seen]:
    """the sentence's number counts, a heading's does not"""
    text, gold = given["completion"], given["gold"]
    dressed = [
        text,
        text.replace("####", "#####"),
        text.replace("2. Total", "2) Total"),
        text.replace("2. ", "**2.** "),
    ]
    dressed += [text.replace("2. Total", "Step 2: Total"), text.replace("2. Total", "Step 2 - Total")]
    for one in dressed:
        yield from scores(gsm8k_reward, [(one, gold, 1.0), (one, "2", 0.0)])
    yield from scores(gsm8k_reward, [("#### 2. Total\n6 + 11 = 17\n\n#### 17", gold, 1.0)])


def dressed_numbers(given: Given) -> Iterator[Seen]:
    """1.0 in any dress, 0.0 for another number"""
    for text, gold in zip(given["completions"], given["golds"], strict=True):
        yield from scores(gsm8k_reward, [(text, gold, 1.0), (text, str(int(gold) + 1), 0.0)])
    sums = "#### 30 minutes + 20 minutes = 50 minutes"
    own = [sums.replace("####", "The answer is"), "#### 3 boxes x 5 pens = 15 pens", "#### $12.50 + $2.50 = $15.00"]
    golds = ["50", "15", "15"]
    yield from scores(
        gsm8k_reward, [*((one, gold, 1.0) for one, gold in zip(own, golds, strict=True)), (sums, "30", 0.0)]
    )


def pairs(given: Given) -> Iterator[Seen]:
    """equal pairs 1.0, unequal ones 0.0"""
    alike = [*given.get("pairs", []), *given.get("pairs_equal", [])]
    yield from scores(math500_reward, [(text, gold, 1.0) for text, gold in alike])
    for text, gold in given.get("pairs_unequal", []):
        [found] = math500_reward([""], [text], answer=[gold])
        # a list with an ellipsis is no reference that can be compared: not scored is right as well, 1.0 is not
        yield Seen(f"{text} for {gold}", "not 1.0", found, found != 1.0)


def written_as_text(given: Given) -> Iterator[Seen]:
    """plain text equals its LaTeX"""
    yield from pairs(given)
    own = [("2-(-3)", "5", 1.0), ("3+-4i", "3-4i", 1.0), ("-(-3)", "3", 1.0), ("sqrt(2)*pi", "\\pi\\sqrt{2}", 1.0)]
    own += [("exp(2)-1", "e^{2}+1", 0.0), ("14.0 + -1.0i", "14+i", 0.0)]
    yield from scores(math500_reward, [(f"\\boxed{{{text}}}", gold, want) for text, gold, want in own])


def times_and_ratios(given: Given) -> Iterator[Seen]:
    """unequal 0.0, equal 1.0"""
    yield from pairs(given)
    apart = [("2:00", "3:00"), ("5:15", "10:30"), ("2:10\\text{ p.m.}", "6:30\\text{ p.m.}"), ("1:2:3", "3:2:1")]
    yield from scores(math500_reward, [(f"\\boxed{{{text}}}", gold, 0.0) for text, gold in apart])
    alike = [("3:00", "3:00"), ("5:30\\text{ p.m.}", "5:30 \\text{ p.m.}"), ("3:6:9", "1:2:3")]
    yield from scores(math500_reward, [(f"\\boxed{{{text}}}", gold, 1.0) for text, gold in alike])


def qualifiers(given: Given) -> Iterator[Seen]:
    """a qualifier is kept, and a trailing `for all x` costs nothing"""
    yield from pairs(given)
    alike = [("x^2+1 \\text{ for any real } x", "x^2+1"), ("f(x)=2x", "f(x)=2x \\text{ for all } x")]
    yield from scores(math500_reward, [(f"\\boxed{{{text}}}", gold, 1.0) for text, gold in alike])
    apart = [("f(x)=2x \\text{ for all } x", "f(x)=3x"), ("n=2k+1", "1"), ("x \\ge 3", "3")]
    yield from scores(math500_reward, [(f"\\boxed{{{text}}}", gold, 0.0) for text, gold in apart])


def control_characters(given: Given) -> Iterator[Seen]:
    """refused when loaded, and never scored"""
    row = given["file.jsonl"].partition("   (")[0]
    golds = {"as given": json.loads(row)["answer"]}
    damaged = ("\text{Evelyn}", "\theta", "\rho", "2\nu", "\beta", "\\sqrt{\frac{1}{2}}")
    golds |= {repr(gold)[1:-1]: gold for gold in damaged}
    for name, gold in golds.items():
        lines = [row.replace(json.dumps(golds["as given"])[1:-1], "1") for _ in range(9)]
        values = [{**json.loads(line), "prompt": f"{n}?", "answer": "1"} for n, line in enumerate(lines)]
        values.append({"prompt": "What is 3 divided by 4?", "answer": gold})
        Path("file.jsonl").write_text("".join(json.dumps(value) + "\n" for value in values))
        data = {"name": "file.jsonl", "columns": {"question": "prompt"}, "train_size": None, "eval_size": None}
        file = recipe("control", data=data, reward={"name": "math500"}, rollout={"prompts_per_step": 1})
        yield refused(f"train, {name}", command("train", file), "row 10", "not usable")
        show = command("data", "show", "file.jsonl", "--set", "data.columns.question=prompt", "reward.name=math500")
        yield Seen(f"data show, {name}", "said", f"exit code {show.code}", show.code == 2 or "not usable" in show.text)
        found = math500_reward([""] * 2, ["\\boxed{\\frac{3}{4}}", "\\boxed{12rac}"], answer=[gold] * 2)
        yield equal(f"scores, {name}", [None, None], found)


def mentions(given: Given) -> Iterator[Seen]:
    """an empty box overrides nothing"""
    text, gold = given["completion"], given["gold"]
    variants = [text, text.replace("\\boxed{}", "\\boxed{...}"), text.replace("\\boxed{}", "\\boxed{\\text{answer}}")]
    variants += [text.replace("\n\nQuestion: 5+6?", ""), text.replace("\\boxed{}", "\\boxed{ }")]
    yield from scores(math500_reward, [(one, gold, 1.0) for one in variants])
    yield from scores(math500_reward, [(f"So \\boxed{{{gold}}}. No: \\boxed{{8", gold, 0.0)])


_ELEMENTS = ["assert similar_elements((3, 4, 5, 6),(5, 7, 4, 10)) == (4, 5)"]
_ELEMENTS += ["assert similar_elements((1, 2, 3, 4),(5, 4, 3, 7)) == (3, 4)"]


def programs(given: Given) -> Iterator[Seen]:
    """1.0 for each, and 0.0 with another result"""
    texts = list(given["completions"])
    body = "def similar_elements(a, b):\n    return tuple(set(a) & set(b))\n"
    fenced = body.replace("\n    ", '\n    """As in\n    ```\n    similar_elements((1,), (1,))\n    ```\n    """\n    ')
    texts += [f"```python\n{fenced}```", f"Here it is:\n\n{body}\nIt takes the common ones.", f"{body}```\nDone."]
    for text in texts:
        wrong = text.replace("set(a) & set(b)", "set(a) | set(b)")
        found = mbpp_reward([""] * 2, [text, wrong], test_list=[_ELEMENTS] * 2)
        yield equal(_short(text), [1.0, 0.0], found)


def table_scores(reward: Reward) -> Callable[[Given], Iterator[Seen]]:
    """The check of a case whose `expected` has the scores."""

    def check(given: Given) -> Iterator[Seen]:
        """the scores that the case names"""
        batch = given.get("cases") or given.get("batch")
        golds = [one["gold"] for one in batch] if batch else given.get("golds") or [given["gold"]]
        texts = (
            [one["completion"] for one in batch] if batch else listed(given.get("completions", given.get("completion")))
        )
        count = max(len(golds), len(texts))
        golds, texts = (part * count if len(part) == 1 else part for part in (list(golds), list(texts)))
        expected = given["expected"]
        wanted = listed(expected["score"]) if "score" in expected else [None] * count
        yield from scores(reward, list(zip(texts, golds, wanted * count if len(wanted) == 1 else wanted, strict=True)))
        if "score" not in expected:
            yield Seen("when loaded", "refused", check_gold(golds[:1]), all(check_gold(golds[:1])))
        if "side_effect" in expected:
            yield equal("files left", [], [path.name for path in Path().iterdir()])

    return check


def table_pairs(given: Given) -> Iterator[Seen]:
    """the score that each pair names"""
    yield from scores(math500_reward, [(one["completion"], one["gold"], one["score"]) for one in given["pairs"]])


def table_programs(given: Given) -> Iterator[Seen]:
    """the scores that the case names"""
    entry, tests = given["entry_point"], given["tests"]
    asserts = [f"assert {entry}({', '.join(map(repr, test['in']))}) == {test['out']!r}" for test in tests]
    texts, wanted = listed(given.get("completions", given.get("completion"))), listed(given["expected"]["score"])
    found = mbpp_reward([""] * len(texts), texts, test_list=[asserts] * len(texts))
    for text, want, have in zip(texts, wanted, found, strict=True):
        allowed: tuple[Any, ...] = (0.0, 1.0) if isinstance(want, str) else (want,)
        yield Seen(_short(text), want, have, have in allowed)


def on_busy_cores(given: Given) -> Iterator[Seen]:
    """a right program passes on a loaded machine"""
    spins = [sys.executable, "-c", "while True: pass"]
    busy = [subprocess.Popen(spins) for _ in range(2 * len(os.sched_getaffinity(0)))]
    try:
        with mock.patch.dict(os.environ, given["env"]):
            yield from table_programs(given)
    finally:
        for process in busy:
            process.kill()
            process.wait()


COLLECTED = {
    "gsm8k-01": run_on,
    "gsm8k-02": headings,
    "gsm8k-03": dressed_numbers,
    "math-02": written_as_text,
    "math-04": times_and_ratios,
    "math-05": qualifiers,
    "math-06": control_characters,
    "math-07": mentions,
    "mbpp-01": programs,
}
EARLIER = {
    **{f"gsm8k-{number}": table_scores(gsm8k_reward) for number in ("01", "02", "03", "04")},
    **{
        f"math-{number}": table_scores(math500_reward)
        for number in ("01", "02", "03", "04", "05", "09", "11", "12", "14")
    },
    **{f"mbpp-{number}": table_programs for number in ("01", "02", "03", "04", "10")},
    "mbpp-05": covered("rewards/test_mbpp_plus.py::test_hard_coding_the_prompts_assert_earns_nothing"),
    "mbpp-08": covered("rewards/test_mbpp_process.py::test_hard_limits_of_the_shell_are_kept"),
    "mbpp-12": on_busy_cores,
}
