"""Attention contexts: who attends to whom, at which positions, through which KV banks.

A block computes queries, keys and values and calls `context.attend(layer, recurrence, q, k, v)`; everything that
differs between a padded batch, cached generation and a rollout's decoding lives here and not in the model.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from loop_rl.models.config import LoopedConfig
from loop_rl.models.rope import frequencies, rotate


def positions_from_mask(attention_mask: Tensor) -> Tensor:
    """Position of every column among the real tokens of its row; pads get 0. int [B, T] -> int64 [B, T]."""
    return (attention_mask.long().cumsum(-1) - 1).clamp(min=0)


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool) -> Tensor:
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
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=is_causal)


class Context:
    """Positions and the rotary tables made from them; subclasses add the mask and the banks.

    Rotary tables are computed and applied in float32 (float64 for a float64 model), whatever the parameters' dtype.
    """

    def __init__(self, config: LoopedConfig, position_ids: Tensor, dtype: torch.dtype, depth: int) -> None:
        self.config = config
        self.dtype = dtype
        self.depth = depth
        self.position_ids = position_ids
        self.mask: Tensor | None = None
        self.is_causal = False
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
        return attention(self.rotate(q), k, v, self.mask, self.is_causal)

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


class PaddedContext(Context):
    """A batch in one pass, padded on either side (or with holes).

    Only keys left of a real token can be pads in a left-padded row; a row padded on the right needs no mask, since
    causality already hides its pads. Pads attend to themselves so that no softmax is empty. With `record`, every
    bank's rotated keys and values are kept for a decoding context.
    """

    def __init__(
        self,
        config: LoopedConfig,
        attention_mask: Tensor,
        position_ids: Tensor | None = None,
        dtype: torch.dtype = torch.float32,
        depth: int = 1,
        record: bool = False,
    ) -> None:
        if position_ids is None:
            position_ids = positions_from_mask(attention_mask)
        super().__init__(config, position_ids.expand(attention_mask.shape[0], -1), dtype, depth)
        self.banks: dict[int, tuple[Tensor, Tensor]] | None = {} if record else None
        real = attention_mask.bool()
        right_padded = bool((real[:, :-1] | ~real[:, 1:]).all()) if real.shape[1] > 1 else True
        if right_padded:
            self.is_causal = True
        else:
            tokens = real.shape[1]
            causal = torch.ones(tokens, tokens, dtype=torch.bool, device=real.device).tril()
            itself = torch.eye(tokens, dtype=torch.bool, device=real.device)
            self.mask = ((causal & real[:, None, :]) | itself)[:, None]

    def extend(self, bank: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        if self.banks is not None:
            self.banks[bank] = (k, v)
        return k, v

    def fill_banks(self, done: int) -> None:
        for bank, last in _deeper_banks(self, done) if self.banks is not None else ():
            self.banks[bank] = self.banks[last]


class CachedContext(Context):
    """Generation through a transformers cache: new tokens attend to what the cache holds and to one another."""

    def __init__(
        self,
        config: LoopedConfig,
        cache: Any,
        attention_mask: Tensor,
        tokens: int,
        position_ids: Tensor | None,
        dtype: torch.dtype,
        depth: int,
    ) -> None:
        if position_ids is None:
            position_ids = positions_from_mask(attention_mask)[:, -tokens:]
        super().__init__(config, position_ids.expand(attention_mask.shape[0], -1), dtype, depth)
        self.cache = cache
        real = attention_mask.bool()
        columns = torch.arange(real.shape[1], device=real.device)
        queries = columns[-tokens:, None]
        itself = queries == columns
        self.mask = (((queries >= columns) & real[:, None, :]) | itself)[:, None]

    def extend(self, bank: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return self.cache.update(k, v, bank)


class DecodeContext(Context):
    """A rollout's decoding: one token per row and step, preallocated banks, prompts padded on the left.

    Built from a recorded prefill of the prompts; each prompt's banks are copied to its `repeats` completions. All
    rows write the same column at a step, so a bank is a view of a fixed buffer and nothing is concatenated.
    """

    def __init__(self, prefill: PaddedContext, prompt_mask: Tensor, repeats: int, capacity: int) -> None:
        self.config, self.dtype, self.depth = prefill.config, prefill.dtype, prefill.depth
        assert prefill.banks is not None
        self.length = prompt_mask.shape[1]
        self.real = torch.ones(
            prompt_mask.shape[0] * repeats, self.length + capacity, dtype=torch.bool, device=prompt_mask.device
        )
        self.real[:, : self.length] = prompt_mask.bool().repeat_interleave(repeats, dim=0)
        self.banks: dict[int, tuple[Tensor, Tensor]] = {}
        for bank in list(prefill.banks):
            self.banks[bank] = tuple(  # type: ignore[assignment]
                self._grown(x, repeats, capacity) for x in prefill.banks.pop(bank)
            )

    @staticmethod
    def _grown(x: Tensor, repeats: int, capacity: int) -> Tensor:
        rows, heads, length, dim = x.shape
        buffer = x.new_empty(rows, repeats, heads, length + capacity, dim)  # a column is read once it is written
        buffer[..., :length, :] = x[:, None]
        return buffer.view(rows * repeats, heads, length + capacity, dim)

    def step(self, position_ids: Tensor) -> "DecodeContext":
        """Open the next column, for tokens at these positions (int64 [rows, 1])."""
        Context.__init__(self, self.config, position_ids, self.dtype, self.depth)
        self.length += 1
        visible = self.real[:, : self.length]
        self.mask = None if bool(visible.all()) else visible[:, None, None, :]
        return self

    def extend(self, bank: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        keys, values = self.banks[bank]
        keys[:, :, self.length - 1] = k[:, :, 0]
        values[:, :, self.length - 1] = v[:, :, 0]
        return keys[:, :, : self.length], values[:, :, : self.length]

    def fill_banks(self, done: int) -> None:
        for bank, last in _deeper_banks(self, done):
            for buffer, source in zip(self.banks[bank], self.banks[last], strict=True):
                buffer[:, :, self.length - 1] = source[:, :, self.length - 1]

    def keep(self, rows: Tensor) -> None:
        """Drop all rows but these (int64 [kept]), one bank after the other: there are never two copies of all."""
        self.real = self.real[rows]
        for bank, (k, v) in self.banks.items():
            self.banks[bank] = self._kept(k, rows), self._kept(v, rows)

    def _kept(self, x: Tensor, rows: Tensor) -> Tensor:
        kept = x.new_empty(len(rows), *x.shape[1:])
        kept[:, :, : self.length] = x[rows, :, : self.length]
        return kept


def _deeper_banks(context: Context, done: int) -> Iterator[tuple[int, int]]:
    """(bank, bank of the same layer at recurrence `done` - 1) for every recurrence past it."""
    config = context.config
    for layer in range(config.prelude_layers, config.prelude_layers + config.core_layers):
        last = context.bank(layer, done - 1)
        for recurrence in range(done, context.depth):
            if (bank := context.bank(layer, recurrence)) != last:
                yield bank, last
