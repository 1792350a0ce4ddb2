"""The Llama block: pre-norm RMSNorm, grouped-query attention, SwiGLU."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from loop_rl.models.config import LoopedConfig
from loop_rl.models.contexts import Context


class RMSNorm(nn.Module):
    """x / rms(x) * weight over the last axis, in float32 at least; without weight if not `affine`."""

    def __init__(self, width: int, eps: float, affine: bool = True) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width)) if affine else None

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype in (torch.float32, torch.float64):
            return F.rms_norm(x, x.shape[-1:], self.weight, self.eps)
        normed = F.rms_norm(x.float(), x.shape[-1:], None, self.eps).to(x.dtype)
        return normed if self.weight is None else normed * self.weight


class Attention(nn.Module):
    """Projections of grouped-query attention; the context does the attending."""

    def __init__(self, config: LoopedConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        width = config.hidden_size
        self.q_proj = nn.Linear(width, config.num_attention_heads * config.head_dim, bias=False)
        self.k_proj = nn.Linear(width, config.num_key_value_heads * config.head_dim, bias=False)
        self.v_proj = nn.Linear(width, config.num_key_value_heads * config.head_dim, bias=False)
        self.o_proj = nn.Linear(config.num_attention_heads * config.head_dim, width, bias=False)

    def forward(
        self, x: Tensor, context: Context, layer: int, recurrence: int, qkv_injection: Tensor | None = None
    ) -> Tensor:
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        if qkv_injection is not None:
            injected = qkv_injection.split((q.shape[-1], k.shape[-1], v.shape[-1]), dim=-1)
            q, k, v = (a + b for a, b in zip((q, k, v), injected, strict=True))
        heads = (x.shape[0], x.shape[1], -1, self.head_dim)
        q, k, v = (y.view(heads).transpose(1, 2) for y in (q, k, v))
        y = context.attend(layer, recurrence, q, k, v)
        return self.o_proj(y.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    """SwiGLU: down(silu(gate x) * up x)."""

    def __init__(self, config: LoopedConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    """x + attn(norm x), then x + mlp(norm x); [B, T, width] -> [B, T, width]."""

    def __init__(self, config: LoopedConfig) -> None:
        super().__init__()
        self.attn_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.attn = Attention(config)
        self.mlp_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = MLP(config)

    def forward(
        self, x: Tensor, context: Context, layer: int, recurrence: int, qkv_injection: Tensor | None = None
    ) -> Tensor:
        x = x + self.attn(self.attn_norm(x), context, layer, recurrence, qkv_injection)
        return x + self.mlp(self.mlp_norm(x))
