"""What rounding may do to a result, measured on the computation itself: a bound on a float error that no machine sets.

A stable computation in a dtype gives what exact arithmetic gives for weights that are off by a few units in the last
place (its backward error). How far such weights move the exact result is the problem's condition; it is measured in
float64. Sums of n products are off by about sqrt(n) units at every layer, for the tests' models 1 to 3 units in all.
"""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from loop_rl.fixed_point import parse_estimator
from loop_rl.learner.batch import Sample, collate
from loop_rl.learner.scoring import score

ROUNDINGS = 8


def rounding(run: Callable[[nn.Module], Tensor], model: nn.Module, dtype: torch.dtype = torch.float32) -> float:
    """Largest error that `run(model)` may have in `dtype`; the model may itself be in any dtype.

    `run` is called on float64 copies of the model, with its weights as they are, and off by up to one unit in the last
    place of `dtype` at random.
    """
    exact = copy.deepcopy(model).double()
    unit = torch.finfo(dtype).eps
    with torch.no_grad():
        expected = run(exact)
        moved = 0.0
        for seed in range(3):
            generator = torch.Generator().manual_seed(seed)
            other = copy.deepcopy(exact)
            for parameter in other.parameters():
                noise = 2 * torch.rand(parameter.shape, generator=generator, dtype=torch.float64) - 1
                parameter.mul_(1 + unit * noise)
            moved = max(moved, float((run(other) - expected).abs().max()))
    return ROUNDINGS * moved


def logp_rounding(
    model: nn.Module, samples: list[Sample], temperature: float = 1.0, dtype: torch.dtype = torch.float32
) -> float:
    """How far apart sampler and learner may be in a token's log-probability in `dtype`: each is off by `rounding`."""
    batch = collate(samples, False)

    def logps(m: nn.Module) -> Tensor:
        return score(m, batch, parse_estimator("full_bptt"), temperature).logps[batch.mask]

    return 2 * rounding(logps, model, dtype)
