"""What Huginn and the retrofits share: RavenForCausalLM's tensor names, Wqkv and fc fused."""

from collections.abc import Mapping
from typing import Any

from loop_rl.models.blocks import BLOCK_NORMS
from loop_rl.models.config import LoopedConfig
from loop_rl.models.families.layout import HEAD, Entry, Raw, field, numbered, require, rope, token_ids

MODEL_TYPE = "huginn_raven"
PARTS = ("prelude", "core_block", "coda")
ADAPTER = "transformer.adapter.weight"


def named(raw: Raw) -> bool:
    """Whether a config.json is of this model type."""
    return raw.get("model_type") == MODEL_TYPE


def sizes(raw: Raw) -> dict[str, Any]:
    """The keywords of LoopedConfig that are read alike."""
    require(raw, bias=False, injection_type="linear", nonlin_name="SiLU", mlp_class_name="GatedMLP")
    require(raw, state_init="like-init", test_time_noise=0)
    heads, width = field(raw, "n_heads", "num_attention_heads"), field(raw, "n_embd")
    return dict(
        vocab_size=field(raw, "padded_vocab_size", "vocab_size"),
        hidden_size=width,
        intermediate_size=field(raw, "intermediate_size"),
        num_attention_heads=heads,
        num_key_value_heads=raw.get("num_key_value_heads") or heads,
        head_dim=raw.get("head_dim") or width // heads,
        prelude_layers=field(raw, "n_layers_in_prelude"),
        core_layers=field(raw, "n_layers_in_recurrent_block"),
        coda_layers=field(raw, "n_layers_in_coda"),
        depth=field(raw, "mean_recurrence"),
        injection="linear",
        rms_norm_eps=float(field(raw, "norm_eps")),
        **rope(raw, "rope_base"),
        max_position_embeddings=field(raw, "max_position_embeddings", "block_size"),
        initial_state="truncated_normal",
        tie_word_embeddings=bool(raw.get("tie_embeddings", raw.get("tie_word_embeddings", False))),
        **token_ids(raw),
    )


def initial_values(raw: Raw, std: float, embed_scale: float) -> dict[str, float]:
    """Embedding scale and standard deviation of z0 (which is scaled along) from `init_values`, or these."""
    values: Mapping[str, float] = raw.get("init_values") or {}
    scale = float(values.get("embed_scale", embed_scale))
    return {"embedding_multiplier": scale, "initial_state_std": float(values.get("std", std)) * scale}


def entries(config: LoopedConfig) -> list[Entry]:
    """Every tensor; norms are numbered in the order of a block's forward pass."""
    listed = [
        Entry("transformer.wte.weight", ("model.embed_tokens.weight",)),
        Entry(ADAPTER, ("model.injection.linear.weight",)),
        Entry("transformer.ln_f.weight", ("model.norm.weight",)),
    ]
    if not config.tie_word_embeddings:
        listed.append(Entry(HEAD, (HEAD,)))
    for theirs, ours in numbered("transformer.", config, PARTS):
        attn, mlp = ours + "attn.", ours + "mlp."
        qkv = tuple(f"{attn}{name}_proj.weight" for name in "qkv")
        listed += [
            Entry(theirs + "attn.Wqkv.weight", qkv),
            Entry(theirs + "attn.proj.weight", (attn + "o_proj.weight",)),
            Entry(theirs + "mlp.fc.weight", (mlp + "gate_proj.weight", mlp + "up_proj.weight")),
            Entry(theirs + "mlp.proj.weight", (mlp + "down_proj.weight",)),
        ]
        if config.qk_bias:
            shape = (2, 1, config.num_attention_heads, config.head_dim)
            biases = (attn + "q_proj.bias", attn + "k_proj.bias")
            listed.append(Entry(theirs + "attn.qk_bias", biases, shape))
        if config.qk_norm == "full":
            listed += [Entry(f"{theirs}attn.{name}.weight", (f"{attn}{name}.weight",)) for name in ("q_norm", "k_norm")]
        for number, norm in enumerate(BLOCK_NORMS[config.norm_placement], start=1):
            listed.append(Entry(f"{theirs}norm_{number}.weight", (f"{ours}{norm}.weight",)))
    return listed
