"""One transformer block: norms where the config places them, grouped-query attention, a gated or plain MLP."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from loop_rl.models.attention.context import Context
from loop_rl.models.config import LoopedConfig

#: a block's norms for each `norm_placement`, in the order of its forward pass
BLOCK_NORMS = {
    "pre": ("attn_norm", "mlp_norm"),
    "post": ("attn_post_norm", "mlp_post_norm"),
    "sandwich": ("attn_norm", "attn_post_norm", "mlp_norm", "mlp_post_norm"),
    "sandwich_sum": ("attn_norm", "attn_post_norm", "mlp_norm", "mlp_post_norm"),
}
#: channels of a block's normed input that the gate of its value embedding reads
VALUE_GATE_CHANNELS = 32


class RMSNorm(nn.Module):
    """x / rms(x) * weight over the last axis, in float32 at least; without weight if not `affine`.

    `eps` None is the machine epsilon of the dtype that it is computed in.
    """

    def __init__(self, width: int, eps: float | None, affine: bool = True) -> None:
        super().__init__()
        self.width = width
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width)) if affine else None

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype in (torch.float32, torch.float64):
            return F.rms_norm(x, (self.width,), self.weight, self.eps)
        normed = F.rms_norm(x.float(), (self.width,), None, self.eps).to(x.dtype)
        return normed if self.weight is None else normed * self.weight


class Attention(nn.Module):
    """Queries, keys and values of grouped-query attention; the context does the attending."""

    def __init__(self, config: LoopedConfig, value_embedding: bool = False) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        width = config.hidden_size
        queries, keys = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
        self.q_proj = nn.Linear(width, queries, bias=config.qk_bias)
        self.k_proj = nn.Linear(width, keys, bias=config.qk_bias)
        self.v_proj = nn.Linear(width, keys, bias=False)
        self.o_proj = nn.Linear(queries, width, bias=False)
        full = config.qk_norm == "full"
        self.q_norm = RMSNorm(queries, config.rms_norm_eps) if full else nn.Identity()
        self.k_norm = RMSNorm(keys, config.rms_norm_eps) if full else nn.Identity()
        self.head_norm = RMSNorm(config.head_dim, None, affine=False) if config.qk_norm == "head" else nn.Identity()
        if value_embedding:
            self.value_gate = nn.Linear(VALUE_GATE_CHANNELS, config.num_key_value_heads, bias=False)

    def forward(
        self,
        x: Tensor,
        context: Context,
        layer: int,
        recurrence: int,
        qkv_injection: Tensor | None = None,
        value_embedding: Tensor | None = None,
    ) -> Tensor:
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        if qkv_injection is not None:
            injected = qkv_injection.split((q.shape[-1], k.shape[-1], v.shape[-1]), dim=-1)
            q, k, v = (a + b for a, b in zip((q, k, v), injected, strict=True))
        q, k = self.q_norm(q), self.k_norm(k)
        heads = (x.shape[0], x.shape[1], -1, self.head_dim)
        q, k, v = (y.view(heads).transpose(1, 2) for y in (q, k, v))
        q, k = self.head_norm(q), self.head_norm(k)
        if value_embedding is not None:
            gate = 2.0 * torch.sigmoid(self.value_gate(x[..., :VALUE_GATE_CHANNELS]))
            v = v + (gate[..., None] * value_embedding.view(heads)).transpose(1, 2)
        y = context.attend(layer, recurrence, q, k, v)
        return self.o_proj(y.transpose(1, 2).flatten(2))


class SwiGLU(nn.Module):
    """down(silu(gate x) * up x)."""

    def __init__(self, config: LoopedConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class ReLUSquared(nn.Module):
    """down(relu(up x)^2 / 2)."""

    def __init__(self, config: LoopedConfig) -> None:
        super().__init__()
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(0.5 * F.relu(self.up_proj(x)).square())


MLPS = {"swiglu": SwiGLU, "relu_squared": ReLUSquared}


class Block(nn.Module):
    """Attention, then the MLP, each a branch from x and back; [B, T, width] -> [B, T, width]."""

    def __init__(self, config: LoopedConfig, value_embedding: bool = False) -> None:
        super().__init__()
        self.norm_of_sum = config.norm_placement == "sandwich_sum"
        present = BLOCK_NORMS[config.norm_placement]

        def norm(name: str) -> nn.Module:
            return RMSNorm(config.hidden_size, config.rms_norm_eps) if name in present else nn.Identity()

        self.attn_norm = norm("attn_norm")
        self.attn = Attention(config, value_embedding)
        self.attn_post_norm = norm("attn_post_norm")
        self.mlp_norm = norm("mlp_norm")
        self.mlp = MLPS[config.mlp](config)
        self.mlp_post_norm = norm("mlp_post_norm")

    def forward(
        self,
        x: Tensor,
        context: Context,
        layer: int,
        recurrence: int,
        qkv_injection: Tensor | None = None,
        value_embedding: Tensor | None = None,
    ) -> Tensor:
        y = self.attn(self.attn_norm(x), context, layer, recurrence, qkv_injection, value_embedding)
        x = self._join(x, y, self.attn_post_norm)
        return self._join(x, self.mlp(self.mlp_norm(x)), self.mlp_post_norm)

    def _join(self, x: Tensor, y: Tensor, post_norm: nn.Module) -> Tensor:
        return post_norm(x + y) if self.norm_of_sum else x + post_norm(y)
