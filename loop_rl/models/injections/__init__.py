"""Input injections (paper, Table 7, and those of the released families), chosen by `config.injection`.

Protocol: `prepare(e)` computes once a forward what every recurrence is given; `enter(z, injected)` is the input of the
core; `qkv(index, injected)` is what recurrent layer `index` adds to its projections (None: nothing); `leave(x)` is
applied at the core's exit.
"""

from torch import Tensor, nn

from loop_rl.models.config import LoopedConfig


class Injection(nn.Module):
    """Defaults of the protocol: inject the prelude's output unchanged, nowhere."""

    def prepare(self, e: Tensor) -> Tensor:
        return e

    def enter(self, z: Tensor, injected: Tensor) -> Tensor:
        return z

    def qkv(self, index: int, injected: Tensor) -> Tensor | None:
        return None

    def leave(self, x: Tensor) -> Tensor:
        return x


def make_injection(config: LoopedConfig) -> Injection:
    """Build the injection that the config names."""
    from loop_rl.models.injections.deq_qkv import DeqQkv
    from loop_rl.models.injections.huginn_linear import HuginnLinear
    from loop_rl.models.injections.linear import Linear
    from loop_rl.models.injections.ortho import Ortho
    from loop_rl.models.injections.parcae import Parcae, ParcaeNoNorm

    kinds = {
        "deq_qkv": DeqQkv,
        "huginn_linear": HuginnLinear,
        "parcae": Parcae,
        "parcae_no_norm": ParcaeNoNorm,
        "ortho": Ortho,
        "linear": Linear,
        "none": lambda config: Injection(),  # the input reaches the loop by the initial state alone
    }
    return kinds[config.injection](config)
