"""DEQ-QKV: W_QKV h + W_e e inside each recurrent layer, nothing at the entrance."""

import torch
from torch import Tensor, nn

from loop_rl.models.config import LoopedConfig
from loop_rl.models.injections import Injection


class DeqQkv(Injection):
    """One bias-free W_e per recurrent layer, shared by all recurrences."""

    def __init__(self, config: LoopedConfig) -> None:
        super().__init__()
        self.size = (config.num_attention_heads + 2 * config.num_key_value_heads) * config.head_dim
        self.projections = nn.ModuleList(
            nn.Linear(config.hidden_size, self.size, bias=False) for _ in range(config.core_layers)
        )

    def prepare(self, e: Tensor) -> Tensor:
        """[B, T, width] -> [core_layers, B, T, q+k+v]: every layer's projection of e."""
        return torch.stack([projection(e) for projection in self.projections])

    def qkv(self, index: int, injected: Tensor) -> Tensor:
        return injected[index]
