"""What the checks share: a variant's outcome, commands run in this process, small recipes and models."""

import contextlib
import io
import json
import shutil
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow.parquet
import yaml
from safetensors.torch import load_file, save_file
from torch import Tensor

from loop_rl.cli import main
from loop_rl.models.loading import EMBEDDED

VARIED = "def varied(completions, **columns): return [float(sum(map(ord, text)) % 5) for text in completions]"

Given = dict[str, Any]  # the case's `input`


@dataclass(frozen=True)
class Seen:
    """A variant of a case: what was seen of it, beside what was wanted, and whether that is right."""

    variant: str
    wanted: Any
    seen: Any
    right: bool


Check = Callable[[Given], Iterator[Seen]]


def equal(variant: str, wanted: Any, seen: Any) -> Seen:
    """Right where both are the same."""
    return Seen(variant, wanted, seen, wanted == seen)


def near(variant: str, wanted: float, seen: float | None, tolerance: float) -> Seen:
    """Right where the difference is at most `tolerance`."""
    return Seen(variant, f"{wanted:.6g}", seen, seen is not None and abs(seen - wanted) <= tolerance)


@dataclass(frozen=True)
class Said:
    """A command's exit code and all that it printed; code 1 and the traceback where it raised."""

    code: int
    text: str


def command(*words: str) -> Said:
    """`loop-rl WORDS`, in this process and folder, without a terminal."""
    with io.StringIO() as out, contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            code = main(words)
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        except Exception:
            traceback.print_exc(file=out)
            code = 1
        return Said(code, out.getvalue())


def refused(variant: str, said: Said, *words: str) -> Seen:
    """Right where the command ended with code 2, without a traceback, and its last line has all the words."""
    last = said.text.strip().splitlines()[-1] if said.text.strip() else ""
    right = said.code == 2 and "Traceback" not in said.text and all(word in last for word in words)
    return Seen(variant, f"exit code 2, a line with {', '.join(words)}", f"exit code {said.code}: {last}", right)


def ended(variant: str, said: Said) -> Seen:
    """Right where the command ended with code 0."""
    lines = said.text.strip().splitlines()
    return Seen(
        variant, "exit code 0", f"exit code {said.code}" + (f": {lines[-1]}" if said.code else ""), not said.code
    )


def recipe(name: str = "small", /, **sections: dict[str, Any] | None) -> str:
    """The name of a recipe file that is made here: two steps of RL without Ray, with `sections` put over them."""
    values: dict[str, Any] = {
        "data": {"train_size": 8, "eval_size": 2},
        "reward": {"workers": 0},
        "rollout": {"workers": 0, "prompts_per_step": 2, "num_generations": 4, "max_completion_length": 24},
        "optim": {"learning_rate": 1e-3},
        "eval": {"samples": 1},
        "run": {"max_steps": 2, "threads": 1},
    }
    for section, keys in sections.items():
        values[section] = None if keys is None else {**values.get(section, {}), **keys}
    Path(f"{name}.yaml").write_text(yaml.safe_dump(values))
    return f"{name}.yaml"


def reward(code: str, name: str) -> dict[str, Any]:
    """Section reward of a function of one's own, `f` in a module of this name that is made here."""
    Path(f"{name}.py").write_text(f"import itertools, os, signal, time\n{code}\n")
    return {"name": f"{name}:f"}


def varied(name: str) -> dict[str, Any]:
    """Section reward of a function that gives the embedded model's completions now more, now less."""
    return reward(f"{VARIED}\nf = varied", name)


def rows(run: str | Path, file: str = "metrics.jsonl") -> list[dict[str, Any]]:
    """A run's rows of metrics, or of its evaluations."""
    return [json.loads(line) for line in Path(run, file).read_text(encoding="utf-8").splitlines()]


def completions(run: str | Path, step: int) -> list[dict[str, Any]]:
    """What a step sampled."""
    return table(Path(run, "completions", f"step_{step}.parquet"))


def table(file: Path) -> list[dict[str, Any]]:
    """The rows of a parquet file."""
    return pyarrow.parquet.read_table(file).to_pylist()


def saved(run: str | Path, step: int) -> Path:
    """A checkpoint's model."""
    return Path(run) / "checkpoints" / f"step_{step}" / "model"


def embedded(
    name: str, generation: Given | None = None, change: Callable[[dict[str, Tensor]], None] | None = None, **config: Any
) -> Path:
    """A copy of the embedded model, made here, with other files or weights; a config's None takes the key away."""
    folder = Path(name)
    shutil.copytree(EMBEDDED, folder)
    values = {**json.loads((folder / "config.json").read_text()), **config}
    (folder / "config.json").write_text(json.dumps({key: value for key, value in values.items() if value is not None}))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    if change is not None:
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@contextlib.contextmanager
def no_model_is_loaded() -> Iterator[None]:
    """Makes a run that gets as far as its model fail with an AssertionError."""
    with mock.patch("loop_rl.training.trainer.load_model", side_effect=AssertionError("the model was loaded")):
        yield


def covered(*tests: str) -> Check:
    """The check of a case that needs more than its input: the names of the tests that run it, `file::function`."""

    def check(given: Given) -> Iterator[Seen]:
        """needs more than its input; these tests run it"""
        root = Path(__file__).parents[2] / "tests"
        for test in tests:
            file, _, function = test.partition("::")
            there = (root / file).is_file() and f"def {function}(" in (root / file).read_text(encoding="utf-8")
            yield Seen(f"tests/{test}", "a test", "a test" if there else "no such test", there)

    return check


def listed(value: Any) -> Sequence[Any]:
    """A case's value, which may be one or a list of them."""
    return value if isinstance(value, list) else [value]
