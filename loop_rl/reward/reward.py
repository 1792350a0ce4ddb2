"""What a completion is worth: one reward function or several weighted ones, named so that any process can load them."""

from __future__ import annotations

import hashlib
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from loop_rl.data import DataSettings, Example, data_file, default_reward
from loop_rl.errors import UserError
from loop_rl.recipe.reward import RewardSection
from loop_rl.reward.function import call_reward, check_columns, load_reward


@dataclass(frozen=True)
class RewardSpec:
    """Names of reward functions with their weights, the deciding one first.

    data_file: what MBPP+'s scores with. threshold: what the deciding function gives for a correct completion, at least.
    """

    functions: tuple[tuple[str, float], ...]
    data_file: str | None = None
    threshold: float = 1.0


@dataclass(frozen=True)
class Rewards:
    """Of some completions, in order: a value each.

    rewards: the weighted sum, as TRL has it: over the functions that gave a number; None (not scored) where none did.
    parts: each function's own rewards. reasons: the first function's; where nothing is scored and it says nothing,
    those of the next that does; None where no function says why. correct: whether the first function reached the
    threshold; None where it gave None. seconds: what scoring took. printed: what the functions printed, where that is
    not shown already.
    """

    rewards: list[float | None]
    parts: dict[str, list[float | None]]
    reasons: list[str | None]
    correct: list[bool | None]
    seconds: float = field(compare=False)
    printed: str = field(default="", compare=False)


def reward_spec(reward: RewardSection, data: DataSettings) -> RewardSpec:
    """The rewards that a recipe names; without a name, the data set's own."""
    functions = reward.functions or {reward.name or default_reward(data.name): 1.0}
    needs_file = any(name.startswith("mbpp_plus") for name in functions)
    file = data_file(data) if needs_file else None
    return RewardSpec(tuple(functions.items()), None if file is None else str(file.resolve()), reward.threshold)


class Reward:
    """The functions of a spec, imported; UserError for one that can't be."""

    def __init__(self, spec: RewardSpec) -> None:
        self.spec = spec
        self.functions = {name: load_reward(name) for name, _ in spec.functions}

    def check(self, examples: Sequence[Example]) -> None:
        """UserError where the examples lack a column that a function needs."""
        for name, function in self.functions.items():
            for example in examples[:1]:
                check_columns(name, function, example)

    def start(self) -> list[str]:
        """Lets the functions' modules get ready, where they have a `start`; returns what they say, a line each.

        Raises:
            UserError: a module that can't be started, such as a sandbox that does not hold.
        """
        lines = []
        for name, module in self._modules().items():
            try:
                if self.spec.data_file is not None and callable(use_data := getattr(module, "use_data", None)):
                    use_data(self.spec.data_file)
                said = _call(module, "start")
            except (RuntimeError, ValueError, OSError) as error:
                raise UserError(f"the reward {name} can't be used: {error}") from error
            if isinstance(said, str) and said:
                lines.append(said)
        return lines

    def close(self) -> None:
        """Ends what `start` began."""
        for module in self._modules().values():
            _call(module, "close")

    def score(self, examples: Sequence[Example], completions: Sequence[str], ids: Sequence[list[int]]) -> Rewards:
        """The completions' scores, with each one's example beside it; UserError for a function that fails."""
        began = time.perf_counter()
        parts, said = {}, {}
        for name, function in self.functions.items():
            parts[name], said[name] = call_reward(function, examples, completions, ids)
        rewards: list[float | None] = []
        reasons: list[str | None] = []
        correct: list[bool | None] = []
        first = self.spec.functions[0][0]
        for place in range(len(completions)):
            values = {name: part[place] for name, part in parts.items()}
            rewards.append(self._weighted(values))
            says = [first] if rewards[-1] is not None or said[first] is not None else list(values)
            reasons.append(next((said[name][place] for name in says if said[name] is not None), None))
            correct.append(None if values[first] is None else values[first] >= self.spec.threshold)
        return Rewards(rewards, parts, reasons, correct, time.perf_counter() - began)

    def _weighted(self, values: dict[str, float | None]) -> float | None:
        terms = [weight * values[name] for name, weight in self.spec.functions if values[name] is not None]
        if not terms:
            return None
        total = sum(terms)
        if not math.isfinite(total):
            given = ", ".join(f"{weight} x {values[name]} of {name}" for name, weight in self.spec.functions)
            raise UserError(f"the rewards' weighted sum is not finite ({given}); return smaller numbers")
        return total

    def source(self) -> str:
        """A digest of the code that scores: the functions' modules, and those of their packages that they use."""
        digest = hashlib.sha256()
        for module in sorted(_used(list(self._modules().values())), key=lambda module: module.__name__):
            file = getattr(module, "__file__", None)
            digest.update(module.__name__.encode() + (Path(file).read_bytes() if file else b""))
        return digest.hexdigest()

    def _modules(self) -> dict[str, ModuleType]:
        """The module of each function by the function's name, each module once."""
        found: dict[str, ModuleType] = {}
        for name, function in self.functions.items():
            module = sys.modules.get(getattr(function, "__module__", ""))
            if module is not None and module not in found.values():
                found[name] = module
        return found


def _used(modules: list[ModuleType]) -> list[ModuleType]:
    """The modules, and what they use of their own packages: what any name in them is, or comes from."""
    found: list[ModuleType] = []
    while modules:
        module = modules.pop()
        if module in found:
            continue
        found.append(module)
        for value in vars(module).values():
            name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
            same = isinstance(name, str) and name.partition(".")[0] == module.__name__.partition(".")[0]
            if same and name in sys.modules:
                modules.append(sys.modules[name])
    return found


def _call(module: ModuleType, name: str) -> Any:
    function: Callable[[], Any] | None = getattr(module, name, None)
    return function() if callable(function) else None
