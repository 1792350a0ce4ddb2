"""Recipes as files: YAML with inheritance and overrides, checked against a schema so that no key is ever ignored.

Every failure is a UserError of one line that names the file (or the --set) which said it, the key, and the fix.
"""

from __future__ import annotations

import difflib
import re
import types
import typing
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pydantic
import yaml

from loop_rl.errors import UserError

# What people call a key elsewhere, and the name it has here. An entry is offered only where the schema has its target.
SYNONYMS = {
    "lr": "optim.learning_rate",
    "group_size": "rollout.num_generations",
    "n_generations": "rollout.num_generations",
    "num_samples": "rollout.num_generations",
    "kl_coef": "learner.beta",
    "kl": "learner.beta",
    "clip_range": "learner.epsilon",
    "batch_size": "rollout.prompts_per_step",
    "train_batch_size": "rollout.prompts_per_step",
    "micro_batch_size": "learner.per_device_train_batch_size",
    "mini_batch_size": "learner.per_device_train_batch_size",
    "ppo_epochs": "learner.num_iterations",
    "epochs": "learner.num_iterations",
    "max_new_tokens": "rollout.max_completion_length",
    "max_tokens": "rollout.max_completion_length",
    "steps": "run.max_steps",
    "num_steps": "run.max_steps",
    "output_dir": "run.folder",
    "num_loops": "model.depth",
    "recurrences": "model.depth",
    "model_name": "model.path",
    "model_name_or_path": "model.path",
    "dataset": "data.name",
    "dataset_name": "data.name",
    "betas": "optim.adam_beta1",
    "clip_grad": "optim.max_grad_norm",
    "grad_clip": "optim.max_grad_norm",
}

# What fits into 64 bits, as torch's and numpy's sizes and seeds must.
_LARGEST = 2**63 - 1
# What float32 holds with all its digits.
_SMALLEST_FLOAT, _LARGEST_FLOAT = 2.0**-126, (2 - 2.0**-23) * 2.0**127
# YAML nested deeper than any recipe; beyond it, reading and printing would run into Python's recursion limit.
_DEEPEST = 32

_FLOAT = re.compile(r"[-+]?(\d[\d_]*\.?\d*|\.\d+)([eE][-+]?\d+)?")


class Section(pydantic.BaseModel):
    """A part of a recipe: typed keys, each described, unknown ones refused, no value converted but 1e-6."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    @pydantic.model_validator(mode="before")
    @classmethod
    def _read_floats(cls, values: Any) -> Any:
        # YAML 1.1 reads 1e-6 (no dot) as a string; only where a float is wanted may it become one.
        if not isinstance(values, dict):
            return values
        values = dict(values)
        for name, field in cls.model_fields.items():
            text = values.get(name)
            if float in _alternatives(field.annotation) and isinstance(text, str) and _FLOAT.fullmatch(text.strip()):
                values[name] = float(text)
        return values

    @pydantic.field_validator("*")
    @classmethod
    def _representable(cls, value: Any) -> Any:
        for item in value if isinstance(value, list) else value.values() if isinstance(value, dict) else (value,):
            if isinstance(item, float) and item and not _SMALLEST_FLOAT <= abs(item) <= _LARGEST_FLOAT:
                raise ValueError(
                    f"must be a number that float32 holds (0, or {_SMALLEST_FLOAT:.2g} to {_LARGEST_FLOAT:.2g} in "
                    f"size), as models compute in it; got {item:g}"
                )
            if isinstance(item, int) and abs(item) > _LARGEST:
                raise ValueError(f"must be at most {_LARGEST} (64 bits); got {item}")
            if isinstance(item, str) and ("\0" in item or not _encodable(item)):
                raise ValueError(f"must be text without null and surrogate characters; got {item!r}")
        return value


LONGEST_NAME = 200  # file systems take 255 bytes; what is made beside a run needs some of them


def folder_name(name: str) -> str:
    """The name, if it can be that of one folder; ValueError otherwise."""
    if not name.strip() or name in (".", "..") or re.search(r"[/\\\x00-\x1f\x7f]", name):
        raise ValueError(f"must be the name of one folder, without slashes and control characters; got {name!r}")
    if len(name.encode(errors="replace")) > LONGEST_NAME:
        raise ValueError(f"must be the name of one folder, of at most {LONGEST_NAME} bytes; got {len(name)} characters")
    return name


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


Schema = TypeVar("Schema", bound=Section)


def recipes_folder() -> Path:
    """The folder of shipped recipes: inside the installed package, or beside it in a checkout."""
    inside = Path(__file__).parents[1] / "recipes"
    return inside if inside.is_dir() else Path(__file__).parents[2] / "recipes"


def read_recipe(path: str | Path, overrides: Sequence[str], schema: type[Schema]) -> Schema:
    """Reads a recipe with what it extends, applies `a.b=value` overrides, and checks it all against the schema.

    Raises UserError for whatever the user can have got wrong.
    """
    file = _find(str(path), Path(), asked_by=None)
    sources: dict[tuple[str, ...], str] = {}
    try:
        values = _read_with_bases(file, (), sources)
    except RecursionError:
        raise UserError(f"{file}: nested too deeply, or an anchor that contains itself") from None
    for override in overrides:
        values = _override(values, override, sources)
    run = schema.model_fields.get("run")
    if run is not None and "name" in getattr(run.annotation, "model_fields", {}):
        section = values.setdefault("run", {})
        if isinstance(section, dict) and section.get("name") is None:
            section["name"] = file.stem
    try:
        return schema.model_validate(values)
    except pydantic.ValidationError as error:
        problems = [_explain(problem, values, schema, sources, str(file)) for problem in error.errors()]
        # A union reports each alternative that did not fit; to the user they are one mistake at one key.
        raise UserError("; ".join(dict.fromkeys(problems))) from None


# ---- files


class _Loader(yaml.SafeLoader):
    """SafeLoader that refuses a key given twice, of which YAML would silently keep the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        first: dict[str, int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == "tag:yaml.org,2002:merge":
                continue
            line = key.start_mark.line + 1
            if key.value in first:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key.value!r} is given twice (first on line {first[key.value]})", key.start_mark
                )
            first[key.value] = line
        return super().construct_mapping(node, deep)


def parse_yaml(text: str, source: str) -> Any:
    """The value that YAML describes; UserError naming the source for bad YAML, a repeated key, too deep nesting."""
    try:
        depth = 0
        for event in yaml.parse(text, Loader=_Loader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > _DEEPEST:
                raise RecursionError
        return yaml.load(text, Loader=_Loader)  # noqa: S506 (a SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f", line {mark.line + 1}" if mark else ""
        raise UserError(f"{source}{place}: bad YAML: {error.problem or error.context}") from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a scalar such as the date 2026-13-45
        raise UserError(f"{source}: bad YAML: {_one_line(error)}") from None
    except RecursionError:
        raise UserError(f"{source}: bad YAML: nested too deeply") from None


def _find(name: str, folder: Path, asked_by: Path | None) -> Path:
    """A file relative to `folder`, or a shipped recipe by its name, with or without `recipes/` and `.yaml`."""
    path = folder / Path(name).expanduser()
    if path.exists():
        return path
    shipped = {file.stem: file for file in sorted(recipes_folder().glob("*.yaml"))}
    asked = Path(name)
    stem = asked.name.removesuffix(".yaml")
    if stem in shipped and asked.parent in (Path(), Path("recipes")):
        return shipped[stem]
    close = difflib.get_close_matches(stem, shipped, n=1, cutoff=0.0)
    hint = f"the nearest shipped recipe is {close[0]}" if close else "no recipe is shipped here"
    if asked_by is not None:
        raise UserError(f"{asked_by}: extends: there is no recipe {path} nor a shipped one of that name; {hint}")
    raise UserError(f"there is no recipe {name}; {hint}")


def _read_with_bases(file: Path, above: tuple[Path, ...], sources: dict[tuple[str, ...], str]) -> dict[str, Any]:
    here = file.resolve()
    if here in above:
        chain = " -> ".join(step.name for step in (*above[above.index(here) :], here))
        raise UserError(f"{file}: extends goes in a circle: {chain}")
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UserError(f"{file}: not a text file in UTF-8, so not a recipe") from None
    except OSError as error:
        raise UserError(f"cannot read the recipe {file}: {error.strerror or error}") from None
    values = parse_yaml(text, str(file))
    if values is None:
        raise UserError(f"{file}: the recipe is empty; give it sections such as model, data, rollout, or `extends:`")
    if not isinstance(values, dict):
        raise UserError(f"{file}: a recipe is a mapping of sections (section: keys); got {_describe(values)}")
    base: dict[str, Any] = {}
    if "extends" in values:
        name = values.pop("extends")
        if not isinstance(name, str) or not name:
            raise UserError(f"{file}: extends must be the name of one recipe file; got {_describe(name)}")
        base = _read_with_bases(_find(name, file.parent, asked_by=file), (*above, here), sources)
    return _merge(base, values, (), str(file), sources)


def _merge(base: dict, over: dict, place: tuple, source: str, sources: dict) -> dict[str, Any]:
    """The child's keys over the base's, section by section; anything that is no mapping replaces what was there."""
    merged = dict(base)
    for key, value in over.items():
        key = str(key)  # a number as a key is an unknown key like any other
        here = (*place, key)
        sources[here] = source
        if isinstance(value, dict):
            under = merged.get(key)
            value = _merge(under if isinstance(under, dict) else {}, value, here, source, sources)
        merged[key] = value
    return merged


def _override(values: dict[str, Any], override: str, sources: dict[tuple[str, ...], str]) -> dict[str, Any]:
    key, equals, text = override.partition("=")
    parts = [part.strip() for part in key.split(".")]
    source = f"--set {override}"
    if not equals or not all(parts):
        raise UserError(f"{source}: wanted key=value with a dotted key, such as optim.learning_rate=1e-5")
    nested: Any = parse_yaml(text, source)
    for part in reversed(parts):
        nested = {part: nested}
    return _merge(values, nested, (), source, sources)


# ---- what a schema allows, and how to say what is wrong


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    """The members of a union with Annotated unwrapped, or the annotation alone."""
    if typing.get_origin(annotation) is typing.Annotated:
        return _alternatives(typing.get_args(annotation)[0])
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return tuple(part for member in typing.get_args(annotation) for part in _alternatives(member))
    return (annotation,)


def _subsection(annotation: Any) -> type[pydantic.BaseModel] | None:
    for part in _alternatives(annotation):
        if isinstance(part, type) and issubclass(part, pydantic.BaseModel):
            return part
    return None


def dotted_keys(schema: type[pydantic.BaseModel], prefix: str = "") -> Iterator[str]:
    """Every key of the schema as `section.key`, sections themselves included."""
    for name, field in schema.model_fields.items():
        yield prefix + name
        section = _subsection(field.annotation)
        if section is not None:
            yield from dotted_keys(section, f"{prefix}{name}.")


def nearest_key(schema: type[pydantic.BaseModel], place: Sequence[str]) -> str:
    """The valid dotted key that the unknown one at `place` most likely meant."""
    valid = list(dotted_keys(schema))
    unknown = place[-1].lower().replace("-", "_")
    for said in (unknown, unknown.rpartition(".")[2]):
        if SYNONYMS.get(said) in valid:
            return SYNONYMS[said]
    dotted = ".".join((*place[:-1], unknown))

    def likeness(candidate: str) -> float:
        leaf = candidate.rpartition(".")[2]
        by_leaf = difflib.SequenceMatcher(None, unknown, leaf).ratio()
        by_path = difflib.SequenceMatcher(None, dotted, candidate).ratio()
        at_home = candidate.rpartition(".")[0] == ".".join(place[:-1])
        return by_leaf + max(by_leaf, by_path) + 0.2 * at_home

    return max(valid, key=likeness)


def _explain(problem: Any, values: Any, schema: type[Section], sources: dict[tuple[str, ...], str], file: str) -> str:
    place = tuple(str(part) for part in problem["loc"])
    source = next((sources[place[:n]] for n in range(len(place), 0, -1) if place[:n] in sources), file)
    if problem["type"] == "extra_forbidden":
        section = f"section {'.'.join(place[:-1])}" if place[:-1] else "the top level"
        near = nearest_key(schema, place)
        if place[-1] == near:
            head, _, leaf = near.partition(".")
            return f"{source}: unknown key {near!r} at {section}; write it as {leaf} within the section {head}"
        return f"{source}: unknown key {place[-1]!r} in {section}; the nearest valid key is {near}"
    keys = _key_of(schema, place)
    key = ".".join(keys)
    if problem["type"] == "missing":
        return f"{source}: {key} is missing; it has no default"
    if problem["type"] == "value_error":
        return ": ".join(part for part in (source, key, _one_line(problem["ctx"]["error"])) if part)
    for part in keys:  # the whole value at the key: pydantic's input may be one item of a list
        values = values[part] if isinstance(values, dict) else problem["input"]
    return f"{source}: {key} must be {_wanted(schema, key, problem)}; got {_describe(values)}"


def _key_of(schema: type[pydantic.BaseModel], place: tuple[str, ...]) -> list[str]:
    """The part of an error's location that is keys, without the names pydantic gives to a union's alternatives."""
    keys: list[str] = []
    section: type[pydantic.BaseModel] | None = schema
    for part in place:
        if section is None or part not in section.model_fields:
            break
        keys.append(part)
        section = _subsection(section.model_fields[part].annotation)
    return keys or list(place)


_TYPE_WORDS = {int: "an integer", float: "a number", str: "a string", bool: "true or false", type(None): "null"}


def _wanted(schema: type[pydantic.BaseModel], key: str, problem: Any) -> str:
    bound = {
        "greater_than": "greater than {gt}",
        "greater_than_equal": "at least {ge}",
        "less_than": "less than {lt}",
        "less_than_equal": "at most {le}",
    }.get(problem["type"])
    if bound:
        return bound.format(**problem["ctx"])
    if problem["type"] == "finite_number":
        return "a finite number"
    annotation: Any = schema
    for part in key.split("."):
        field = annotation.model_fields.get(part) if annotation is not None else None
        if field is None:
            return _one_line(problem["msg"])
        found, annotation = field.annotation, _subsection(field.annotation)
    words = []
    for part in _alternatives(found):
        if typing.get_origin(part) is typing.Literal:
            words.extend(repr(choice) for choice in typing.get_args(part))
        elif typing.get_origin(part) is list:
            item = typing.get_args(part)[0]
            choices = typing.get_args(item) if typing.get_origin(item) is typing.Literal else ()
            words.append("a list of " + (", ".join(map(repr, choices)) or getattr(item, "__name__", "values")))
        elif part in _TYPE_WORDS:
            words.append(_TYPE_WORDS[part])
        elif isinstance(part, type) and issubclass(part, pydantic.BaseModel):
            words.append(f"a section with the keys {', '.join(part.model_fields)}")
    return " or ".join(words) or _one_line(problem["msg"])


_KINDS = {
    str: "a string",
    bool: "a boolean",
    int: "an integer",
    float: "a number",
    list: "a list",
    dict: "a mapping",
}


def _describe(value: Any) -> str:
    if value is None:
        return "null (nothing after the colon)"
    text = _one_line(repr(value))
    text = text if len(text) <= 60 else text[:57] + "..."
    kind = _KINDS.get(type(value), f"a {type(value).__name__}")
    return f"{text} ({kind})"


def _one_line(value: Any) -> str:
    return " ".join(str(value).split())
