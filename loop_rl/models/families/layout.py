"""A released family's layout: how its config and its tensors correspond to ours, in both directions."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from loop_rl.errors import UserError, first_line
from loop_rl.models.config import LLAMA3_ROPE, LoopedConfig
from loop_rl.models.looped import LoopedForCausalLM
from loop_rl.models.rope import llama3_scaled

Raw = Mapping[str, Any]
Shape = tuple[int, ...]

HEAD = "lm_head.weight"


@dataclass(frozen=True)
class Entry:
    """One tensor of a family's files: ours, stacked along their first axis, then seen in `shape` (None: as stacked)."""

    theirs: str
    ours: tuple[str, ...]
    shape: Shape | None = None


@dataclass(frozen=True)
class Family:
    """One released layout.

    named: whether a config.json is of the family. present: whether these tensor names are. config: their config.json,
    and the names of their tensors where they are known, to our configuration. entries: every tensor, once. computed:
    tensors that their files hold and ours do not (rotary tables): ignored on loading, written on saving. depth_key:
    their key for our `depth`. embedding: their name of the embedding, which a tied head repeats as HEAD.
    """

    name: str
    named: Callable[[Raw], bool]
    present: Callable[[frozenset[str]], bool]
    config: Callable[[Raw, frozenset[str] | None], LoopedConfig]
    entries: Callable[[LoopedConfig], list[Entry]]
    depth_key: str
    embedding: str
    computed: Callable[[LoopedConfig], dict[str, Tensor]] = lambda config: {}


def our_shapes(config: LoopedConfig) -> dict[str, Shape]:
    """Names and shapes of our tensors, a tied head left out.

    Raises:
        UserError: the config's sizes make no model.
    """
    try:
        with torch.device("meta"):
            model = LoopedForCausalLM(config)
    except (TypeError, RuntimeError, ValueError) as error:
        raise UserError(f"config.json has sizes of which no model can be built ({first_line(error)})") from error
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    if config.tie_word_embeddings:
        del shapes[HEAD]
    return shapes


def their_shape(entry: Entry, ours: Mapping[str, Shape]) -> Shape:
    """The shape that an entry has in the family's files."""
    if entry.shape is not None:
        return entry.shape
    pieces = [ours[name] for name in entry.ours]
    return (sum(piece[0] for piece in pieces), *pieces[0][1:])


def split(entry: Entry, tensor: Tensor, ours: Mapping[str, Shape]) -> dict[str, Tensor]:
    """Their tensor as ours, views of it: bits are moved, never computed."""
    shapes = [ours[name] for name in entry.ours]
    pieces = tensor.reshape(-1, *shapes[0][1:]).split([shape[0] for shape in shapes])
    return {name: piece.view(ours[name]) for name, piece in zip(entry.ours, pieces, strict=True)}


def fuse(entry: Entry, state: Mapping[str, Tensor]) -> Tensor:
    """Undo `split`; a single tensor is not copied."""
    pieces = [state[name] for name in entry.ours]
    tensor = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
    return tensor if entry.shape is None else tensor.view(entry.shape)


def numbered(prefix: str, config: LoopedConfig, parts: tuple[str, str, str]) -> list[tuple[str, str]]:
    """(their block, our block) for every layer, with their names of prelude, core and coda."""
    sizes = (config.prelude_layers, config.core_layers, config.coda_layers)
    return [
        (f"{prefix}{theirs}.{index}.", f"model.{ours}.{index}.")
        for theirs, ours, size in zip(parts, ("prelude", "core", "coda"), sizes, strict=True)
        for index in range(size)
    ]


def field(raw: Raw, *names: str) -> Any:
    """The first of these keys that the config has.

    Raises:
        UserError: it has none of them.
    """
    for name in names:
        if raw.get(name) is not None:
            return raw[name]
    raise UserError(f"config.json has no {' or '.join(names)}; copy the released config.json")


def require(raw: Raw, **supported: Any) -> None:
    """Refuse a config that asks for something this project has no part for; keys it lacks are fine.

    Raises:
        UserError: a key has another value.
    """
    for name, value in supported.items():
        if name in raw and raw[name] != value:
            raise UserError(f"config.json sets {name} to {raw[name]!r}; only {value!r} is supported")


def rope(raw: Raw, *theta: str) -> dict[str, Any]:
    """LoopedConfig's `rope_theta` and `llama3_rope`, from rope_theta and rope_scaling, or from rope_parameters, in
    which transformers 5 writes both. theta: the family's own names of rope_theta, which yield to these.

    Raises:
        UserError: no theta, a scaling of another type than llama3, or two spellings that disagree.
    """
    newer = raw.get("rope_parameters") or {}
    if any(isinstance(value, Mapping) for value in newer.values()):
        raise UserError("config.json has rope_parameters by type of layer; only one for all layers is supported")
    require(newer, partial_rotary_factor=1.0)
    scalings = [llama3_rope(raw["rope_scaling"])] if raw.get("rope_scaling") else []
    if "rope_type" in newer or "type" in newer:
        scalings.append(llama3_rope(newer))
    thetas = [float(place["rope_theta"]) for place in (raw, newer) if place.get("rope_theta") is not None]
    for name, found in (("scaling", scalings), ("rope_theta", thetas)):
        if len(found) == 2 and found[0] != found[1]:
            raise UserError(
                f"config.json has another {name} in rope_parameters ({found[1]}) than in its older keys ({found[0]}); "
                "remove the wrong one"
            )
    return {
        "rope_theta": thetas[0] if thetas else float(field(raw, *theta, "rope_theta")),
        "llama3_rope": scalings[0] if scalings else None,
    }


def llama3_rope(scaling: Mapping[str, Any]) -> dict[str, float] | None:
    """The four numbers of a scaling of type llama3, or None where there is none.

    Raises:
        UserError: another type.
    """
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "default":
        return None
    if kind != "llama3":
        raise UserError(f"config.json asks for rope_scaling of type {kind!r}; only llama3 is supported")
    return {name: float(field(scaling, name)) for name in LLAMA3_ROPE}


def token_ids(raw: Raw) -> dict[str, Any]:
    """Special token ids that the config names."""
    names = ("bos_token_id", "eos_token_id", "pad_token_id")
    return {name: raw[name] for name in names if raw.get(name) is not None}


def like_init_std(width: int) -> float:
    """Standard deviation of the families' embeddings and initial states at this width, sqrt(2 / (5 width))."""
    return math.sqrt(2.0 / (5.0 * width))


def freqs_cis(config: LoopedConfig, positions: int) -> Tensor:
    """cos and sin tables as Huginn and Parcae store them: float32 [1, positions, 1, head_dim / 2, 2]."""
    exponents = torch.arange(0, config.head_dim, 2).float() / config.head_dim
    turned = 1.0 / (config.rope_theta**exponents)
    if config.llama3_rope is not None:
        turned = llama3_scaled(turned, **config.llama3_rope)
    angles = torch.outer(torch.arange(positions).float(), turned)
    return torch.stack((angles.cos(), angles.sin()), dim=-1)[None, :, None]
