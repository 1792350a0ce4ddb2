"""Loading a looped model of any known layout: detect the family, convert, and accept nothing that does not fit."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError

from loop_rl.errors import UserError, first_line
from loop_rl.models.config import LoopedConfig
from loop_rl.models.families.files import WeightFiles, read_json
from loop_rl.models.families.huginn import HUGINN
from loop_rl.models.families.layout import HEAD, Family, Raw, our_shapes, split, their_shape
from loop_rl.models.families.ouro import OURO
from loop_rl.models.families.parcae import PARCAE
from loop_rl.models.families.recurrent import RETROFIT
from loop_rl.models.generation import read_generation_config
from loop_rl.models.looped import LoopedForCausalLM

#: our own name of it
_EMBEDDING = "model.embed_tokens.weight"

FAMILIES: tuple[Family, ...] = (HUGINN, RETROFIT, OURO, PARCAE)


def find_family(raw: Raw, keys: frozenset[str] | None = None) -> Family:
    """The family of a config.json and, where they are known, of the tensors' names, which decide between variants.

    Raises:
        UserError: the config is of no known family, or of another one than the tensors.
    """
    named = [family for family in FAMILIES if family.named(raw)]
    if not named:
        kind = raw.get("model_type") or raw.get("_class_name")
        known = ", ".join(family.name for family in FAMILIES)
        if kind is None:
            raise UserError(f"config.json names no model_type; looped checkpoints are known of {known} and our own")
        raise UserError(f"config.json is of a {kind} model, which is not looped (known: {known} and our own)")
    if keys is None:
        return named[0] if len(named) == 1 or raw.get("qk_bias", True) else RETROFIT
    found = next((family for family in FAMILIES if family.present(keys)), named[0])
    if found not in named:
        raise UserError(f"config.json is of {named[0].name}, but the tensors are of {found.name}; copy both again")
    return found


def looped_config(raw: Raw, keys: frozenset[str] | None = None) -> LoopedConfig:
    """Our configuration for a family's config.json; with `keys`, the tensors' names, of exactly its variant.

    Raises:
        UserError: unknown family, a key missing, or something asked for that no part of ours does.
    """
    family = find_family(raw, keys)
    try:
        config = family.config(raw, keys)
    except (TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise UserError(f"config.json has a value that can't be used ({first_line(error)}); copy it again") from error
    config.checkpoint_family, config.checkpoint_config = family.name, dict(raw)
    return config


def read_config(place: str | Path, with_weights: bool = True) -> LoopedConfig:
    """The configuration of the model in a folder, or in a config.json alone; without weights beside it, of the
    likeliest variant of its family.

    Raises:
        UserError: as `load_checkpoint`, as far as names tell.
    """
    place = Path(place)
    folder, file = (place.parent, place) if place.is_file() else (place, place / "config.json")
    raw = read_json(file)
    if raw.get("model_type") == LoopedConfig.model_type:
        return LoopedConfig.from_pretrained(file)
    with _in(folder):
        find_family(raw)  # before any weights are opened
        return looped_config(raw, frozenset(WeightFiles(folder).shapes) if with_weights else None)


def load_checkpoint(folder: str | Path, dtype: torch.dtype = torch.float32) -> LoopedForCausalLM:
    """The model in a folder, of our own layout or a released family's, in evaluation mode on the CPU.

    No code of the folder is run, and a .bin is read as tensors only.

    Raises:
        UserError: damaged or missing files, an unknown family, or tensors that do not fit the config: the first one
            that is missing, left over or of another shape is named. Also a head that is tied and differs.
    """
    folder = Path(folder)
    raw = read_json(folder / "config.json")
    if raw.get("model_type") == LoopedConfig.model_type:
        return _load_own(folder, dtype)
    with _in(folder):
        find_family(raw)  # before any weights are opened
        files = WeightFiles(folder)
        keys = frozenset(files.shapes)
        family, config = find_family(raw, keys), looped_config(raw, keys)
    check_fit(folder, config, files, family)
    _check_tied_head(folder, config, files, family.embedding)
    generation = read_generation_config(folder, config)
    ours = our_shapes(config)
    state = {}
    for entry in family.entries(config):
        for name, piece in split(entry, files.tensor(entry.theirs), ours).items():
            state[name] = piece.to(dtype, copy=True)
    with torch.device("meta"):
        model = LoopedForCausalLM(config)
    if config.tie_word_embeddings:
        state[HEAD] = state["model.embed_tokens.weight"]
    model.load_state_dict(state, assign=True)
    model.tie_weights()
    config.dtype = dtype
    model.generation_config = generation
    return model.eval()


@contextmanager
def _in(folder: Path) -> Iterator[None]:
    """Says of a fault in a config.json which one it is."""
    try:
        yield
    except UserError as error:
        message = str(error)
        raise UserError(message if str(folder) in message else f"{folder}: {message}") from error


def _load_own(folder: Path, dtype: torch.dtype) -> LoopedForCausalLM:
    config, files = read_config(folder), WeightFiles(folder)
    check_fit(folder, config, files, None)
    _check_tied_head(folder, config, files, _EMBEDDING)
    try:
        model = LoopedForCausalLM.from_pretrained(folder, dtype=dtype)
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise UserError(
            f"the checkpoint {folder} can't be read ({first_line(error)}); it may be cut short: copy it again"
        ) from error
    model.generation_config = read_generation_config(folder, model.config)
    return model.eval()


def _check_tied_head(folder: Path, config: LoopedConfig, files: WeightFiles, embedding: str) -> None:
    """UserError where a head that the config ties is stored as well, and is another matrix than the embedding."""
    if config.tie_word_embeddings and HEAD in files.shapes:
        if not torch.equal(files.tensor(HEAD), files.tensor(embedding)):
            raise UserError(f"config.json in {folder} ties the head, but {HEAD} differs from {embedding}")


def check_fit(folder: Path, config: LoopedConfig, files: WeightFiles, family: Family | None) -> list[str]:
    """By names and shapes alone: every tensor there, of its shape, and none left over. Returns the names of those that
    are passed over: what is computed anyway, and a tied head's copy. `family` None: our own layout.

    Raises:
        UserError: the first tensor that is missing, left over or of another shape.
    """
    expected, shapes = our_shapes(config), files.shapes
    ignored = {HEAD} if config.tie_word_embeddings else set()
    if family is not None:
        expected = {entry.theirs: their_shape(entry, expected) for entry in family.entries(config)}
        ignored |= set(family.computed(config))
    missing, unexpected = expected.keys() - shapes.keys(), shapes.keys() - expected.keys() - ignored
    mismatched = [
        f"{name} of shape {list(shapes[name])}, not {list(shape)}"
        for name, shape in expected.items()
        if name in shapes and shapes[name] != shape
    ]
    for kind, names in (("missing keys", missing), ("unexpected keys", unexpected), ("mismatched keys", mismatched)):
        if names:
            _refuse(folder, kind, list(names))
    return sorted(ignored & shapes.keys())


def _refuse(folder: Path, kind: str, names: list[str]) -> None:
    raise UserError(f"the weights in {folder} do not fit its config.json: {len(names)} {kind}, such as {min(names)}")
