"""Parcae: pre-norm blocks with gated value embeddings, a decayed state, a normed prelude and a linear readout."""

import re

from torch import Tensor

from loop_rl.models.blocks import BLOCK_NORMS
from loop_rl.models.config import LoopedConfig
from loop_rl.models.families.layout import (
    HEAD,
    Entry,
    Family,
    Raw,
    field,
    freqs_cis,
    like_init_std,
    numbered,
    require,
    rope,
    token_ids,
)

PARTS = ("prelude", "core_block", "coda")
_VALUE_EMBEDDING = re.compile(r"value_embeds\.(\d+)\.weight")
_VALUE_GATE = re.compile(r"transformer\.(prelude|core_block|coda)\.(\d+)\.attn\.ve_gate\.weight")


def named(raw: Raw) -> bool:
    """A config.json without model_type, of the class ParcaeConfig."""
    return raw.get("_class_name") == "ParcaeConfig"


def present(keys: frozenset[str]) -> bool:
    """A decay of the state."""
    return "transformer.adapter.A_log" in keys


def config(raw: Raw, keys: frozenset[str] | None) -> LoopedConfig:
    """Which layers have value embeddings is told by the tensor names; without them, every second, the last included."""
    require(raw, block_class_name="TransformerPreNormBlock", mlp_class_name="BaseMLP", nonlin_name="ReLU2", bias=False)
    require(raw, qk_bias=False, clip_qkv=None, logit_softcap=None, debias_attention=False, center_attention=False)
    require(raw, use_abacus=False, injection_type="diagonal", state_init="like-init", mup_model_scaling_factor=1)
    settings = raw.get("rope_settings") or {}
    require(settings, use_rope=True, rope_condense_ratio=1)
    heads, width = field(raw, "num_attention_heads"), field(raw, "n_embd")
    for recurrent, outer in (
        ("recurrent_embedding_dimension", width),
        ("recurrent_intermediation_embedding_dimension", field(raw, "intermediate_size")),
        ("recurrent_num_attention_heads", heads),
    ):
        if raw.get(recurrent) is not None:
            require(raw, **{recurrent: outer})
    sizes = {
        "prelude": field(raw, "n_layers_in_prelude"),
        "core_block": field(raw, "n_layers_in_recurrent_block"),
        "coda": field(raw, "n_layers_in_coda"),
    }
    return LoopedConfig(
        vocab_size=field(raw, "padded_vocab_size", "vocab_size"),
        hidden_size=width,
        intermediate_size=field(raw, "intermediate_size"),
        num_attention_heads=heads,
        num_key_value_heads=raw.get("num_key_value_heads") or heads,
        head_dim=width // heads,
        prelude_layers=sizes["prelude"],
        core_layers=sizes["core_block"],
        coda_layers=sizes["coda"],
        depth=field(raw, "mean_recurrence"),
        injection="parcae" if raw.get("prelude_norm", True) else "parcae_no_norm",
        rms_norm_eps=float(field(raw, "norm_eps")),
        **rope({**settings, **raw}, "rope_base"),
        rope_layout="interleaved",
        max_position_embeddings=field(raw, "block_size"),
        mlp="relu_squared",
        qk_norm="head" if raw.get("qk_norm", True) else None,
        value_embedding_layers=_value_embedding_layers(keys, sizes),
        readout=True,
        initial_state="truncated_normal",
        initial_state_std=like_init_std(width),
        tie_word_embeddings=bool(field(raw, "tie_embeddings")),
        **token_ids(raw),
    )


def _value_embedding_layers(keys: frozenset[str] | None, sizes: dict[str, int]) -> list[int]:
    """Layers with a value embedding or its gate (loading names whichever of the two is missing), counted through."""
    layers = sum(sizes.values())
    if keys is None:
        return list(range((layers - 1) % 2, layers, 2))
    first = {"prelude": 0, "core_block": sizes["prelude"], "coda": sizes["prelude"] + sizes["core_block"]}
    embedded = {int(match[1]) for key in keys if (match := _VALUE_EMBEDDING.fullmatch(key))}
    gated = {first[match[1]] + int(match[2]) for key in keys if (match := _VALUE_GATE.fullmatch(key))}
    return sorted(layer for layer in embedded | gated if layer < layers)


def entries(config: LoopedConfig) -> list[Entry]:
    """Every tensor."""
    listed = [
        Entry("transformer.wte.weight", ("model.embed_tokens.weight",)),
        Entry("transformer.adapter.A_log", ("model.injection.alpha_raw",)),
        Entry("transformer.adapter.dt_bias", ("model.injection.delta_raw",)),
        Entry("transformer.adapter.B", ("model.injection.projection.weight",)),
        Entry("transformer.C.weight", ("model.readout.weight",)),
        Entry("transformer.ln_f.weight", ("model.norm.weight",)),
    ]
    if config.injection == "parcae":
        listed.append(Entry("transformer.ln_prelude.weight", ("model.injection.norm.weight",)))
    if not config.tie_word_embeddings:
        listed.append(Entry(HEAD, (HEAD,)))
    for layer, (theirs, ours) in enumerate(numbered("transformer.", config, PARTS)):
        for their_name, our_name in (("c_q", "q_proj"), ("c_k", "k_proj"), ("c_v", "v_proj"), ("c_proj", "o_proj")):
            listed.append(Entry(f"{theirs}attn.{their_name}.weight", (f"{ours}attn.{our_name}.weight",)))
        for their_name, our_name in (("fc", "up_proj"), ("proj", "down_proj")):
            listed.append(Entry(f"{theirs}mlp.{their_name}.weight", (f"{ours}mlp.{our_name}.weight",)))
        for number, norm in enumerate(BLOCK_NORMS[config.norm_placement], start=1):
            listed.append(Entry(f"{theirs}norm_{number}.weight", (f"{ours}{norm}.weight",)))
        if layer in config.value_embedding_layers:
            listed.append(Entry(f"{theirs}attn.ve_gate.weight", (ours + "attn.value_gate.weight",)))
            listed.append(Entry(f"value_embeds.{layer}.weight", (f"model.value_embeddings.{layer}.weight",)))
    return listed


def computed(config: LoopedConfig) -> dict[str, Tensor]:
    """The rotary tables."""
    return {"freqs_cis": freqs_cis(config, config.max_position_embeddings)}


PARCAE = Family(
    name="parcae",
    named=named,
    present=present,
    config=config,
    entries=entries,
    depth_key="mean_recurrence",
    embedding="transformer.wte.weight",
    computed=computed,
)
