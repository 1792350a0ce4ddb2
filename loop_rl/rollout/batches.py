"""Which completions are decoded at once: as many as a budget of tokens allows, at least one.

A group is a function of its seed, so how the groups are split changes nothing but rounding and memory.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import torch

from loop_rl.models import LoopedConfig
from loop_rl.models.attention.terminal import cache_floats
from loop_rl.rollout.sampling import Sampling

# The share of the device's memory that KV banks may fill where the recipe sets no budget.
_BANKS_SHARE = 0.25
_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def token_budget(config: LoopedConfig, sampling: Sampling, dtype: torch.dtype, device: torch.device) -> int:
    """Tokens, prompts included, that are decoded at once: the sampling's, or those whose banks fill the share above."""
    if sampling.max_batch_tokens is not None:
        return sampling.max_batch_tokens
    numbers = cache_floats(config, sampling.depth or config.depth, sampling.cache == "terminal")
    return int(_BANKS_SHARE * total_memory(device)) // (numbers * dtype.itemsize)


def total_memory(device: torch.device) -> int:
    """Bytes of the GPU, or of this machine or its container; not the free ones, which change from run to run."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    total = psutil.virtual_memory().total
    for file in map(Path, _LIMITS):
        if file.is_file() and (limit := file.read_text().strip()).isdigit():
            total = min(total, int(limit))
    return total


def batches(
    lengths: Sequence[int], generations: int, max_completion_length: int, budget: int
) -> Iterator[tuple[range, list[range]]]:
    """Prompts that are sampled together, in order, and the parts of their groups that are sampled one after the other.

    `budget` bounds rows times the longest row, prompt (of `lengths`) and max_completion_length. Groups are whole, in
    one part, unless one alone is past it; a part has at least one completion of each prompt.
    """
    start = 0
    while start < len(lengths):
        longest, stop = lengths[start], start + 1
        while stop < len(lengths):
            longer = max(longest, lengths[stop])
            if (stop + 1 - start) * generations * (longer + max_completion_length) > budget:
                break
            longest, stop = longer, stop + 1
        rows = max(1, budget // (longest + max_completion_length))
        size = generations if stop - start > 1 else min(rows, generations)
        parts = [range(first, min(first + size, generations)) for first in range(0, generations, size)]
        yield range(start, stop), parts
        start = stop
