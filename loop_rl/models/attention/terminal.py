"""Terminal KV sharing: one KV bank a physical layer, whatever the depth (paper, section 3.2).

Each prefix token keeps only what its last recurrence wrote. Every recurrence of a later token reads those banks beside
its own keys and values of that recurrence: since a bank's name leaves the recurrence out, each recurrence of the newest
token overwrites its own column, and the last one's stays.
"""

from loop_rl.models.attention.context import Context
from loop_rl.models.attention.continuation import ContinuationContext
from loop_rl.models.attention.decoding import DecodeContext
from loop_rl.models.attention.padded import PaddedContext
from loop_rl.models.config import LoopedConfig


class TerminalBanks(Context):
    """Names a bank by its physical layer alone."""

    def bank(self, layer: int, recurrence: int) -> int:
        return layer


class TerminalPrefill(TerminalBanks, PaddedContext):
    """A full pass over the prompts; of what it records, the last recurrence's banks stay."""


class TerminalDecode(TerminalBanks, DecodeContext):
    """Decoding against terminal banks, after a TerminalPrefill."""


class TerminalContinuation(TerminalBanks, ContinuationContext):
    """See ContinuationContext."""


def cache_floats(config: LoopedConfig, depth: int, terminal: bool) -> int:
    """Numbers that a cache holds for each token: keys and values of all its banks."""
    physical = config.prelude_layers + config.core_layers + config.coda_layers
    banks = physical if terminal else config.bank_count(depth)
    return banks * 2 * config.num_key_value_heads * config.head_dim
