"""Attention contexts: who attends to whom, at which positions, through which KV banks.

A block computes queries, keys and values and calls `context.attend(layer, recurrence, q, k, v)`; everything that
differs between a padded batch, cached generation and a rollout's decoding lives here and not in the model.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from loop_rl.models.config import LoopedConfig
from loop_rl.models.rope import frequencies, rotate


def positions_from_mask(attention_mask: Tensor) -> Tensor:
    """Position of every column among the real tokens of its row; pads get 0. int [B, T] -> int64 [B, T]."""
    return (attention_mask.long().cumsum(-1) - 1).clamp(min=0)


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
    """Grouped-query attention, scale 1/sqrt(head_dim).

    q [B, H, Tq, d], k and v [B, H_kv, Tk, d], mask bool broadcastable to [B, 1, Tq, Tk] (True: may attend)
    -> [B, H, Tq, d].
    """
    batch, heads, queries, dim = q.shape
    kv_heads = k.shape[1]
    if queries == 1:
        # One query: the heads that share a key become its rows, and no key is copied.
        grouped = q.reshape(batch, kv_heads, heads // kv_heads, dim)
        return F.scaled_dot_product_attention(grouped, k, v, attn_mask=mask).reshape(batch, heads, 1, dim)
    if heads != kv_heads:
        k = k.repeat_interleave(heads // kv_heads, dim=1)
        v = v.repeat_interleave(heads // kv_heads, dim=1)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)


class Context:
    """Positions and the rotary tables made from them; subclasses add the mask and the banks.

    mask: bool broadcastable to [B, 1, Tq, Tk], True where a query may attend; None: everywhere, or with `causal` to
    what stands before it and to itself.

    Rotary tables are computed and applied in float32 (float64 for a float64 model), whatever the parameters' dtype.
    """

    def __init__(
        self, config: LoopedConfig, position_ids: Tensor, dtype: torch.dtype, depth: int, causal: bool = False
    ) -> None:
        self.config = config
        self.dtype = dtype
        self.depth = depth
        self.position_ids = position_ids
        self.mask: Tensor | None = None
        self.causal = causal
        # Where recurring stops token by token (adaptive depth): bool [B, T], the tokens that still recur; None: all.
        self.active: Tensor | None = None
        self._held: dict[int, tuple[Tensor, Tensor]] = {}
        # Whether the backward pass computes the blocks' activations again instead of keeping them.
        self.checkpointed = False
        table_dtype = torch.float64 if dtype == torch.float64 else torch.float32
        angles = position_ids[:, None, :, None].to(table_dtype) * frequencies(config, table_dtype, position_ids.device)
        self.cos, self.sin = angles.cos(), angles.sin()

    def rotate(self, x: Tensor) -> Tensor:
        """RoPE on [B, H, T, d], in the config's layout."""
        return rotate(x, self.cos, self.sin, self.config.rope_layout)

    def bank(self, layer: int, recurrence: int) -> int:
        """Index of the KV bank that physical layer `layer` writes at `recurrence` (full cache)."""
        prelude, core = self.config.prelude_layers, self.config.core_layers
        if layer < prelude:
            return layer
        if layer < prelude + core:
            return prelude + recurrence * core + (layer - prelude)
        return layer + (self.depth - 1) * core

    def extend(self, bank: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Store this pass's keys and values in a bank; return all that its queries attend to."""
        return k, v

    def attend(self, layer: int, recurrence: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention output of one block at one recurrence; [B, H, T, d] in and out."""
        k = self.rotate(k)
        if self.active is not None:
            k, v = self._hold(layer, k, v)
        k, v = self.extend(self.bank(layer, recurrence), k, v)
        return attention(self.rotate(q), k, v, self.mask, self.causal)

    def _hold(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """A token that has stopped keeps the keys and values of its last recurrence."""
        assert self.active is not None
        if layer in self._held:
            recurs = self.active[:, None, :, None]
            held_k, held_v = self._held[layer]
            k, v = torch.where(recurs, k, held_k), torch.where(recurs, v, held_v)
        self._held[layer] = k, v
        return k, v

    def fill_banks(self, done: int) -> None:
        """After `done` recurrences, none of which any token went past: give the deeper banks what the last one left."""

    def deeper_banks(self, done: int) -> Iterator[tuple[int, int]]:
        """(bank, bank of the same layer at recurrence `done` - 1) for every recurrence past it."""
        config = self.config
        for layer in range(config.prelude_layers, config.prelude_layers + config.core_layers):
            last = self.bank(layer, done - 1)
            for recurrence in range(done, self.depth):
                if (bank := self.bank(layer, recurrence)) != last:
                    yield bank, last
