"""Parcae's decay: Lambda h + Delta * W e~ with Lambda = exp(-Delta * alpha); e~ = RMSNorm(e), or e itself."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from loop_rl.models.blocks import RMSNorm
from loop_rl.models.config import LoopedConfig
from loop_rl.models.injections import Injection


class ParcaeNoNorm(Injection):
    """e~ = e. Starts at Delta = 1 and Lambda = 1/2."""

    def __init__(self, config: LoopedConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.projection = nn.Linear(width, width, bias=False)
        self.delta_raw = nn.Parameter(torch.full((width,), math.log(math.e - 1.0)))
        self.alpha_raw = nn.Parameter(torch.full((width,), math.log(math.log(2.0))))

    def decay(self) -> Tensor:
        """The diagonal of Lambda, in (0, 1); [width]."""
        return torch.exp(-F.softplus(self.delta_raw) * self.alpha_raw.exp())

    def prepare(self, e: Tensor) -> Tensor:
        """q = Delta * W e~; [B, T, width]."""
        return F.softplus(self.delta_raw) * self.projection(e)

    def enter(self, z: Tensor, injected: Tensor) -> Tensor:
        return self.decay() * z + injected


class Parcae(ParcaeNoNorm):
    """e~ = RMSNorm(e) with learned gains."""

    def __init__(self, config: LoopedConfig) -> None:
        super().__init__(config)
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def prepare(self, e: Tensor) -> Tensor:
        return super().prepare(self.norm(e))
