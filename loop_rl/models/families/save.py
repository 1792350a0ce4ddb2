"""Saving a model in the layout of the family that its weights came from."""

import json
from pathlib import Path

from huggingface_hub import split_torch_state_dict_into_shards
from safetensors.torch import save_file
from torch import Tensor

from loop_rl.errors import UserError
from loop_rl.models.config import LoopedConfig
from loop_rl.models.families.files import INDEX, SAFETENSORS
from loop_rl.models.families.layout import HEAD, Family, fuse
from loop_rl.models.families.load import FAMILIES
from loop_rl.models.looped import LoopedForCausalLM


def family_state(model: LoopedForCausalLM) -> dict[str, Tensor]:
    """The model's tensors under its family's names: bits moved, none computed but the rotary tables.

    Raises:
        UserError: the model was not converted from a family's checkpoint.
    """
    family = _family(model.config)
    ours = model.state_dict()
    state = {entry.theirs: fuse(entry, ours) for entry in family.entries(model.config)}
    if model.config.tie_word_embeddings:
        state[HEAD] = state[family.embedding].clone()  # both copies are stored
    return {**state, **family.computed(model.config)}


def save_family_checkpoint(model: LoopedForCausalLM, folder: str | Path, max_shard_size: int | str = "5GB") -> None:
    """Write config.json, generation_config.json and safetensors in the family's layout.

    config.json is the one that was loaded, with the model's depth. Tokenizer files and the family's own code, which
    was never read, are for the caller to copy.

    Raises:
        UserError: the model was not converted from a family's checkpoint.
    """
    family, state, folder = _family(model.config), family_state(model), Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    raw = {**(model.config.checkpoint_config or {}), family.depth_key: model.config.depth}
    (folder / "config.json").write_text(json.dumps(raw, indent=2) + "\n")
    model.generation_config.save_pretrained(folder)
    shards = split_torch_state_dict_into_shards(state, max_shard_size=max_shard_size)
    for name, keys in shards.filename_to_tensors.items():
        save_file({key: state[key].contiguous() for key in keys}, folder / name, metadata={"format": "pt"})
    if shards.is_sharded:
        index = {"metadata": shards.metadata, "weight_map": shards.tensor_to_filename}
        (folder / (SAFETENSORS + INDEX)).write_text(json.dumps(index, indent=2) + "\n")


def _family(config: LoopedConfig) -> Family:
    for family in FAMILIES:
        if family.name == config.checkpoint_family:
            return family
    raise UserError("the model was not loaded from a released family's checkpoint; save it with save_pretrained")
