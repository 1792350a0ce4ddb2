"""Huginn-0125: norms after each residual sum, a bias on queries and keys, interleaved RoPE, ln_f around the coda."""

import math

from torch import Tensor

from loop_rl.errors import UserError
from loop_rl.models.config import LoopedConfig
from loop_rl.models.families import raven
from loop_rl.models.families.layout import Family, Raw, field, freqs_cis, like_init_std


def present(keys: frozenset[str]) -> bool:
    """Four norms a block."""
    return raven.ADAPTER in keys and any(key.endswith((".norm_3.weight", ".norm_4.weight")) for key in keys)


def config(raw: Raw, keys: frozenset[str] | None) -> LoopedConfig:
    """The state is drawn at the scale of the embedding, which is multiplied by sqrt(width)."""
    values, width = raven.sizes(raw), field(raw, "n_embd")
    qk_bias = bool(raw.get("qk_bias", True))
    if qk_bias and values["num_key_value_heads"] != values["num_attention_heads"]:
        raise UserError("config.json sets qk_bias with fewer key-value heads than heads; Huginn's layout has no such")
    return LoopedConfig(
        **values,
        **raven.initial_values(raw, like_init_std(width), math.sqrt(width)),
        norm_placement="sandwich_sum",
        final_norm="around_coda",
        qk_bias=qk_bias,
        rope_layout="interleaved",
    )


def computed(config: LoopedConfig) -> dict[str, Tensor]:
    """The rotary tables."""
    raw = config.checkpoint_config or {}
    return {"freqs_cis": freqs_cis(config, raw.get("block_size", config.max_position_embeddings))}


HUGINN = Family(
    name="huginn",
    named=raven.named,
    present=present,
    config=config,
    entries=raven.entries,
    depth_key="mean_recurrence",
    embedding="transformer.wte.weight",
    computed=computed,
)
