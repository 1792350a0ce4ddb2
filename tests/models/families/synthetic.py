"""Small random checkpoints in every released layout, sizes unlike one another: config.json and tensors as a family has
them, made from its description and not from the project's tables."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

VOCABULARY = 53


@dataclass(frozen=True)
class Checkpoint:
    """A family's config.json and tensors."""

    raw: dict[str, Any]
    tensors: dict[str, Tensor]

    def write(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.raw))
        save_file(self.tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return folder


class Random:
    """Weights by seed: matrices that shrink what they act on, so that loops contract; gains around one."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def matrix(self, rows: int, columns: int, gain: float = 0.5) -> Tensor:
        return gain * columns**-0.5 * torch.randn(rows, columns, generator=self.generator)

    def vector(self, *shape: int, mean: float = 0.0, spread: float = 0.3) -> Tensor:
        return mean + spread * torch.randn(*shape, generator=self.generator)

    def gain(self, width: int) -> Tensor:
        return self.vector(width, mean=1.0, spread=0.2)


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def raven(variant: str, heads: int, kv_heads: int, head_dim: int, layers: tuple[int, int, int]) -> Checkpoint:
    """Huginn ("huginn") or a retrofit ("llama", "tinyllama", "olmo")."""
    r, width, mlp = Random(len(variant)), heads * head_dim, 40
    huginn, olmo = variant == "huginn", variant == "olmo"
    raw = {
        "model_type": "huginn_raven",
        "architectures": ["RavenForCausalLM"],
        "auto_map": {"AutoModelForCausalLM": "raven_modeling_minimal.RavenForCausalLM"},
        "n_embd": width,
        "n_heads": heads,
        "head_dim": head_dim,
        "num_key_value_heads": kv_heads,
        "intermediate_size": mlp,
        "n_layers_in_prelude": layers[0],
        "n_layers_in_recurrent_block": layers[1],
        "n_layers_in_coda": layers[2],
        "mean_recurrence": 5,
        "block_size": 96,
        "vocab_size": VOCABULARY,
        "padded_vocab_size": VOCABULARY,
        "norm_eps": 1e-5 if variant in ("llama", "tinyllama") else 1e-6,
        "rope_base": 50000,
        "qk_bias": huginn,
        "bias": False,
        "injection_type": "linear",
        "nonlin_name": "SiLU",
        "mlp_class_name": "GatedMLP",
        "block_class_name": "SandwichBlock",
        "state_init": "like-init",
        "tie_embeddings": huginn,
        "init_values": {"std": (0.4 / width) ** 0.5, "embed_scale": width**0.5}
        if huginn
        else {"std": 0.0087, "embed_scale": 1.0},
    }
    if not huginn:
        raw["rope_theta"] = 3000.0
    if variant == "llama":
        raw["rope_scaling"] = LLAMA3
    tensors = {
        "transformer.wte.weight": r.vector(VOCABULARY, width, spread=width**-0.5 if huginn else 1.0),
        "transformer.adapter.weight": torch.cat((r.matrix(width, width, 0.3), r.matrix(width, width, 2.0)), dim=1),
        "transformer.ln_f.weight": r.gain(width),
    }
    tensors["lm_head.weight"] = (
        tensors["transformer.wte.weight"].clone() if huginn else r.matrix(VOCABULARY, width, 2.0)
    )
    if huginn:
        tensors["freqs_cis"] = torch.zeros(1, 96, 1, head_dim // 2, 2)  # as bf16 would have spoiled it
    for part, count in zip(("prelude", "core_block", "coda"), layers, strict=True):
        for layer in range(count):
            at = f"transformer.{part}.{layer}."
            tensors[at + "attn.Wqkv.weight"] = r.matrix((heads + 2 * kv_heads) * head_dim, width, 1.0)
            tensors[at + "attn.proj.weight"] = r.matrix(width, width)
            tensors[at + "mlp.fc.weight"] = r.matrix(2 * mlp, width, 1.0)
            tensors[at + "mlp.proj.weight"] = r.matrix(width, mlp)
            for number in range(1, 5 if huginn else 3):
                tensors[f"{at}norm_{number}.weight"] = r.gain(width)
            if huginn:
                tensors[at + "attn.qk_bias"] = r.vector(2, 1, heads, head_dim)
            if olmo:
                tensors[at + "attn.q_norm.weight"] = r.gain(heads * head_dim)
                tensors[at + "attn.k_norm.weight"] = r.gain(kv_heads * head_dim)
    return Checkpoint(raw, tensors)


def ouro(heads: int, kv_heads: int, head_dim: int, layers: int) -> Checkpoint:
    r, width, mlp = Random(11), heads * head_dim, 40
    raw = {
        "model_type": "ouro",
        "architectures": ["OuroForCausalLM"],
        "auto_map": {"AutoModelForCausalLM": "modeling_ouro.OuroForCausalLM"},
        "hidden_size": width,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "intermediate_size": mlp,
        "num_hidden_layers": layers,
        "total_ut_steps": 3,
        "early_exit_threshold": 1.0,
        "hidden_act": "silu",
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "rope_scaling": None,
        "use_sliding_window": False,
        "tie_word_embeddings": False,
        "vocab_size": VOCABULARY,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    tensors = {
        "model.embed_tokens.weight": r.vector(VOCABULARY, width, spread=1.0),
        "model.norm.weight": r.gain(width),
        "model.early_exit_gate.weight": r.matrix(1, width, 1.0),
        "model.early_exit_gate.bias": r.vector(1),
        "lm_head.weight": r.matrix(VOCABULARY, width, 2.0),
    }
    for layer in range(layers):
        at = f"model.layers.{layer}."
        for name, rows in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
            tensors[f"{at}self_attn.{name}_proj.weight"] = r.matrix(rows * head_dim, width, 1.0)
        tensors[at + "self_attn.o_proj.weight"] = r.matrix(width, heads * head_dim)
        tensors[at + "mlp.gate_proj.weight"] = r.matrix(mlp, width, 1.0)
        tensors[at + "mlp.up_proj.weight"] = r.matrix(mlp, width, 1.0)
        tensors[at + "mlp.down_proj.weight"] = r.matrix(width, mlp)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{at}{norm}.weight"] = r.gain(width)
            tensors[f"{at}{norm}_2.weight"] = r.gain(width)
    return Checkpoint(raw, tensors)


def parcae(
    heads: int, kv_heads: int, head_dim: int, layers: tuple[int, int, int], embedded: tuple[int, ...]
) -> Checkpoint:
    """`embedded`: the layers, counted through, that have value embeddings."""
    r, width, mlp = Random(7 + len(embedded)), heads * head_dim, 40
    raw = {
        "_class_name": "ParcaeConfig",
        "n_embd": width,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": mlp,
        "n_layers_in_prelude": layers[0],
        "n_layers_in_recurrent_block": layers[1],
        "n_layers_in_coda": layers[2],
        "mean_recurrence": 4,
        "block_size": 96,
        "vocab_size": VOCABULARY,
        "padded_vocab_size": VOCABULARY,
        "norm_eps": 1e-5,
        "rope_settings": {"use_rope": True, "rope_condense_ratio": 1, "rope_base": 50000},
        "block_class_name": "TransformerPreNormBlock",
        "mlp_class_name": "BaseMLP",
        "nonlin_name": "ReLU2",
        "injection_type": "diagonal",
        "qk_norm": True,
        "qk_bias": False,
        "bias": False,
        "prelude_norm": True,
        "state_init": "like-init",
        "recurrent_num_attention_heads": None,
        "tie_embeddings": True,
    }
    tensors = {
        "transformer.wte.weight": r.vector(VOCABULARY, width, spread=1.0),
        "transformer.adapter.A_log": r.vector(width),
        "transformer.adapter.dt_bias": r.vector(width, mean=0.5),
        "transformer.adapter.B": r.matrix(width, width, 1.0),
        "transformer.C.weight": r.matrix(width, width, 1.0),
        "transformer.ln_prelude.weight": r.gain(width),
        "transformer.ln_f.weight": r.gain(width),
        "freqs_cis": torch.zeros(1, 96, 1, head_dim // 2, 2),
    }
    tensors["lm_head.weight"] = tensors["transformer.wte.weight"].clone()
    physical = 0
    for part, count in zip(("prelude", "core_block", "coda"), layers, strict=True):
        for layer in range(count):
            at = f"transformer.{part}.{layer}."
            for name, rows in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
                tensors[f"{at}attn.c_{name}.weight"] = r.matrix(rows * head_dim, width, 1.0)
            tensors[at + "attn.c_proj.weight"] = r.matrix(width, heads * head_dim)
            tensors[at + "mlp.fc.weight"] = r.matrix(mlp, width, 1.0)
            tensors[at + "mlp.proj.weight"] = r.matrix(width, mlp)
            tensors[at + "norm_1.weight"], tensors[at + "norm_2.weight"] = r.gain(width), r.gain(width)
            if physical in embedded:
                tensors[at + "attn.ve_gate.weight"] = r.matrix(kv_heads, 32, 1.0)
                tensors[f"value_embeds.{physical}.weight"] = r.vector(VOCABULARY, kv_heads * head_dim, spread=1.0)
            physical += 1
    return Checkpoint(raw, tensors)


CHECKPOINTS: dict[str, Callable[[], Checkpoint]] = {
    "huginn": lambda: raven("huginn", 3, 3, 12, (1, 2, 2)),
    "llama": lambda: raven("llama", 6, 2, 8, (2, 2, 1)),
    "tinyllama": lambda: raven("tinyllama", 4, 1, 10, (1, 3, 1)),
    "olmo": lambda: raven("olmo", 4, 2, 8, (1, 2, 1)),
    "olmo_all_heads": lambda: raven("olmo", 3, 3, 14, (2, 1, 1)),
    "ouro": lambda: ouro(4, 2, 10, 2),
    "ouro_all_heads": lambda: ouro(3, 3, 12, 3),
    "parcae": lambda: parcae(3, 3, 12, (2, 2, 2), (1, 3, 5)),
    "parcae_fewer_values": lambda: parcae(4, 2, 10, (1, 2, 1), (0, 2)),
    "parcae_no_values": lambda: parcae(4, 4, 10, (1, 1, 2), ()),
}
