"""A rollout's decoding."""

import torch
from torch import Tensor

from loop_rl.models.attention.context import Context
from loop_rl.models.attention.padded import PaddedContext


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
        for bank, last in self.deeper_banks(done):
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
