"""Huginn-Linear: W_lin [h; e; 1], and a parameter-free RMSNorm at the core's exit (paper, equation 23)."""

from torch import Tensor, nn
from torch.nn import functional as F

from loop_rl.models.blocks import RMSNorm
from loop_rl.models.config import LoopedConfig
from loop_rl.models.injections import Injection


class HuginnLinear(Injection):
    """The half of W_lin that reads e, and the bias, do not depend on the recurrence and are applied once."""

    def __init__(self, config: LoopedConfig) -> None:
        super().__init__()
        self.width = config.hidden_size
        self.linear = nn.Linear(2 * self.width, self.width, bias=True)
        self.exit_norm = RMSNorm(self.width, config.rms_norm_eps, affine=False)

    def prepare(self, e: Tensor) -> Tensor:
        return F.linear(e, self.linear.weight[:, self.width :], self.linear.bias)

    def enter(self, z: Tensor, injected: Tensor) -> Tensor:
        return F.linear(z, self.linear.weight[:, : self.width]) + injected

    def leave(self, x: Tensor) -> Tensor:
        return self.exit_norm(x)
