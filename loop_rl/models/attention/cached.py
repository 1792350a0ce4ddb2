"""Generation through a transformers cache."""

from typing import Any

import torch
from torch import Tensor

from loop_rl.models.attention.context import Context, positions_from_mask
from loop_rl.models.config import LoopedConfig


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
