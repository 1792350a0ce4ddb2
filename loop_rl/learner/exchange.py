"""What the main rank deals out to the others: anything that pickles, its arrays as they are beside the pickle."""

import pickle
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist

T = TypeVar("T")


def deal(parts: Sequence[T], group: dist.ProcessGroup | None) -> T:
    """On the main rank: every other rank `receive`s its part; returns the main rank's own.

    group: one that takes CPU tensors; None for a lone rank.
    """
    for rank, part in enumerate(parts[1:], start=1):
        arrays: list[pickle.PickleBuffer] = []
        head = pickle.dumps(part, protocol=5, buffer_callback=arrays.append)
        pieces = [np.frombuffer(piece, np.uint8) for piece in (head, *(array.raw() for array in arrays))]
        sizes = torch.tensor([len(piece) for piece in pieces])
        for message in (torch.tensor([len(sizes)]), sizes, torch.from_numpy(np.concatenate(pieces))):
            dist.send(message, rank, group)
    return parts[0]


def receive(group: dist.ProcessGroup) -> Any:
    """This rank's part of what the main rank deals."""

    def message(size: int, dtype: torch.dtype) -> torch.Tensor:
        received = torch.empty(size, dtype=dtype)
        dist.recv(received, 0, group)
        return received

    sizes = message(int(message(1, torch.int64)), torch.int64)
    head, *arrays = message(int(sizes.sum()), torch.uint8).split(sizes.tolist())
    return pickle.loads(head.numpy().tobytes(), buffers=[array.numpy() for array in arrays])
