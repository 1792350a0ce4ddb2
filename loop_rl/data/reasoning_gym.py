r"""`reasoning_gym:GENERATOR`: questions made on the spot by the package reasoning-gym, and its scorers as a reward.

A question belongs to the train or the test half by a hash of its text, so the halves are disjoint whatever the seeds.
The reward is 1.0 only where the generator's scorer gives full marks; its part marks, for an answer that is somewhere
in the text, are 0.0. What is scored is, in this order:

1. what the last `<answer>` and `</answer>` enclose;
2. what follows the last `####` that has a blank behind it, to the end of its line;
3. the content of the last `\boxed{}`;
4. what follows the last line that begins with `answer:`, to its end (or, if nothing is there, to the end of the text);
5. the whole text without the blanks around it.
"""

import importlib.util
import re
from collections.abc import Callable, Sequence
from typing import Any

from loop_rl.data.examples import DataSettings, Fields, Placed, Row, make_examples, nearest
from loop_rl.data.gym_process import LIMITS, SCORER, ScorerFailed, make_items
from loop_rl.data.names import GYM
from loop_rl.errors import UserError
from rewards.text import completion_text

SIZES = {"train": 500, "test": 100}  # when the recipe leaves the sizes open
TEMPLATE = "Question: {question}\nGive the final answer between <answer> and </answer>.\nAnswer:"

_TAGGED = re.compile(r"<answer>(.*?)</answer>", re.S)
_MARKED = re.compile(r"(?<!#)####[ \t]+(\S[^\n]*)")
_LINE = re.compile(r"^[ \t*]*answer[ \t*]*:[ \t*]*([^\n]*)", re.I | re.M)


def load_generator(settings: DataSettings) -> tuple[list[Placed], list[Placed]]:
    """The train and the test half, as many as asked for; of open sizes, as many different questions as there are.

    Raises:
        UserError: the package is not installed, has no such generator, or the generator makes fewer or no questions.
    """
    generator = settings.name.removeprefix(GYM)
    asked = {"train": settings.train_size, "test": settings.eval_size}
    made = _make(generator, settings.seed, {split: SIZES[split] if n is None else n for split, n in asked.items()})
    if "error" in made:
        raise UserError(f"data.name: {settings.name} can't be made ({made['error']}); use another generator")
    halves = []
    for split, key in (("train", "train_size"), ("test", "eval_size")):
        size = asked[split]
        if size is not None and len(made[split]) < size:
            raise UserError(
                f"data.{key}: {settings.name} makes only {len(made[split])} different questions of this half, {size} "
                "were asked for; use a smaller size or null"
            )
        rows = [_row(generator, settings.name, position, item) for position, item in made[split]]
        halves.append(make_examples(rows, settings.template or TEMPLATE))
    return halves[0], halves[1]


def generators() -> list[str]:
    """The names of the package's generators; UserError where it is not installed."""
    return _made("", 0, {"train": 0, "test": 0})["known"]


def _make(generator: str, seed: int, sizes: dict[str, int]) -> dict[str, Any]:
    made = _made(generator, seed, sizes)
    if generator not in made["known"]:
        raise UserError(
            f"data.name: reasoning-gym has no generator {generator!r}; the nearest is "
            f"{nearest(generator.lower(), made['known'])} (loop-rl data list --generators names all)"
        )
    return made


def _made(generator: str, seed: int, sizes: dict[str, int]) -> dict[str, Any]:
    if importlib.util.find_spec("reasoning_gym") is None:
        raise UserError("data.name: the package reasoning-gym is not installed; pip install 'loop-rl[reasoning-gym]'")
    try:
        return make_items(generator, seed, sizes["train"], sizes["test"])
    except RuntimeError as error:
        raise UserError(f"data.name: {error}") from None


def _row(generator: str, name: str, position: int, item: dict[str, Any]) -> tuple[Row, Fields]:
    gold = item["answer"]
    fields = Fields(item["question"], "" if gold is None else str(gold), {"generator": generator, "entry": item})
    return Row(f"{name}, item {position}", position, item), fields


def extract_answer(text: str) -> str:
    """The part of a completion that is scored, as the module's docstring says."""
    if tagged := _TAGGED.findall(text):
        return tagged[-1].strip()
    if marked := _MARKED.findall(text):
        return marked[-1].strip()
    if (boxed := _last_box(text)) is not None:
        return boxed.strip()
    if lines := list(_LINE.finditer(text)):
        return (lines[-1].group(1) or text[lines[-1].end() :]).strip(" \t\n*")
    return text.strip()


def _last_box(text: str) -> str | None:
    r"""The content of the last \boxed{} that is closed, with the braces inside it."""
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    depth, begin = 0, start + len("\\boxed")
    for at in range(begin, len(text)):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if depth == 0:
            return text[begin + 1 : at]
    return None


def start() -> str:
    """Starts the process that the scorers run in; the line says what holds there.

    Raises:
        RuntimeError: it doesn't start.
    """
    SCORER.start()
    return f"reasoning-gym: scorers run in a process of their own, {LIMITS}"


def close() -> None:
    """Ends that process; a later call starts another."""
    SCORER.close()


def reasoning_gym_reward(
    prompts: Sequence[Any],
    completions: Sequence[str | Sequence[dict[str, Any]]],
    completion_ids: Sequence[Sequence[int]] | None = None,
    *,
    generator: Sequence[str],
    entry: Sequence[dict[str, Any]],
    log_extra: Callable[[str, list], None] | None = None,
    **columns: Any,
) -> list[float | None]:
    """1.0 for full marks of the generator's own scorer, else 0.0; None (not scored) where that scorer fails.

    Args:
        prompts: not read; part of the signature.
        completions: strings, or lists of chat messages whose last one is scored.
        completion_ids: not read.
        generator: the generator's name, for each completion.
        entry: the item as the generator made it (question, answer, metadata).
        log_extra: called once with "reason" and a list of `correct`, `wrong`, `no answer` or `not scored: ...`.
        columns: the data set's other columns; not read.

    Raises:
        ValueError: not as many entries as completions.
        TypeError: a completion that is neither text nor messages.
    """
    rewards: list[float | None] = []
    reasons: list[str] = []
    for completion, name, item in zip(completions, generator, entry, strict=True):
        answer = extract_answer(completion_text(completion))
        try:
            reward, reason = (SCORER.score(name, answer, item), "") if answer else (0.0, "no answer")
        except ScorerFailed as error:
            reward, reason = None, f"not scored: {error}"
        rewards.append(reward)
        reasons.append(reason or ("correct" if reward == 1 else "wrong"))
    if log_extra is not None:
        log_extra("reason", reasons)
    return rewards
