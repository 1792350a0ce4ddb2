"""What is said of a public data set: its files, its place on the hub, and what a row means."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

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
        layouts: the file of each part in a folder of local data sets, which may be gzipped; the first layout that a
            folder has counts.
        rows: how many rows each part has as published.
        sizes: how many questions that gives to learn from, and held out.
        sha256: of the published files (not gzipped).
        optional: parts that a folder may lack.
        hub: where it lies on the hub; None if only files hold what the reward needs.
        url: where the file of a set that isn't on the hub is published.
        template: how a question is put to the model.
        divide: the questions to learn from and the held-out ones, of the parts.
        held_out: for a set that is one pool, how many questions of the seeded order are held out by default.
    """

    name: str
    reward: str
    fields: Callable[[Row], Fields]
    layouts: tuple[Mapping[str, str], ...]
    rows: Mapping[str, int]
    sizes: tuple[int, int]
    sha256: Mapping[str, str]
    hub: Hub | None = None
    url: str | None = None
    template: str = TEMPLATE
    divide: Callable[[Parts], Halves] = as_published
    held_out: int | None = None
    optional: frozenset[str] = frozenset()
