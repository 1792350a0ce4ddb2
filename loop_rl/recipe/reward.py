"""What completions are worth: the reward section, and the rewards that it knows by name."""

from __future__ import annotations

import difflib
import re
from typing import Any

from pydantic import Field, field_validator, model_validator

from loop_rl.recipe.reading import Section
from loop_rl.recipe.sections import MAX_WEIGHT

REWARDS = ("gsm8k", "gsm8k_strict", "math500", "mbpp_plus", "mbpp_plus_share", "choice")

_FUNCTION = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


class RewardSection(Section):
    name: str | None = Field(
        None, description="A known reward, or module:function with TRL's signature; null: the data set's own."
    )
    functions: dict[str, float] = Field(
        {}, description="In place of name: several rewards with their weights; the first one decides pass@1."
    )
    threshold: float = Field(
        1.0, description="Correct, as pass@1 counts it, is what the deciding reward gives at least this much."
    )
    workers: int = Field(
        1,
        ge=0,
        le=4096,
        description="CPU processes that score completions; 0: the training process itself, to debug a reward.",
    )

    @field_validator("name")
    @classmethod
    def _known(cls, name: str | None) -> str | None:
        if name is not None and name not in REWARDS and not _FUNCTION.fullmatch(name):
            nearest = difflib.get_close_matches(name.lower(), REWARDS, n=1, cutoff=0.0)[0]
            raise ValueError(
                f"unknown reward {name!r}; the nearest known one is {nearest}"
                f" (known: {', '.join(REWARDS)}, or your own as module:function)"
            )
        return name

    @field_validator("functions", mode="before")
    @classmethod
    def _weights(cls, functions: Any) -> Any:
        # As for other numbers: YAML 1.1 reads 1e-1 (no dot) as a string.
        if not isinstance(functions, dict):
            return functions
        texts = {name: weight for name, weight in functions.items() if isinstance(weight, str)}
        for name, weight in texts.items():
            try:
                functions = {**functions, name: float(weight)}
            except ValueError:
                raise ValueError(f"the weight of {name} must be a number; got {weight!r}") from None
        return functions

    @field_validator("functions")
    @classmethod
    def _known_functions(cls, functions: dict[str, float]) -> dict[str, float]:
        for name, weight in functions.items():
            cls._known(name)
            if abs(weight) > MAX_WEIGHT:
                raise ValueError(f"the weight of {name} must be at most {MAX_WEIGHT:g} in size; got {weight:g}")
        if functions and not any(functions.values()):
            raise ValueError("all weights are 0, so all completions would be worth the same: give one a weight")
        return functions

    @model_validator(mode="after")
    def _one_way(self) -> RewardSection:
        if self.name is not None and self.functions:
            raise ValueError(
                f"name ({self.name}) and functions ({', '.join(self.functions)}) exclude each other; set name to null"
            )
        return self
