"""`loop-rl recipes`: list, show, copy, validate; and which command a recipe is written for."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from loop_rl.errors import UserError
from loop_rl.recipe.distill import DistillRecipe
from loop_rl.recipe.pretrain import PretrainRecipe
from loop_rl.recipe.reading import parse_yaml, recipes_folder
from loop_rl.recipe.rl import Recipe, load_recipe
from loop_rl.recipe.sections import AnyRecipe
from loop_rl.recipe.sft import SftRecipe

SCHEMAS: dict[str, type[AnyRecipe]] = {
    "train": Recipe,
    "pretrain": PretrainRecipe,
    "distill": DistillRecipe,
    "sft": SftRecipe,
}
#: keys that tell a recipe's command, all of them in the recipe or in those that it extends; the first that fits counts
TELLING = (("distill", {"teacher"}), ("sft", {"prior", "model.path"}), ("pretrain", {"prior"}), ("train", set()))


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


def kind_of(name: str) -> str:
    """What a recipe is for, by the keys of the file and of those that it extends."""
    keys: set[str] = set()
    seen: set[Path] = set()
    file: Path | None = find(name)
    while file is not None and file.resolve() not in seen:
        seen.add(file.resolve())
        values = _values(file)
        keys |= {*values, *(f"model.{key}" for key in values.get("model", {}))}
        file = _base(file, values.get("extends"))
    return next(kind for kind, telling in TELLING if telling <= keys)


def _values(file: Path) -> dict[str, Any]:
    """A recipe's sections; none where it is no recipe, since reading it as one says what is wrong."""
    try:
        values = parse_yaml(file.read_text(encoding="utf-8"), str(file))
    except (OSError, ValueError, UserError):
        return {}
    if not isinstance(values, dict):
        return {}
    return {str(key): value if isinstance(value, dict) or key == "extends" else {} for key, value in values.items()}


def _base(file: Path, name: object) -> Path | None:
    """The recipe that a file extends; None without one, or where there is none of that name."""
    if not isinstance(name, str):
        return None
    beside = file.parent / name
    try:
        return beside if beside.is_file() else find(name)
    except UserError:
        return None


def load_any(name: str, overrides: Sequence[str] = ()) -> AnyRecipe:
    """A recipe of any kind, resolved."""
    return load_recipe(name, overrides, schema=SCHEMAS[kind_of(name)])


def load_for(kind: str, name: str, overrides: Sequence[str] = ()) -> AnyRecipe:
    """The recipe of a run; UserError naming the other command where the recipe is for that."""
    other = kind_of(name)
    if other != kind:
        raise UserError(f"{name} is a recipe for loop-rl {other}: run `loop-rl {other} {name}`")
    return load_recipe(name, overrides, schema=SCHEMAS[kind])


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
