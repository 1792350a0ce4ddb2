"""`loop-rl data`: which data sets there are, what their questions look like, and how to bring one here."""

from __future__ import annotations

import importlib.util
import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from loop_rl.data.examples import Example
from loop_rl.data.fetch import Fetched, fetch
from loop_rl.data.load import ARITHMETIC_SIZES, load_dataset
from loop_rl.data.named import SETS, NamedSet
from loop_rl.data.names import GYM, default_reward, is_known, unknown_name
from loop_rl.data.sources import OVERRIDE, VARIABLE, local_files
from loop_rl.errors import UserError
from loop_rl.recipe.rl import DataSection, Recipe, load_recipe

LONGEST_VALUE = 100  # characters of a column that are shown


def list_sets(folder: str | None) -> str:
    """A table of the known data sets: sizes, reward, where each is found from here."""
    import io

    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from loop_rl.data.reasoning_gym import SIZES

    grid = Table()
    for column in ("data", "train", "test", "reward", "where"):
        grid.add_column(column, justify="right" if column in ("train", "test") else "left")
    grid.add_row("arithmetic", *(str(size) for size in ARITHMETIC_SIZES.values()), "gsm8k", "made here")
    for one in SETS.values():
        train, test, where = _found(one, folder)
        grid.add_row(one.name, train, test, one.reward, Text(where))
    installed = importlib.util.find_spec("reasoning_gym") is not None
    where = "made here" if installed else "pip install 'loop-rl[reasoning-gym]'"
    # Text: an extra in brackets is not rich's markup
    grid.add_row(f"{GYM}GENERATOR", *(str(size) for size in SIZES.values()), "its own", Text(where))
    grid.add_row("PATH.jsonl", "", "", default_reward("PATH.jsonl"), "your file")
    grid.add_row("OWNER/NAME", "", "", default_reward("OWNER/NAME"), "hub")
    console = Console(file=io.StringIO(), width=160, color_system=None)
    console.print(grid)
    return console.file.getvalue()


def _found(one: NamedSet, folder: str | None) -> tuple[str, str, str]:
    """The sizes of the halves and where they are; of a set that isn't here, its published sizes."""
    settings = DataSection(name=one.name, folder=folder)
    try:
        files = local_files(one, settings)
        splits = load_dataset(settings) if files else None
    except UserError as error:
        return "–", "–", str(error)
    if splits is None:
        train, test = one.sizes
        where = f"hub: {one.hub.id}" if one.hub else f"not here: loop-rl data fetch {one.name} --to FOLDER"
        return str(train), str(test), where
    return str(len(splits.train)), str(len(splits.test)), str(next(iter(files.values())).parent)


def show(name: str, count: int, split: str, folder: str | None, overrides: Sequence[str]) -> str:
    """The first examples of a data set, in the order in which a run uses them: prompts, answers, columns."""
    if not is_known(name):
        raise UserError(unknown_name(name))
    recipe = _recipe({"name": name} | ({} if folder is None else {"folder": folder}), overrides)
    splits = load_dataset(recipe.data, reward=recipe.reward.name or default_reward(name))
    examples: list[Example] = getattr(splits, split)
    lines = [f"{name}: {len(splits.train)} to train on, {len(splits.test)} held out"]
    for number, example in enumerate(examples[:count], start=1):
        lines += ["", f"── {split} {number}, row {example.index} of the source ──", example.prompt]
        lines += ["── answer ──", example.answer or "(none: the generator's scorer decides)"]
        lines += [f"── {column} ── {_short(value)}" for column, value in example.columns.items()]
    if not examples:
        lines.append(f"nothing is in the half {split}; try --split {'test' if split == 'train' else 'train'}")
    return "\n".join(lines) + "\n"


def _recipe(data: dict[str, Any], overrides: Sequence[str]) -> Recipe:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "data.yaml"
        file.write_text(yaml.safe_dump({"data": data}))
        return load_recipe(file, overrides)


def _short(value: Any) -> str:
    text = " ".join((value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)).split())
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}…"


def run_fetch(names: Sequence[str], folder: str, source: str | None, config: str | None) -> Iterator[str]:
    """Fetches data sets one after another; says of each what is there now, and what to set to use it.

    Raises UserError before anything is fetched where `config` is given for several, whose names it can't be.
    """
    if config is not None and len(names) > 1:
        raise UserError(f"--config is of one hub data set, not of {len(names)}; fetch them one at a time")
    target = Path(folder).expanduser()
    for name in dict.fromkeys(names):
        files = fetch(name, target, None if source is None else Path(source).expanduser(), config)
        yield "".join(f"{_line(one)}\n" for one in files) + f"{_use(name, target, files)}\n"


def _line(one: Fetched) -> str:
    bytes_are = {True: ", the published file", False: ", not the published bytes", None: ""}[one.published]
    return f"{one.path}: {one.rows} rows, sha256 {one.sha256[:16]}{bytes_are}"


def _use(name: str, folder: Path, files: Sequence[Fetched]) -> str:
    place = folder.resolve()
    if name not in SETS:
        return f"to use it: --set data.folder={place} data.name={files[0].path.name}"
    by_file = f", or export {OVERRIDE}={place / files[0].path.name}" if SETS[name].hub is None else ""
    return f"to use it: export {VARIABLE}={place}, or --set data.folder={place}{by_file}"
