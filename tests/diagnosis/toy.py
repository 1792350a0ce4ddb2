"""A looped model whose recurrence is linear, z -> A z + e: every number of its diagnosis has a closed form."""

import torch
from torch import nn

from loop_rl.models import LoopedConfig
from loop_rl.models.looped import PreludeOutput

VOCABULARY, WIDTH = 11, 6


class LinearCore(nn.Module):
    """Prelude: the embedding. Core: A z + e. Coda: nothing. z0 = 0."""

    def __init__(self, matrix):
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.matrix = nn.Parameter(matrix)

    def prelude_forward(self, ids, context):
        e = self.embed_tokens(ids)
        return PreludeOutput(e, e, {})

    def recur(self, z, prelude, context, recurrence=0):
        return z @ self.matrix.T + prelude.injected

    def coda_forward(self, z, context, prelude=None):
        return z

    def draw_initial_state(self, position_ids, row_seeds=None, prelude=None):
        return torch.zeros(*position_ids.shape, WIDTH, dtype=self.matrix.dtype)

    def endpoint(self, prelude, z0, context):
        for _ in range(context.depth):
            z0 = self.recur(z0, prelude, context)
        return z0


class Toy(nn.Module):
    """What diagnose reads of a LoopedForCausalLM."""

    def __init__(self, matrix, depth=6):
        super().__init__()
        torch.manual_seed(0)
        self.config = LoopedConfig(vocab_size=VOCABULARY, hidden_size=WIDTH, depth=depth)
        self.model = LinearCore(matrix.double())
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.double()

    @property
    def dtype(self):
        return torch.float64

    @property
    def device(self):
        return torch.device("cpu")


def rotation(angle, scale):
    """A of size WIDTH: one rotated and scaled plane, the rest shrinking fast."""
    matrix = 0.1 * torch.eye(WIDTH, dtype=torch.float64)
    c, s = torch.cos(torch.tensor(angle)).item(), torch.sin(torch.tensor(angle)).item()
    matrix[:2, :2] = scale * torch.tensor([[c, -s], [s, c]], dtype=torch.float64)
    return matrix
