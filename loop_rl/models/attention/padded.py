"""A batch in one pass."""

import torch
from torch import Tensor

from loop_rl.models.attention.context import Context, positions_from_mask
from loop_rl.models.config import LoopedConfig


class PaddedContext(Context):
    """A batch in one pass, padded on either side (or with holes).

    Only keys left of a real token can be pads in a left-padded row; a row padded on the right needs no mask, since
    causality already hides its pads. Pads attend to themselves so that no softmax is empty. With `record`, every
    bank's rotated keys and values are kept for a decoding context. Without `causal` every token attends to all real
    ones of its row.
    """

    def __init__(
        self,
        config: LoopedConfig,
        attention_mask: Tensor,
        position_ids: Tensor | None = None,
        dtype: torch.dtype = torch.float32,
        depth: int = 1,
        record: bool = False,
        causal: bool = True,
    ) -> None:
        if position_ids is None:
            position_ids = positions_from_mask(attention_mask)
        super().__init__(config, position_ids.expand(attention_mask.shape[0], -1), dtype, depth)
        self.banks: dict[int, tuple[Tensor, Tensor]] | None = {} if record else None
        self.mask, self.causal = _mask(attention_mask.bool(), causal)

    def extend(self, bank: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        if self.banks is not None:
            self.banks[bank] = (k, v)
        return k, v

    def fill_banks(self, done: int) -> None:
        for bank, last in self.deeper_banks(done) if self.banks is not None else ():
            self.banks[bank] = self.banks[last]


def _mask(real: Tensor, causal: bool) -> tuple[Tensor | None, bool]:
    """The mask of a Context and whether it is causal without one. real: bool [B, T]."""
    tokens = real.shape[1]
    right_padded = bool((real[:, :-1] | ~real[:, 1:]).all()) if tokens > 1 else True
    if causal and right_padded:
        return None, True
    if not causal and bool(real.all()):
        return None, False
    itself = torch.eye(tokens, dtype=torch.bool, device=real.device)
    visible = real[:, None, :].expand(-1, tokens, -1)
    if causal:
        visible = visible & torch.ones(tokens, tokens, dtype=torch.bool, device=real.device).tril()
    return (visible | itself)[:, None], False
