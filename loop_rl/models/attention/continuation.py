"""The second part of a pass in two parts."""

import torch
from torch import Tensor

from loop_rl.models.attention.context import Context
from loop_rl.models.attention.padded import PaddedContext


class ContinuationContext(Context):
    """A second part of unpadded rows in one pass: it reads the first part's banks, and itself causally.

    After a PaddedContext's prefill this is the full pass, split in two. As TerminalContinuation, after a
    TerminalPrefill, it scores under terminal sharing: the prefix is read through its terminal banks at every
    recurrence, the part itself as in training.
    """

    def __init__(self, prefill: PaddedContext, tokens: int) -> None:
        """prefill: recorded, of unpadded rows; tokens: how many follow it."""
        rows, past = prefill.position_ids.shape
        device = prefill.position_ids.device
        positions = torch.arange(past, past + tokens, device=device).expand(rows, tokens)
        super().__init__(prefill.config, positions, prefill.dtype, prefill.depth)
        assert prefill.banks is not None
        self.banks = prefill.banks
        columns = torch.arange(past + tokens, device=device)
        self.mask = (columns <= columns[past:, None])[None, None]

    def extend(self, bank: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        keys, values = self.banks[bank]
        return torch.cat((keys, k), dim=2), torch.cat((values, v), dim=2)
