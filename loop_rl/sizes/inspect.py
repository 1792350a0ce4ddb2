"""`loop-rl inspect`: what a looped model is made of and what it needs, from its config and its files' headers alone."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from loop_rl.errors import UserError
from loop_rl.fixed_point import FullBPTT, Neumann, Reuse
from loop_rl.models import LoopedConfig, LoopedForCausalLM
from loop_rl.models.attention.terminal import cache_floats
from loop_rl.models.families import find_family, read_config
from loop_rl.models.families.files import WeightFiles, read_json, weights_file
from loop_rl.models.families.layout import HEAD
from loop_rl.models.families.load import check_fit
from loop_rl.models.generation import end_tokens, read_generation_config
from loop_rl.models.loading import config_folder, load_tokenizer
from loop_rl.recipe.rl import RolloutSection
from loop_rl.sizes.memory import activations, readable

ITEMS = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}

#: parts of a model by the names of their parameters, in the order of a forward pass
PARTS = {
    "embedding": "model.embed_tokens.",
    "value embeddings": "model.value_embeddings.",
    "prelude": "model.prelude.",
    "injection": "model.injection.",
    "core": "model.core.",
    "exit gate": "model.exit_gate.",
    "readout": "model.readout.",
    "coda": "model.coda.",
    "final norm": "model.norm.",
    "head": HEAD,
}
_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")


def inspect(path: str, batch: int, length: int, depth: int | None, dtype: str | None) -> dict[str, Any]:
    """Everything that is shown, as plain data: sizes in bytes, parameters as numbers.

    Args:
        path: as a recipe's model.path, or a config.json of any name. batch, length: rows and tokens that memory is
            counted for. depth: recurrences; None: the model's own. dtype: None: that of the files.

    Raises:
        UserError: nothing there, not a looped model, damaged files, or tensors that do not fit the config.
    """
    place = Path(path) if Path(path).is_file() else config_folder(path)
    raw = read_json(place if place.is_file() else place / "config.json")
    with_weights = place.is_dir() and weights_file(place) is not None
    config = read_config(place, with_weights)
    own = raw.get("model_type") == LoopedConfig.model_type
    stored, ignored = None, []
    tokenizer = (
        load_tokenizer(place, config) if place.is_dir() and (place / "tokenizer_config.json").is_file() else None
    )
    generation = read_generation_config(place if place.is_dir() else place.parent, config)
    if with_weights:
        files = WeightFiles(place)
        family = None if own else find_family(raw, frozenset(files.shapes))
        ignored = check_fit(place, config, files, family)
        stored = _stored(place, files, ignored)
    if dtype is None:
        kinds = list(stored["dtypes"]) if stored else []
        dtype = kinds[0] if kinds and kinds[0] in ITEMS else "float32"
    depth = config.depth if depth is None else depth
    parts = parameters(config)
    return {
        "path": path,
        "family": "own" if own else config.checkpoint_family,
        "converted_from": config.checkpoint_family if own else None,
        "layout": layout(config),
        "end_tokens": list(end_tokens(config, generation, tokenizer)),
        "parameters": parts,
        "total_parameters": sum(parts.values()),
        "files": stored,
        "memory": {
            "dtype": dtype,
            "batch": batch,
            "length": length,
            "depth": depth,
            "bytes": memory(config, sum(parts.values()), batch, length, depth, ITEMS[dtype]),
        },
        "notes": notes(raw, config, stored, ignored, length),
    }


def parameters(config: LoopedConfig) -> dict[str, int]:
    """Numbers of parameters by part, of the parts that the model has; a tied head has none of its own.

    Raises:
        UserError: the config's sizes make no model.
    """
    try:
        with torch.device("meta"):
            model = LoopedForCausalLM(config)
    except (TypeError, RuntimeError, ValueError) as error:
        raise UserError(f"config.json has sizes of which no model can be built ({error})") from error
    counts = dict.fromkeys(PARTS, 0)
    for name, parameter in model.named_parameters():
        counts[next(part for part, prefix in PARTS.items() if name.startswith(prefix))] += parameter.numel()
    return {part: count for part, count in counts.items() if count}


def layout(config: LoopedConfig) -> dict[str, Any]:
    """How the model is built, in the config's words."""
    names = (
        "prelude_layers", "core_layers", "coda_layers", "depth", "hidden_size", "intermediate_size",
        "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size", "max_position_embeddings", "injection",
        "initial_state", "initial_state_std", "norm_placement", "final_norm", "rms_norm_eps", "mlp", "qk_bias",
        "qk_norm", "rope_theta", "rope_layout", "llama3_rope", "value_embedding_layers", "embedding_multiplier",
        "readout", "exit_gate", "tie_word_embeddings", *_TOKENS,
    )  # fmt: skip
    return {name: getattr(config, name) for name in names}


def memory(
    config: LoopedConfig, parameter_count: int, batch: int, length: int, depth: int, item: int
) -> dict[str, int]:
    """Bytes: what sampling holds, then what training all weights adds. Estimates as in a recipe's dry run."""
    tokens, rollout = batch * length, RolloutSection(max_completion_length=length)
    return {
        "weights": parameter_count * item,
        "full KV cache": tokens * cache_floats(config, depth, terminal=False) * item,
        "terminal KV cache": tokens * cache_floats(config, depth, terminal=True) * item,
        "saved states": tokens * config.hidden_size * item,
        "gradients": parameter_count * item,
        "Adam": 2 * parameter_count * item,
    } | {
        f"activations, {estimator.name}": activations(config, estimator, depth, batch, length, rollout, item)
        for estimator in (Reuse(Neumann(4)), FullBPTT())
    }


def notes(
    raw: dict[str, Any], config: LoopedConfig, stored: dict[str, Any] | None, ignored: list[str], length: int
) -> list[str]:
    """What is passed over or read otherwise than the files say, and what to know before training."""
    found = []
    if stored is None:
        found.append("no weights here: sizes follow from config.json alone, and nothing was compared with them")
        if config.checkpoint_family == "retrofit":
            found.append("retrofits of Llama and of OLMo are told apart by their tensors; taken for Llama's here")
    for name in ignored:
        found.append(
            f"{name} is a second copy of the embedding; loading compares the two and keeps one"
            if name == HEAD
            else f"{name} is ignored: rotary tables are computed in float32"
        )
    if stored is not None and len(stored["dtypes"]) > 1:
        found.append("tensors are of several types: " + ", ".join(f"{n} of {k}" for k, n in stored["dtypes"].items()))
    claimed = str(raw.get("torch_dtype") or raw.get("dtype") or "").removeprefix("torch.")
    if stored is not None and claimed and claimed not in stored["dtypes"]:
        found.append(f"config.json says {claimed}, the tensors are {next(iter(stored['dtypes']))}")
    changed = [name for name in _TOKENS if raw.get(name) is not None and raw[name] != getattr(config, name)]
    if changed:
        became = ", ".join(f"{name} {raw[name]} is read as {getattr(config, name)}" for name in changed)
        found.append(f"special tokens that the released config.json has wrong: {became}")
    if "auto_map" in raw:
        found.append("the code that config.json names (auto_map) is neither fetched nor run")
    if config.exit_gate:
        found.append("the loop always runs to its last recurrence; the exit gate's threshold is ignored")
    if config.initial_state == "embedding":
        found.append("the input reaches the loop only as its initial state: an estimator but full_bptt gives the "
                     "embedding no gradient")  # fmt: skip
    if length > config.max_position_embeddings:
        found.append(f"{length} tokens are more than the {config.max_position_embeddings} that the model is made for")
    return found


def _stored(folder: Path, files: WeightFiles, ignored: list[str]) -> dict[str, Any]:
    """The weights' files: types of what is loaded with numbers of tensors, most numbers first."""
    numbers: Counter[str] = Counter()
    tensors: Counter[str] = Counter()
    for name, shape in files.shapes.items():
        if name not in ignored:
            numbers[files.dtypes[name]] += math.prod(shape)
            tensors[files.dtypes[name]] += 1
    return {
        "main": weights_file(folder).name,  # type: ignore[union-attr]
        "tensors": len(files.shapes),
        "loaded_numbers": sum(numbers.values()),
        "dtypes": {kind: tensors[kind] for kind, _ in numbers.most_common()},
        "ignored": ignored,
    }


def as_text(found: dict[str, Any]) -> str:
    """For a terminal."""
    shape, stored, needs = found["layout"], found["files"], found["memory"]
    origin = f", converted from {found['converted_from']}" if found["converted_from"] else ""
    lines = [f"{found['path']}: {_article(found['family'])}{origin}", "", "layout"]
    scaling = ", Llama 3 scaling" if shape["llama3_rope"] else ""
    extras = [
        name
        for name, present in (
            ("bias on queries and keys", shape["qk_bias"]),
            (f"RMSNorm of queries and keys ({shape['qk_norm']})", shape["qk_norm"]),
            (f"value embeddings in layers {shape['value_embedding_layers']}", shape["value_embedding_layers"]),
            ("linear readout", shape["readout"]),
            ("exit gate", shape["exit_gate"]),
            (f"embedding times {shape['embedding_multiplier']:.6g}", shape["embedding_multiplier"] != 1),
            ("tied head", shape["tie_word_embeddings"]),
        )
        if present
    ]
    drawn = "" if shape["initial_state"] == "embedding" else f", std {shape['initial_state_std']:.4g}"
    lines += _rows(
        {
            "layers": f"{shape['prelude_layers']} prelude, {shape['core_layers']} core x {shape['depth']} recurrences, "
            f"{shape['coda_layers']} coda",
            "width": f"{shape['hidden_size']}, MLP {shape['intermediate_size']} ({shape['mlp']}), "
            f"{shape['num_attention_heads']} heads of {shape['head_dim']}, {shape['num_key_value_heads']} key-value",
            "norms": f"{shape['norm_placement']}, final {shape['final_norm']}, eps {shape['rms_norm_eps']:.0e}",
            "injection": shape["injection"],
            "initial state": shape["initial_state"] + drawn,
            "rope": f"{shape['rope_layout']}, theta {shape['rope_theta']:.10g}{scaling}",
            "vocabulary": f"{shape['vocab_size']}, context {shape['max_position_embeddings']}",
            "tokens": ", ".join(f"{name.removesuffix('_token_id')} {shape[name]}" for name in _TOKENS),
            "ends": f"a completion ends with {', '.join(map(str, found['end_tokens'])) or 'no token'}",
            "also": ", ".join(extras) or "-",
        }
    )
    lines += ["", "parameters"]
    lines += _rows({part: f"{count:,}" for part, count in found["parameters"].items()}, right=True)
    lines += _rows({"total": f"{found['total_parameters']:,}"}, right=True)
    if stored:
        kinds = ", ".join(stored["dtypes"])
        lines.append(f"  {stored['main']}: {stored['tensors']} tensors, {kinds}; names and shapes fit")
    lines += ["", "memory of {batch} x {length} tokens, depth {depth}, {dtype}".format(**needs)]
    lines += _rows({part: readable(size) for part, size in needs["bytes"].items()}, right=True)
    if found["notes"]:
        lines += ["", "notes", *(f"  {note}" for note in found["notes"])]
    return "\n".join(lines) + "\n"


def _article(family: str) -> str:
    return "our own layout" if family == "own" else f"the layout of {family}"


def _rows(values: dict[str, str], right: bool = False) -> list[str]:
    return [f"  {name:<28}{value:>18}" if right else f"  {name:<16}{value}" for name, value in values.items()]
