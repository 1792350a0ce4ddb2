"""Where the rows of a named set come from: a folder of local data sets, else the hub."""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from loop_rl import hub
from loop_rl.data.examples import DataSettings, Placed, Row, make_examples
from loop_rl.data.named import NamedSet
from loop_rl.data.named.description import Hub, Parts
from loop_rl.data.reading import as_rows, find_file, read_rows
from loop_rl.errors import UserError

VARIABLE = "LOOP_RL_DATA"  # the folder of local data sets, when the recipe names none
OVERRIDE = "MBPP_OVERRIDE_PATH"  # EvalPlus' own variable: the file of MBPP+


def local_folder(folder: str | None) -> Path | None:
    """The recipe's folder, else the one that LOOP_RL_DATA names."""
    named = folder or os.environ.get(VARIABLE)
    return Path(named).expanduser() if named else None


def data_file(settings: DataSettings) -> Path | None:
    """The MBPP+ file that a recipe's data section or the environment leads to, which that reward scores with.

    In order: data.folder, MBPP_OVERRIDE_PATH, LOOP_RL_DATA. None where none of them has it.
    """
    from loop_rl.data.named.mbpp_plus import SET

    override = os.environ.get(OVERRIDE)
    if settings.folder is None and override:
        path = Path(override).expanduser()
        return path if path.is_file() else None
    folder = local_folder(settings.folder)
    return find_file(folder, SET.files["all"]) if folder else None


def load_parts(one: NamedSet, settings: DataSettings) -> Parts:
    """The examples of each part of a named set, in the order of the source.

    Raises:
        UserError: a folder that lacks some of the files, no way to the hub, a row that can't be used.
    """
    found = _local_files(one, settings)
    if found is not None:
        return {part: _examples(one, read_rows(path, "its fields"), settings) for part, path in found.items()}
    if one.hub is None:
        raise UserError(_missing(one, None))
    return {part: _examples(one, rows, settings) for part, rows in hub_rows(one.hub, _remedy(one)).items()}


def _examples(one: NamedSet, rows: list[Row], settings: DataSettings) -> list[Placed]:
    return make_examples([(row, one.fields(row)) for row in rows], settings.template or one.template)


def _local_files(one: NamedSet, settings: DataSettings) -> dict[str, Path] | None:
    """The file of each part; None where no folder has them, so that the hub is asked."""
    if one.hub is None and (path := data_file(settings)):
        return {"all": path}
    folder = local_folder(settings.folder)
    if folder is None:
        return None
    found = {part: path for part, file in one.files.items() if (path := find_file(folder, file))}
    missing = [file for part, file in one.files.items() if part not in found and part not in one.optional]
    if not missing:
        return found
    if settings.folder or (found and set(found) - one.optional):
        place = "data.folder" if settings.folder else VARIABLE
        raise UserError(f"{place}: {folder / missing[0]} is missing; {_mend(one, settings.folder or str(folder))}")
    return None


def _missing(one: NamedSet, folder: Path | None) -> str:
    file = one.files["all"]
    return (
        f"data.name: {one.name} needs the file {file} (or {file}.gz), which is in none of data.folder, {OVERRIDE} "
        f"(the file itself) and {VARIABLE} (its folder); {_mend(one, 'FOLDER')}"
    )


def _mend(one: NamedSet, folder: str) -> str:
    return f"put {' and '.join(one.files.values())} there, or run: loop-rl data fetch {one.name} --to {folder}"


def _remedy(one: NamedSet) -> str:
    files = " and ".join(file for part, file in one.files.items() if part not in one.optional)
    return f"set data.folder or {VARIABLE} to a folder with {files}"


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
