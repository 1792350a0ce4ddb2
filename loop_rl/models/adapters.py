"""Low-rank adapters: which layers of a looped model get one, the model wrapped by PEFT, and adapters merged into it."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from loop_rl.errors import UserError
from loop_rl.models import LoopedForCausalLM
from loop_rl.models.injections.huginn_linear import HuginnLinear

if TYPE_CHECKING:
    from loop_rl.recipe.rl import LoraSection

#: of a checkpoint: the adapters alone, beside the merged model, under PEFT's names
ADAPTER_FILE = "adapter.safetensors"

#: the modules of each part; the injection is applied at every recurrence, the readout once after the last
PARTS = {
    "prelude": ("model.prelude.",),
    "core": ("model.injection.", "model.core."),
    "coda": ("model.readout", "model.coda."),
}
_HEAD, _EMBEDDING, _GATE = "lm_head", "model.embed_tokens", "model.exit_gate"


def adapted_layers(looped: LoopedForCausalLM, lora: LoraSection) -> dict[str, nn.Module]:
    """The layers that get an adapter, by name; the model may be on the meta device.

    all-linear is every linear layer but the head, and but the exit gate, which takes part in no loss.

    Raises:
        UserError: a name that no layer has, a layer that can't be adapted, nothing left in the parts, or a rank that
            no layer has.
    """
    named = dict(looped.named_modules())
    if lora.target_modules == "all-linear":
        left_out = {_HEAD, _GATE, *_applied_in_halves(looped)}
        chosen = {n: m for n, m in named.items() if isinstance(m, nn.Linear) and n not in left_out}
    else:
        chosen = {}
        for target in lora.target_modules:
            found = {n: m for n, m in named.items() if n == target or n.endswith(f".{target}")}
            if not found:
                raise UserError(f"lora.target_modules: the model has no module {target!r}; {_known(looped)}")
            for name, module in found.items():
                _check_adaptable(looped, target, name, module)
            chosen |= found
    if lora.parts is None:
        return _of_rank(chosen, lora.r)
    prefixes = tuple(prefix for part in lora.parts for prefix in PARTS[part])
    kept = {name: module for name, module in chosen.items() if name.startswith(prefixes)}
    if not kept:
        held = [part for part, places in PARTS.items() if any(name.startswith(places) for name in chosen)]
        raise UserError(
            f"lora.parts: nothing to adapt in {', '.join(lora.parts) or 'an empty list'}; "
            f"lora.target_modules lie in {', '.join(held) or 'no part'}"
        )
    return _of_rank(kept, lora.r)


def _of_rank(layers: dict[str, nn.Module], r: int) -> dict[str, nn.Module]:
    """These layers; UserError for a rank that not even the widest of them has."""
    full = max(min(layer.weight.shape) for layer in layers.values())  # type: ignore[arg-type, union-attr]
    if r > full:
        raise UserError(f"lora.r ({r}) is more than the full rank of every adapted layer (at most {full}); lower it")
    return layers


def adapted(looped: LoopedForCausalLM, lora: LoraSection) -> nn.Module:
    """The model wrapped by PEFT, its own weights frozen; UserError as `adapted_layers`.

    The layers are replaced in the model itself, which then computes with its adapters. They are float32 in a bfloat16
    model, and what a layer adds up is rounded to the model's dtype: W x + B A x, never W + B A.
    """
    from peft import LoraConfig, get_peft_model

    settings = LoraConfig(
        r=lora.r,
        lora_alpha=lora.lora_alpha,
        lora_dropout=lora.lora_dropout,
        target_modules=list(adapted_layers(looped, lora)),
        task_type="CAUSAL_LM",
    )
    with warnings.catch_warnings():  # PEFT asks by the name that transformers has deprecated
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
        return get_peft_model(looped, settings)


def merged_weights(looped: LoopedForCausalLM) -> dict[str, Tensor]:
    """The state dict of the plain model: W + B A in the place of each adapted layer; without adapters, the model's own.

    A bfloat16 model with adapters gives float32, all of it: of a bfloat16 sum nothing below its last bit would stay.
    """
    layers = {name: m for name, m in looped.named_modules() if hasattr(m, "get_delta_weight")}
    state = looped.state_dict()
    if not layers:
        return state
    precise: dict[int, Tensor] = {}  # a tensor under two names, such as a tied head, stays one
    merged: dict[str, Tensor] = {}
    for name, value in state.items():
        if ".lora_" not in name:
            merged[name.replace(".base_layer", "")] = precise.setdefault(value.data_ptr(), _precise(value))
    for name, layer in layers.items():
        for adapter in layer.active_adapters:
            merged[f"{name}.weight"] = merged[f"{name}.weight"] + layer.get_delta_weight(adapter).detach()
    return merged


def save_adapters(model: nn.Module, folder: Path) -> None:
    """The adapters of a model that `adapted` wrapped, in one file."""
    save_file({name: p.contiguous() for name, p in _adapters(model).items()}, folder / ADAPTER_FILE)


def load_adapters(model: nn.Module, folder: Path) -> None:
    """Undo `save_adapters`. Raises ValueError for a file of other adapters, or of a part of them."""
    own, saved = _adapters(model), load_file(folder / ADAPTER_FILE)
    shapes, expected = ({name: tuple(value.shape) for name, value in side.items()} for side in (saved, own))
    if shapes != expected:
        differ = sorted(name for name in {**shapes, **expected} if shapes.get(name) != expected.get(name))
        raise ValueError(f"{ADAPTER_FILE} lacks {differ[0]} of the recipe's lora, or has it of another shape")
    with torch.no_grad():
        for name, value in saved.items():
            own[name].copy_(value)


def _adapters(model: nn.Module) -> dict[str, Tensor]:
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def _precise(value: Tensor) -> Tensor:
    return value.float() if value.dtype in (torch.bfloat16, torch.float16) else value


def adapter_size(layer: nn.Module, r: int) -> int:
    """Parameters of one adapter: r rows and r columns."""
    if isinstance(layer, nn.Embedding):
        return r * (layer.num_embeddings + layer.embedding_dim)
    assert isinstance(layer, nn.Linear)
    return r * (layer.in_features + layer.out_features)


def _check_adaptable(looped: LoopedForCausalLM, target: str, name: str, module: nn.Module) -> None:
    if not isinstance(module, nn.Linear | nn.Embedding):
        raise UserError(
            f"lora.target_modules: {target!r} is a {type(module).__name__}, which has no adapter; {_known(looped)}"
        )
    if name in (_HEAD, _EMBEDDING) and looped.config.tie_word_embeddings:
        raise UserError(
            f"lora.target_modules: {target!r} is one matrix with the {'embedding' if name == _HEAD else 'head'} in "
            "this model, of which an adapter would change one half; leave it out"
        )
    if name in _applied_in_halves(looped):
        raise UserError(f"lora.target_modules: {target!r} is applied in two halves, past an adapter; leave it out")


def _applied_in_halves(looped: LoopedForCausalLM) -> list[str]:
    return ["model.injection.linear"] if isinstance(looped.model.injection, HuginnLinear) else []


def _known(looped: LoopedForCausalLM) -> str:
    linear = {name.rpartition(".")[2] for name, module in looped.named_modules() if isinstance(module, nn.Linear)}
    return f"its linear layers are {', '.join(sorted(name for name in linear if not name.isdigit()))}"
