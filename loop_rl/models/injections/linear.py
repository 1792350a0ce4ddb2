"""Linear: W [h; e], without bias and without a norm at the core's exit."""

import torch
from torch import Tensor, nn

from loop_rl.models.config import LoopedConfig
from loop_rl.models.injections import Injection


class Linear(Injection):
    """The map is applied whole at every recurrence, so that an adapter on it takes part."""

    def __init__(self, config: LoopedConfig) -> None:
        super().__init__()
        self.linear = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)

    def enter(self, z: Tensor, injected: Tensor) -> Tensor:
        return self.linear(torch.cat((z, injected), dim=-1))
