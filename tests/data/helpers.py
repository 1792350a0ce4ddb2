"""What the tests of data share: settings without the rest of a recipe, files of rows, and the published files."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

DATA = Path(__file__).resolve().parents[2] / "../shared/data"


def settings(name, folder=None, seed=0, train_size=None, eval_size=None, columns=None, template=None, config=None):
    return SimpleNamespace(
        name=name,
        folder=None if folder is None else str(folder),
        seed=seed,
        train_size=train_size,
        eval_size=eval_size,
        columns=columns or {},
        template=template,
        config=config,
    )


def write(path, rows):
    """The path of a file with these rows, each a JSON value or a line as it is."""
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows), "utf-8")
    return str(path)


def published(name):
    """A published file; skips the test where it is missing."""
    path = DATA / name
    if not path.is_file():
        pytest.skip(f"{path} is missing")
    return path


def json_lines(path):
    return [json.loads(line) for line in path.read_text("utf-8").split("\n") if line.strip()]
