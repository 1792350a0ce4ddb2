"""Ouro: all layers in the loop, norms around each branch, the final norm in the loop, an exit gate, no injection."""

import logging
from typing import Any

from loop_rl.models.blocks import BLOCK_NORMS
from loop_rl.models.config import LoopedConfig
from loop_rl.models.families.layout import HEAD, Entry, Family, Raw, field, require, rope, token_ids

logger = logging.getLogger(__name__)

NORMS = ("input_layernorm", "input_layernorm_2", "post_attention_layernorm", "post_attention_layernorm_2")
#: <|im_start|>, <|im_end|> and <|endoftext|>: what the chat template writes
TOKENS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}


def named(raw: Raw) -> bool:
    """Whether a config.json is of this model type."""
    return raw.get("model_type") == "ouro"


def present(keys: frozenset[str]) -> bool:
    """An exit gate."""
    return any(key.startswith("model.early_exit_gate.") for key in keys)


def config(raw: Raw, keys: frozenset[str] | None) -> LoopedConfig:
    """The loop always runs to its last recurrence; the gate only tells where a token might have left."""
    require(raw, hidden_act="silu", use_sliding_window=False, attention_bias=False)
    heads, width = field(raw, "num_attention_heads"), field(raw, "hidden_size")
    return LoopedConfig(
        vocab_size=field(raw, "vocab_size"),
        hidden_size=width,
        intermediate_size=field(raw, "intermediate_size"),
        num_attention_heads=heads,
        num_key_value_heads=raw.get("num_key_value_heads") or heads,
        head_dim=raw.get("head_dim") or width // heads,
        prelude_layers=0,
        core_layers=field(raw, "num_hidden_layers"),
        coda_layers=0,
        depth=field(raw, "total_ut_steps"),
        injection="none",
        rms_norm_eps=float(field(raw, "rms_norm_eps")),
        **rope(raw),
        max_position_embeddings=field(raw, "max_position_embeddings"),
        norm_placement="sandwich",
        final_norm="in_loop",
        exit_gate=True,
        initial_state="embedding",
        tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
        **_chat_tokens(raw),
    )


def _chat_tokens(raw: Raw) -> dict[str, Any]:
    """What the config names, and the chat template's end token among the ends; other ends stay ends (see
    loop_rl.models.generation)."""
    released = token_ids(raw)
    if released.get("bos_token_id") == 0 and released.get("eos_token_id") == 0:
        logger.warning(
            "Ouro's config.json names token 0 as beginning and end of sequence, which its chat template never writes; "
            "using bos 1, eos 2, pad 0; a completion may end with 0 as well"
        )
        return TOKENS
    ends = released.get("eos_token_id", [])
    ends = [ends] if isinstance(ends, int) else list(ends)
    if TOKENS["eos_token_id"] not in ends:
        ends.append(TOKENS["eos_token_id"])
    return {**TOKENS, **released, "eos_token_id": ends[0] if len(ends) == 1 else ends}


def entries(config: LoopedConfig) -> list[Entry]:
    """Every tensor; only the block's norms and the gate have other names than ours."""
    listed = [
        Entry("model.embed_tokens.weight", ("model.embed_tokens.weight",)),
        Entry("model.norm.weight", ("model.norm.weight",)),
        Entry("model.early_exit_gate.weight", ("model.exit_gate.weight",)),
        Entry("model.early_exit_gate.bias", ("model.exit_gate.bias",)),
    ]
    if not config.tie_word_embeddings:
        listed.append(Entry(HEAD, (HEAD,)))
    for index in range(config.core_layers):
        theirs, ours = f"model.layers.{index}.", f"model.core.{index}."
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            listed.append(Entry(f"{theirs}self_attn.{name}.weight", (f"{ours}attn.{name}.weight",)))
        for name in ("gate_proj", "up_proj", "down_proj"):
            listed.append(Entry(f"{theirs}mlp.{name}.weight", (f"{ours}mlp.{name}.weight",)))
        for name, norm in zip(NORMS, BLOCK_NORMS[config.norm_placement], strict=True):
            listed.append(Entry(f"{theirs}{name}.weight", (f"{ours}{norm}.weight",)))
    return listed


OURO = Family(
    name="ouro",
    named=named,
    present=present,
    config=config,
    entries=entries,
    depth_key="total_ut_steps",
    embedding="model.embed_tokens.weight",
)
