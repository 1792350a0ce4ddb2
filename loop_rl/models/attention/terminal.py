"""Terminal KV sharing: one KV bank a physical layer, whatever the depth (paper, section 3.2).

Each prefix token keeps only what its last recurrence wrote. Every recurrence of a later token reads those banks beside
its own keys and values of that recurrence: since a bank's name leaves the recurrence out, each recurrence of the newest
token overwrites its own column, and the last one's stays.
"""

import torch
from torch import Tensor

from loop_rl.models.attention.context import Context, DecodeContext, PaddedContext
from loop_rl.models.config import LoopedConfig


class TerminalBanks(Context):
    """Names a bank by its physical layer alone."""

    def bank(self, layer: int, recurrence: int) -> int:
        return layer


class TerminalPrefill(TerminalBanks, PaddedContext):
    """A full pass over the prompts; of what it records, the last recurrence's banks stay."""


class TerminalDecode(TerminalBanks, DecodeContext):
    """Decoding against terminal banks, after a TerminalPrefill."""


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


class TerminalContinuation(TerminalBanks, ContinuationContext):
    """See ContinuationContext."""


def cache_floats(config: LoopedConfig, depth: int, terminal: bool) -> int:
    """Numbers that a cache holds for each token: keys and values of all its banks."""
    physical = config.prelude_layers + config.core_layers + config.coda_layers
    banks = physical if terminal else config.bank_count(depth)
    return banks * 2 * config.num_key_value_heads * config.head_dim
