"""Brings a public data set into a folder, so that a machine without network can use it.

From the hub (MBPP+: from EvalPlus' release) or another folder. Every file is written beside its place, read back as the
loader reads it, and counted; only when all are good do they take their names, each in one step.
"""

import gzip
import hashlib
import json
import os
import tempfile
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from loop_rl.data.examples import Row
from loop_rl.data.named import SETS, NamedSet
from loop_rl.data.names import is_generator, is_hub_id, is_own_file, unknown_name
from loop_rl.data.reading import find_file, read_data_file
from loop_rl.data.sources import files_in, hub_rows, hub_splits, split_rows
from loop_rl.errors import UserError

SECONDS = 60.0  # without a byte from the server


@dataclass(frozen=True)
class Fetched:
    """A file that is now in the folder. `published`: whether its bytes are the published ones; None: not known."""

    path: Path
    rows: int
    sha256: str
    published: bool | None


def fetch(name: str, folder: Path, source: Path | None = None, config: str | None = None) -> list[Fetched]:
    """Puts the files of a data set into a folder, which is made if need be; what is there and good is kept.

    Args:
        name: a named set, or owner/name on the hub.
        folder: where the files go.
        source: a folder that has them, instead of the network.
        config: the configuration of a hub data set.

    Raises:
        UserError: nothing to fetch by that name, no way to it, a file that is not what it should be, or another file
            in its place.
    """
    if name in SETS:
        one = SETS[name]
        contents = _from_folder(one, source) if source else _from_network(one)
    elif is_hub_id(name) and source is None:
        one, contents = None, _own(name, config)
    elif name == "arithmetic" or is_generator(name):
        raise UserError(f"{name} is made on the spot, so there is nothing to fetch")
    elif is_own_file(name) or is_hub_id(name):
        raise UserError(f"{name}: copy your own files yourself; --from is for {', '.join(SETS)}")
    else:
        raise UserError(unknown_name(name))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise UserError(f"--to {folder} is a file; name a folder") from None
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as workplace:
        fetched = []
        for file, data in contents.items():
            fresh = Path(workplace) / file
            fresh.write_bytes(data)
            fetched.append(_checked(one, fresh, folder))
        for one_file in fetched:
            fresh = Path(workplace) / one_file.path.name
            if not one_file.path.exists():
                os.replace(fresh, one_file.path)
    return fetched


def _from_folder(one: NamedSet, source: Path) -> dict[str, bytes]:
    for layout in one.layouts:
        found = files_in(source, layout)
        if all(part in found for part in layout if part not in one.optional):
            return {path.name: path.read_bytes() for path in found.values()}
    layouts = " or ".join(
        " and ".join(file for part, file in layout.items() if part not in one.optional) for layout in one.layouts
    )
    raise UserError(f"--from {source} has no {layouts}; name the folder that has them")


def _from_network(one: NamedSet) -> dict[str, bytes]:
    if one.hub is not None:
        parts = hub_rows(one.hub, "name a folder that has the files with --from")
        layout = next(layout for layout in one.layouts if set(layout) == set(parts))
        return {layout[part]: _encode(layout[part], rows) for part, rows in parts.items()}
    (file,) = one.layouts[0].values()
    try:
        with urllib.request.urlopen(one.url, timeout=SECONDS) as answer:
            return {f"{file}.gz": answer.read()}
    except (OSError, ValueError) as error:
        raise UserError(
            f"{one.url} can't be had ({getattr(error, 'reason', error)}); bring {file}.gz here by other means, and "
            "name its folder with --from"
        ) from None


def _own(name: str, config: str | None) -> dict[str, bytes]:
    loaded = hub_splits(name, config, "give a name with an owner that exists")
    stem = name.rpartition("/")[2]
    files = {split: f"{stem}_{split}.jsonl" for split in ("train", "test", "validation") if split in loaded}
    if not files:
        raise UserError(f"{name} has no split train, test or validation; it has {', '.join(map(repr, loaded))}")
    return {file: _encode(file, split_rows(name, loaded, (split,))) for split, file in files.items()}


def _encode(file: str, rows: list[Row]) -> bytes:
    """Rows as the bytes of a .jsonl file, or of a .json file's one list."""
    lines = []
    for row in rows:
        try:
            lines.append(json.dumps(row.values, ensure_ascii=False))
        except (TypeError, ValueError) as error:
            raise UserError(f"{row.place}: can't be written as JSON ({error})") from None
    text = f"[{', '.join(lines)}]\n" if file.endswith(".json") else "".join(f"{line}\n" for line in lines)
    return text.encode()


def _checked(one: NamedSet | None, fresh: Path, folder: Path) -> Fetched:
    """What a fresh file is; UserError where it isn't what it should be, or where another is in its place."""
    rows = read_data_file(fresh, "its fields")
    raw = fresh.read_bytes()
    plain = fresh.name.removesuffix(".gz")
    digest = hashlib.sha256(gzip.decompress(raw) if fresh.name.endswith(".gz") else raw).hexdigest()
    published = None
    if one is not None:
        wanted = next(one.rows[part] for layout in one.layouts for part, file in layout.items() if file == plain)
        if len(rows) != wanted:
            raise UserError(f"{fresh.name} has {len(rows)} rows instead of {wanted}; get it again, it is not whole")
        for row in rows:
            one.fields(row)
        if plain in one.sha256:
            published = digest == one.sha256[plain]
        if published is False and one.hub is None:
            raise UserError(f"{fresh.name} is not the published file (sha256 {digest[:16]}...); get it again")
    there = find_file(folder, plain)
    if there is not None and there.name == plain != fresh.name:
        raise UserError(f"{there} is there already, and would be read instead of {fresh.name}; remove it first")
    if there is not None and there.name == fresh.name and there.read_bytes() != raw:
        raise UserError(f"{there} is there already, with other content; remove it first")
    return Fetched(folder / fresh.name, len(rows), digest, published)
