"""What is said of a public data set: its files, its place on the hub, and what a row means."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from loop_rl.data.examples import TEMPLATE, Fields, Placed, Row


@dataclass(frozen=True)
class Hub:
    """A data set on the Hugging Face hub. `splits`: for each part of the set, the splits that make it up."""

    id: str
    splits: Mapping[str, tuple[str, ...]]
    config: str | None = None


Parts = Mapping[str, list[Placed]]
Halves = tuple[list[Placed], list[Placed]]


def as_published(parts: Parts) -> Halves:
    """The parts `train` and `test` as they are; a part that the set lacks is empty."""
    return list(parts.get("train", [])), list(parts.get("test", []))


@dataclass(frozen=True)
class NamedSet:
    """A public data set.

    Attributes:
        name: what a recipe calls it.
        reward: the name of the reward that fits its answers.
        fields: what a row says; UserError for a row that can't be used.
        files: the file of each part in a folder of local data sets; any of them may be gzipped.
        optional: parts that a folder may lack.
        hub: where it lies on the hub; None if only files hold what the reward needs.
        template: how a question is put to the model.
        divide: the questions to learn from and the held-out ones, of the parts.
        held_out: for a set that is one pool, how many questions of the seeded order are held out by default.
    """

    name: str
    reward: str
    fields: Callable[[Row], Fields]
    files: Mapping[str, str]
    hub: Hub | None
    template: str = TEMPLATE
    divide: Callable[[Parts], Halves] = as_published
    held_out: int | None = None
    optional: frozenset[str] = field(default=frozenset())
