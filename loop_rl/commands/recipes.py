"""`loop-rl recipes`: list, show, copy, validate; and which verb a recipe is written for."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import yaml

from loop_rl.errors import UserError
from loop_rl.recipe import Recipe, load_recipe, recipes_folder
from loop_rl.training.distill_recipe import DistillRecipe
from loop_rl.training.pretrain_recipe import PretrainRecipe

AnyRecipe = Recipe | PretrainRecipe | DistillRecipe

SCHEMAS: dict[str, type[AnyRecipe]] = {"train": Recipe, "pretrain": PretrainRecipe, "distill": DistillRecipe}
#: the section that tells a recipe's verb; one without any is for train
TELLING = {"prior": "pretrain", "teacher": "distill"}


def shipped() -> list[Path]:
    """The recipes that come with the package, by name."""
    return sorted(recipes_folder().glob("*.yaml"))


def find(name: str) -> Path:
    """A file, or a shipped recipe by name; UserError naming the nearest one."""
    if Path(name).is_file():
        return Path(name)
    for file in shipped():
        if file.stem == Path(name).name.removesuffix(".yaml"):
            return file
    load_recipe(name)  # refuses it, with the nearest name
    raise UserError(f"there is no recipe {name}")


def verb_of(name: str) -> str:
    """What a recipe is for, by the sections of the file and of those that it extends."""
    seen: set[Path] = set()
    file = find(name)
    while file.resolve() not in seen:
        seen.add(file.resolve())
        try:
            values = yaml.safe_load(file.read_text(encoding="utf-8"))
        except (OSError, ValueError, yaml.YAMLError):
            return "train"  # reading it as such a recipe says what is wrong
        if not isinstance(values, dict):
            return "train"
        for section, verb in TELLING.items():
            if section in values:
                return verb
        base = values.get("extends")
        if not isinstance(base, str):
            return "train"
        beside = file.parent / base
        try:
            file = beside if beside.is_file() else find(base)
        except UserError:
            return "train"
    return "train"


def load_any(name: str, overrides: Sequence[str] = ()) -> AnyRecipe:
    """A recipe of any kind, resolved."""
    return load_recipe(name, overrides, schema=SCHEMAS[verb_of(name)])


def load_for(verb: str, name: str, overrides: Sequence[str] = ()) -> AnyRecipe:
    """The recipe of a run; UserError naming the other verb where the recipe is for that."""
    other = verb_of(name)
    if other != verb:
        raise UserError(f"{name} is a recipe for loop-rl {other}: run `loop-rl {other} {name}`")
    return load_recipe(name, overrides, schema=SCHEMAS[verb])


def description(file: Path) -> str:
    """The comment that a recipe begins with; of one without, its base and what it changes."""
    text = file.read_text(encoding="utf-8")
    lines = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.lstrip("# "))
    if lines:
        return " ".join(lines)
    values = yaml.safe_load(text) or {}
    base = values.pop("extends", None)
    changed = ", ".join(
        f"{section}.{key}={value}" for section, keys in values.items() for key, value in (keys or {}).items()
    )
    return f"{Path(base).stem} with {changed}" if base else changed


def copy(name: str, target: str | None) -> Path:
    """Copies a recipe into a new file (by default its own name, here), ready to be edited."""
    source = find(name)
    file = Path(target) if target else Path(source.name)
    if file.is_dir():
        file /= source.name
    if file.exists():
        raise UserError(f"{file} exists already; give another name: loop-rl recipes copy {name} FILE")
    try:
        shutil.copyfile(source, file)
    except OSError as error:
        raise UserError(f"cannot write {file}: {error.strerror or error}") from None
    return file
