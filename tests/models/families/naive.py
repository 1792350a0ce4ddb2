"""The families' forward passes on one row, straight from their descriptions and their own tensors, in float64.

Plain loops over heads and positions, rotations as complex numbers; nothing is shared with the project.
"""

import cmath
import math
from typing import Any

import torch
from torch import Tensor

Tensors = dict[str, Tensor]


def rms(x: Tensor, weight: Tensor | float, eps: float) -> Tensor:
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * weight


def angles_per_position(dim: int, theta: float, llama3: dict[str, Any] | None = None) -> list[float]:
    found = []
    for pair in range(dim // 2):
        angle = theta ** (-2.0 * pair / dim)
        if llama3:
            wavelength = 2 * math.pi / angle
            context = llama3["original_max_position_embeddings"]
            low, high = context / llama3["low_freq_factor"], context / llama3["high_freq_factor"]
            if wavelength > low:
                angle = angle / llama3["factor"]
            elif wavelength > high:
                smooth = (context / wavelength - llama3["low_freq_factor"]) / (
                    llama3["high_freq_factor"] - llama3["low_freq_factor"]
                )
                angle = (1 - smooth) * angle / llama3["factor"] + smooth * angle
        found.append(angle)
    return found


def turn(vector: Tensor, position: int, angles: list[float], interleaved: bool) -> Tensor:
    """One head's channels at one position."""
    turned, half = vector.clone(), len(angles)
    for pair, angle in enumerate(angles):
        first, second = (2 * pair, 2 * pair + 1) if interleaved else (pair, pair + half)
        value = complex(vector[first], vector[second]) * cmath.exp(1j * position * angle)
        turned[first], turned[second] = value.real, value.imag
    return turned


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """q [T, H, d], k and v [T, H_kv, d] -> [T, H * d], causal."""
    tokens, heads, dim = q.shape
    out = torch.zeros_like(q)
    for head in range(heads):
        shared = head // (heads // k.shape[1])
        for t in range(tokens):
            scores = torch.stack([q[t, head] @ k[s, shared] for s in range(t + 1)]) / math.sqrt(dim)
            out[t, head] = (scores.softmax(0)[:, None] * v[: t + 1, shared]).sum(0)
    return out.reshape(tokens, -1)


def turned(x: Tensor, angles: list[float], interleaved: bool) -> Tensor:
    rows = [[turn(head, position, angles, interleaved) for head in token] for position, token in enumerate(x)]
    return torch.stack([torch.stack(row) for row in rows])


def silu(x: Tensor) -> Tensor:
    return x / (1 + torch.exp(-x))


def raven(variant: str, raw: dict[str, Any], t: Tensors, ids: Tensor, z: Tensor, depth: int) -> Tensor:
    """Logits of Huginn, or of a retrofit of Llama, TinyLlama or OLMo."""
    heads, kv, dim, eps = raw["n_heads"], raw["num_key_value_heads"], raw["head_dim"], raw["norm_eps"]
    huginn = variant == "huginn"
    angles = angles_per_position(dim, raw["rope_base"] if huginn else raw["rope_theta"], raw.get("rope_scaling"))

    def attention(x: Tensor, at: str) -> Tensor:
        q, k, v = (x @ t[at + "attn.Wqkv.weight"].T).split([heads * dim, kv * dim, kv * dim], dim=-1)
        if variant == "olmo":
            q = rms(q, t[at + "attn.q_norm.weight"], eps)
            k = rms(k, t[at + "attn.k_norm.weight"], eps)
        q, k, v = q.view(-1, heads, dim), k.view(-1, kv, dim), v.view(-1, kv, dim)
        if huginn:
            q, k = q + t[at + "attn.qk_bias"][0, 0], k + t[at + "attn.qk_bias"][1, 0]
        return attend(turned(q, angles, huginn), turned(k, angles, huginn), v) @ t[at + "attn.proj.weight"].T

    def mlp(x: Tensor, at: str) -> Tensor:
        gate, up = (x @ t[at + "mlp.fc.weight"].T).chunk(2, dim=-1)
        return (silu(gate) * up) @ t[at + "mlp.proj.weight"].T

    def block(x: Tensor, at: str) -> Tensor:
        def norm(number: int, y: Tensor) -> Tensor:
            return rms(y, t[f"{at}norm_{number}.weight"], eps)

        if huginn:
            x = norm(2, attention(norm(1, x), at) + x)
            return norm(4, mlp(norm(3, x), at) + x)
        if variant == "olmo":
            x = x + norm(1, attention(x, at))
            return x + norm(2, mlp(x, at))
        x = x + attention(norm(1, x), at)
        return x + mlp(norm(2, x), at)

    def part(x: Tensor, name: str, count: str) -> Tensor:
        for layer in range(raw[f"n_layers_in_{count}"]):
            x = block(x, f"transformer.{name}.{layer}.")
        return x

    e = part(t["transformer.wte.weight"][ids] * raw["init_values"]["embed_scale"], "prelude", "prelude")
    for _ in range(depth):
        z = part(torch.cat([z, e], dim=-1) @ t["transformer.adapter.weight"].T, "core_block", "recurrent_block")
    if huginn:
        z = rms(z, t["transformer.ln_f.weight"], eps)
    return rms(part(z, "coda", "coda"), t["transformer.ln_f.weight"], eps) @ t["lm_head.weight"].T


def ouro(raw: dict[str, Any], t: Tensors, ids: Tensor, depth: int) -> tuple[Tensor, Tensor]:
    """Logits after the last recurrence [T, vocabulary], and the exit distribution [T, depth]."""
    heads, kv, dim, eps = raw["num_attention_heads"], raw["num_key_value_heads"], raw["head_dim"], raw["rms_norm_eps"]
    angles = angles_per_position(dim, raw["rope_theta"])
    x = t["model.embed_tokens.weight"][ids]
    left, stay = [], torch.ones(len(ids), dtype=x.dtype)
    for recurrence in range(depth):
        for layer in range(raw["num_hidden_layers"]):
            at = f"model.layers.{layer}."
            y = rms(x, t[at + "input_layernorm.weight"], eps)
            q, k, v = (
                (y @ t[f"{at}self_attn.{name}_proj.weight"].T).view(len(ids), -1, dim) for name in ("q", "k", "v")
            )
            assert (q.shape[1], k.shape[1]) == (heads, kv)
            y = attend(turned(q, angles, False), turned(k, angles, False), v) @ t[at + "self_attn.o_proj.weight"].T
            x = x + rms(y, t[at + "input_layernorm_2.weight"], eps)
            y = rms(x, t[at + "post_attention_layernorm.weight"], eps)
            y = silu(y @ t[at + "mlp.gate_proj.weight"].T) * (y @ t[at + "mlp.up_proj.weight"].T)
            y = y @ t[at + "mlp.down_proj.weight"].T
            x = x + rms(y, t[at + "post_attention_layernorm_2.weight"], eps)
        x = rms(x, t["model.norm.weight"], eps)
        leave = torch.sigmoid((x @ t["model.early_exit_gate.weight"].T + t["model.early_exit_gate.bias"])[:, 0])
        left.append(stay if recurrence == depth - 1 else leave * stay)
        stay = stay * (1 - leave)
    return x @ t["lm_head.weight"].T, torch.stack(left, dim=-1)


def parcae(raw: dict[str, Any], t: Tensors, ids: Tensor, z: Tensor, depth: int) -> Tensor:
    """Logits [T, vocabulary]."""
    heads, kv, eps = raw["num_attention_heads"], raw["num_key_value_heads"], raw["norm_eps"]
    dim = raw["n_embd"] // heads
    angles = angles_per_position(dim, raw["rope_settings"]["rope_base"])
    tiny = torch.finfo(torch.float64).eps  # the families' norms without weight take that of the computation's dtype

    def block(x: Tensor, at: str, layer: int) -> Tensor:
        y = rms(x, t[at + "norm_1.weight"], eps)
        q = (y @ t[at + "attn.c_q.weight"].T).view(-1, heads, dim)
        k, v = ((y @ t[f"{at}attn.c_{name}.weight"].T).view(-1, kv, dim) for name in ("k", "v"))
        if f"value_embeds.{layer}.weight" in t:
            gate = 2 * torch.sigmoid(y[:, :32] @ t[at + "attn.ve_gate.weight"].T)
            v = v + gate[:, :, None] * t[f"value_embeds.{layer}.weight"][ids].view(-1, kv, dim)
        q, k = rms(turned(q, angles, True), 1.0, tiny), rms(turned(k, angles, True), 1.0, tiny)
        x = x + attend(q, k, v) @ t[at + "attn.c_proj.weight"].T
        y = rms(x, t[at + "norm_2.weight"], eps) @ t[at + "mlp.fc.weight"].T
        return x + (0.5 * torch.where(y > 0, y, 0.0) ** 2) @ t[at + "mlp.proj.weight"].T

    sizes = [raw[f"n_layers_in_{part}"] for part in ("prelude", "recurrent_block", "coda")]

    def part(x: Tensor, name: str, index: int) -> Tensor:
        for layer in range(sizes[index]):
            x = block(x, f"transformer.{name}.{layer}.", sum(sizes[:index]) + layer)
        return x

    e = rms(part(t["transformer.wte.weight"][ids], "prelude", 0), t["transformer.ln_prelude.weight"], eps)
    step = torch.log1p(torch.exp(t["transformer.adapter.dt_bias"]))
    for _ in range(depth):
        z = z * torch.exp(-step * torch.exp(t["transformer.adapter.A_log"])) + step * (e @ t["transformer.adapter.B"].T)
        z = part(z, "core_block", 1)
    return rms(part(z @ t["transformer.C.weight"].T, "coda", 2), t["transformer.ln_f.weight"], eps) @ (
        t["lm_head.weight"].T
    )


def forward(name: str, raw: dict[str, Any], tensors: Tensors, ids: Tensor, z0: Tensor, depth: int) -> Tensor:
    """Logits [T, vocabulary] of one row; `name` as in `synthetic.CHECKPOINTS`."""
    doubles = {key: value.double() for key, value in tensors.items()}
    if name.startswith("ouro"):
        return ouro(raw, doubles, ids, depth)[0]
    if name.startswith("parcae"):
        return parcae(raw, doubles, ids, z0.double(), depth)
    return raven(name.removesuffix("_all_heads"), raw, doubles, ids, z0.double(), depth)
