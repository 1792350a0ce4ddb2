"""OrthoInj: Q_q Lambda h + q, Q_q = I - q q^T / (|q|^2 + 1e-6), per token (paper, equation 8)."""

from torch import Tensor

from loop_rl.models.injections.parcae import ParcaeNoNorm

EPSILON = 1e-6


class Ortho(ParcaeNoNorm):
    """The state's component along the injected input is removed before the input is added."""

    def enter(self, z: Tensor, injected: Tensor) -> Tensor:
        kept = self.decay() * z
        share = (injected * kept).sum(-1, keepdim=True) / (injected.square().sum(-1, keepdim=True) + EPSILON)
        return kept + (1.0 - share) * injected
