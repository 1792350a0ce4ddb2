"""What the head says of tokens, a chunk of them at a time, so that no logits of a whole micro-batch exist."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

#: logits of one chunk, of which a few copies in float32 are alive at once (128 MiB each)
CHUNK = 2**25

Head = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def chunk_tokens(vocab_size: int) -> int:
    """Tokens of a chunk."""
    return max(1, CHUNK // vocab_size)


def token_logps(head: nn.Module, hidden: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probabilities of the targets at a temperature, and the entropy of each distribution, without gradient.

    In float32 (float64 for states of float64). hidden [N, width], targets int64 [N] -> [N], [N], in nats.
    """

    def logps(hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        every = torch.log_softmax(_precise(head(hidden)) / temperature, dim=-1)
        with torch.no_grad():
            entropy = -(every.exp() * every).sum(-1)
        return every.gather(-1, targets[:, None])[:, 0], entropy

    return _in_chunks(head, logps, hidden, targets)


def token_cross_entropy(head: nn.Module, hidden: Tensor, labels: Tensor, ignored: int) -> Tensor:
    """Cross-entropy in nats, 0 where the label is `ignored`; precision and shapes as `token_logps`."""

    def losses(hidden: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        loss = F.cross_entropy(_precise(head(hidden)), labels, ignore_index=ignored, reduction="none")
        return loss, loss.detach()

    return _in_chunks(head, losses, hidden, labels)[0]


def token_kl(head: nn.Module, hidden: Tensor, expected: Tensor) -> Tensor:
    """KL(p || q) in nats, where q is read out of `hidden` and p of `expected`, which gets no gradient.

    Both are states [N, width] -> [N]; precision as `token_logps`.
    """

    def divergences(hidden: Tensor, expected: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            p = _precise(head(expected)).log_softmax(-1)
        q = _precise(head(hidden)).log_softmax(-1)
        kl = F.kl_div(q, p, log_target=True, reduction="none").sum(-1)
        return kl, kl.detach()

    return _in_chunks(head, divergences, hidden, expected)[0]


def _precise(logits: Tensor) -> Tensor:
    return logits if logits.dtype == torch.float64 else logits.float()


def _in_chunks(head: nn.Module, function: Head, hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """function(hidden, targets), by chunks if they are many; its first output is differentiable."""
    size = chunk_tokens(_vocabulary(head))
    if len(hidden) <= size:
        return function(hidden, targets)
    trained = [p for p in head.parameters() if p.requires_grad]
    return _Chunked.apply(function, size, hidden, targets, *trained)


def _vocabulary(head: nn.Module) -> int:
    return head.out_features  # of nn.Linear, and of PEFT's layer around one


class _Chunked(torch.autograd.Function):
    """A function of tokens whose backward pass computes each chunk again; gradients of the parameters are summed over
    chunks in float32, so that a bfloat16 model's are rounded once, as without chunks."""

    @staticmethod
    def forward(ctx: Any, function: Head, size: int, hidden: Tensor, targets: Tensor, *trained: Tensor) -> Any:
        ctx.function, ctx.size, ctx.trained = function, size, trained
        ctx.save_for_backward(hidden, targets)
        parts = [function(h, t) for h, t in zip(hidden.split(size), targets.split(size), strict=True)]
        value, beside = (torch.cat(part) for part in zip(*parts, strict=True))
        ctx.mark_non_differentiable(beside)
        return value, beside

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> Any:
        hidden, targets = ctx.saved_tensors
        states = torch.empty_like(hidden)
        sums: list[Tensor | None] = [None] * len(ctx.trained)
        pieces = zip(*(x.split(ctx.size) for x in (hidden, targets, gradient, states)), strict=True)
        for h, t, g, into in pieces:
            with torch.enable_grad():
                h = h.detach().requires_grad_(True)
                value, _ = ctx.function(h, t)
            of_states, *of_trained = torch.autograd.grad(value, [h, *ctx.trained], g, allow_unused=True)
            into.copy_(of_states)
            for place, part in enumerate(of_trained):
                if part is not None:
                    part, total = _precise(part), sums[place]
                    sums[place] = part if total is None else total.add_(part)
        return None, None, states, None, *sums
