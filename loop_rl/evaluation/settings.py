"""All that decides an evaluation's samples and scores, so that kept batches are reused only where nothing changed."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import loop_rl
from loop_rl.data import Example
from loop_rl.evaluation.evaluate import BATCH
from loop_rl.reward.reward import Reward, RewardSpec

if TYPE_CHECKING:
    from torch import Tensor

    from loop_rl.rollout.sampling import Sampling


def eval_settings(
    weights: str, device: str, data: str, examples: Sequence[Example], reward: RewardSpec, sampling: Sampling, seed: int
) -> dict[str, Any]:
    """The settings as JSON can hold them; `weights` is the digest of the model's, `device` where it samples."""
    from loop_rl.models.initial_state import INITIAL_STATE_VERSION

    said = "\0".join(f"{e.index}\0{e.prompt}\0{e.answer}\0{e.columns}" for e in examples)
    return {
        "loop_rl": loop_rl.__version__,
        "weights": weights,
        "initial_state": INITIAL_STATE_VERSION,
        "device": device,
        "data": data,
        "questions": len(examples),
        "examples": hashlib.sha256(said.encode()).hexdigest(),
        "reward": dict(reward.functions),
        "threshold": reward.threshold,
        "reward_code": Reward(reward).source(),
        "sampling": dataclasses.asdict(sampling),
        "seed": seed,
        "batch": BATCH,
    }


def settings_digest(settings: Mapping[str, Any]) -> str:
    """Eight hexadecimal digits that differ where the settings do."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]


def weights_digest(weights: Mapping[str, Tensor]) -> str:
    """A digest of a state dict: names, shapes and values."""
    import torch

    found = hashlib.sha256()
    for name, value in sorted(weights.items()):
        found.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
        found.update(value.detach().cpu().reshape(-1).view(torch.uint8).numpy())
    return found.hexdigest()
