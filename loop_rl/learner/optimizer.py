"""AdamW for every trainer. Below float32 it steps float32 master weights, from which the model's weights are made."""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from loop_rl.errors import UserError

log = logging.getLogger(__name__)

_LOW = (torch.bfloat16, torch.float16)
_MASTERS = "master_weights"


class MasterWeightAdamW(torch.optim.AdamW):
    """AdamW on float32 master weights of parameters below float32, with float32 moments.

    A step of AdamW is about the learning rate, whatever the gradient: at 1e-6 it is far below the last of bfloat16's 8
    bits for nearly every weight, and would be rounded away (mixed-precision training, arXiv:1710.03740, section 3.1).
    So `param_groups` holds the master weights, and after each step the parameters become them, rounded. Gradients
    accumulate on the parameters in float32: whatever clips them there clips what is stepped on.
    """

    def __init__(
        self, groups: Iterable[dict[str, Any]], start: Mapping[Tensor, Tensor] | None = None, **settings: Any
    ) -> None:
        """groups: of parameters; those of float32 and above are stepped as by AdamW. start: float32 values of some
        parameters, from which their master weights start and which become them; otherwise the parameters' own.

        Raises:
            UserError: this torch can't accumulate float32 gradients on such parameters.
        """
        self.copies: list[tuple[Tensor, Tensor]] = []

        def master(parameter: Tensor) -> Tensor:
            if parameter.dtype not in _LOW:
                return parameter
            if not hasattr(parameter, "grad_dtype"):
                raise UserError("model.dtype: bfloat16 needs torch 2.10 or newer; update torch, or train in float32")
            parameter.grad_dtype = torch.float32
            value = (start or {}).get(parameter)
            self.copies.append((parameter.detach().float() if value is None else value, parameter))
            return self.copies[-1][0]

        masters = [{**group, "params": [master(p) for p in group["params"]]} for group in groups]
        super().__init__(masters, **settings)

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One step of the master weights; then the parameters are made from them."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for master, parameter in self.copies:
            master.grad = parameter.grad
        super().step()
        with torch.no_grad():
            for master, parameter in self.copies:
                parameter.copy_(master)
                master.grad = None
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears the parameters' gradients, which are the only ones kept; they become None in any case."""
        super().zero_grad(set_to_none)
        for _, parameter in self.copies:
            parameter.grad = None

    def state_dict(self) -> dict[str, Any]:
        """As AdamW's, with `master_weights`, float32, in the order of the parameters."""
        return {**super().state_dict(), _MASTERS: [master for master, _ in self.copies]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores moments and master weights; a state without these starts them from the parameters, and says so."""
        masters = state_dict.get(_MASTERS)
        if masters is None:
            log.warning("the optimizer's state holds no master weights: they start from the model's rounded weights")
            masters = [parameter for _, parameter in self.copies]
        with torch.no_grad():
            for (master, _), saved in zip(self.copies, masters, strict=True):
                master.copy_(saved)
        super().load_state_dict({name: value for name, value in state_dict.items() if name != _MASTERS})


def make_optimizer(
    parameters: Iterable[Tensor] | Iterable[dict[str, Any]],
    optim: Any,
    start: Mapping[Tensor, Tensor] | None = None,
    **settings: Any,
) -> torch.optim.AdamW:
    """AdamW on parameters, or groups of them, with master weights where any is below float32.

    optim: a recipe's section, of which the rate and the betas are taken. start: see `MasterWeightAdamW`. settings: of
    AdamW.
    """
    groups = list(parameters)
    if groups and isinstance(groups[0], Tensor):
        groups = [{"params": groups}]
    settings = {"lr": optim.learning_rate, "betas": (optim.adam_beta1, optim.adam_beta2), **settings}
    if any(p.dtype in _LOW for group in groups for p in group["params"]):
        return MasterWeightAdamW(groups, start, **settings)
    return torch.optim.AdamW(groups, **settings)


def trainable(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    """The parameters that are trained, in the model's order."""
    return [p for p in model.parameters() if p.requires_grad]
