"""Where the rows of a named set come from: a folder of local data sets, else the hub."""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from loop_rl import hub
from loop_rl.data.examples import DataSettings, Row, make_examples
from loop_rl.data.named import NamedSet
from loop_rl.data.named.description import Hub, Parts
from loop_rl.data.named.mbpp_plus import FILE
from loop_rl.data.reading import as_rows, find_file, read_data_file
from loop_rl.errors import UserError

VARIABLE = "LOOP_RL_DATA"  # the folder of local data sets, when the recipe names none
OVERRIDE = "MBPP_OVERRIDE_PATH"  # EvalPlus' own variable: the file of MBPP+


def local_folder(folder: str | None) -> Path | None:
    """The recipe's folder, else the one that LOOP_RL_DATA names."""
    named = folder or os.environ.get(VARIABLE)
    return Path(named).expanduser() if named else None


def data_file(settings: DataSettings) -> Path | None:
    """The MBPP+ file that a recipe's data section or the environment leads to, which that reward scores with.

    In order: data.folder (for mbpp_plus itself nothing else, when given), MBPP_OVERRIDE_PATH (the file), LOOP_RL_DATA.
    None where none of them has it.
    """
    if settings.folder is not None:
        found = find_file(Path(settings.folder).expanduser(), FILE)
        if found or settings.name == "mbpp_plus":
            return found
    if override := os.environ.get(OVERRIDE):
        path = Path(override).expanduser()
        return path if path.is_file() else None
    folder = local_folder(None)
    return find_file(folder, FILE) if folder else None


def load_parts(one: NamedSet, settings: DataSettings) -> Parts:
    """The examples of each part of a named set, in the order of the source.

    Raises:
        UserError: a folder that lacks some of the files, no way to the hub, a row that can't be used.
    """
    template = settings.template or one.template
    found = local_files(one, settings)
    if found is not None:
        rows = {part: read_data_file(path, "its fields") for part, path in found.items()}
    elif one.hub is not None:
        rows = hub_rows(one.hub, f"set data.folder or {VARIABLE} to a folder with {_files(one)}")
    else:
        raise UserError(_no_file(one, settings))
    return {part: make_examples([(row, one.fields(row)) for row in of], template) for part, of in rows.items()}


def local_files(one: NamedSet, settings: DataSettings) -> dict[str, Path] | None:
    """The file of each part; None where neither the settings nor the environment lead to any.

    Raises:
        UserError: data.folder lacks a file, or LOOP_RL_DATA has only some.
    """
    if one.hub is None:
        path = data_file(settings)
        return {"all": path} if path else None
    folder = local_folder(settings.folder)
    if folder is None:
        return None
    layouts = [files_in(folder, layout) for layout in one.layouts]
    for layout, found in zip(one.layouts, layouts, strict=True):
        if all(part in found for part in layout if part not in one.optional):
            return found
    most = max(range(len(layouts)), key=lambda at: len(layouts[at]))
    if settings.folder or layouts[most]:
        place = "data.folder" if settings.folder else VARIABLE
        wanted = one.layouts[most]
        missing = next(file for part, file in wanted.items() if part not in layouts[most] and part not in one.optional)
        raise UserError(f"{place}: {folder / missing} is missing; put it there, or run: {_fetch(one, str(folder))}")
    return None


def files_in(folder: Path, layout: Mapping[str, str]) -> dict[str, Path]:
    """Those files of a layout that a folder has, gzipped or not."""
    return {part: path for part, file in layout.items() if (path := find_file(folder, file))}


def _files(one: NamedSet) -> str:
    return " and ".join(file for part, file in one.layouts[0].items() if part not in one.optional)


def _no_file(one: NamedSet, settings: DataSettings) -> str:
    named = {"data.folder": settings.folder, OVERRIDE: os.environ.get(OVERRIDE), VARIABLE: os.environ.get(VARIABLE)}
    looked = next((f"{place}={value} has none" for place, value in named.items() if value), "none of these is set")
    return (
        f"data.name: {one.name} needs the file {_files(one)} (or .gz): set data.folder or {VARIABLE} to its folder, or "
        f"{OVERRIDE} to the file ({looked}); to get it: {_fetch(one, 'FOLDER')}"
    )


def _fetch(one: NamedSet, folder: str) -> str:
    return f"loop-rl data fetch {one.name} --to {folder}"


def hub_rows(source: Hub, remedy: str) -> dict[str, list[Row]]:
    """The rows of each part of a data set on the hub; errors as of `hub_splits` and `split_rows`."""
    loaded = hub_splits(source.id, source.config, remedy)
    return {part: split_rows(source.id, loaded, splits) for part, splits in source.splits.items()}


def hub_splits(name: str, config: str | None, remedy: str) -> Mapping[str, Iterable[Any]]:
    """The splits of a data set on the hub or in its cache; no code of it is run, whatever it has.

    Raises:
        UserError: neither answers with the set; `remedy` says what else would do.
    """
    cause = hub.unreachable()
    if cause is None:
        import datasets  # slow to import, and only this path needs it

        try:
            return datasets.load_dataset(name, *([config] if config else []))
        except (OSError, ValueError, RuntimeError) as error:  # what it raises when neither the hub nor its cache has it
            cause = " ".join(str(error).split())[:200] or type(error).__name__
    raise UserError(
        f"data.name: {name} can't be loaded from the hub ({cause}); {remedy}, or HF_HUB_OFFLINE=1 to use a copy in the "
        "hub's cache"
    )


def split_rows(name: str, loaded: Mapping[str, Iterable[Any]], splits: Sequence[str]) -> list[Row]:
    """The rows of some splits, one after the other; UserError for a split that isn't there."""
    missing = [split for split in splits if split not in loaded]
    if missing:
        raise UserError(f"{name} on the hub has no split {missing[0]!r}; it has {', '.join(map(repr, loaded))}")
    values = (
        (f"{name} {split}, row {number}", row) for split in splits for number, row in enumerate(loaded[split], start=1)
    )
    return as_rows(values, "its fields")
