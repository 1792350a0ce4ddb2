"""Chunked log-probabilities against the logits of all tokens at once."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from loop_rl.bench.update import LiveBytes
from loop_rl.learner import head
from loop_rl.learner.head import token_cross_entropy, token_kl, token_logps

TOKENS, WIDTH, VOCABULARY = 23, 8, 50


def problem(dtype: torch.dtype) -> tuple[nn.Linear, torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    layer = nn.Linear(WIDTH, VOCABULARY, bias=False).to(dtype)
    hidden = torch.randn(TOKENS, WIDTH).to(dtype).requires_grad_()
    return layer, hidden, torch.randint(VOCABULARY, (TOKENS,)), torch.randn(TOKENS)


@pytest.mark.parametrize("chunk", [1, 4 * VOCABULARY, TOKENS * VOCABULARY])
def test_values_and_gradients_equal_those_of_all_logits(monkeypatch, chunk: int) -> None:
    layer, hidden, targets, weights = problem(torch.float64)
    every = (layer(hidden) / 0.7).log_softmax(-1)
    expected = every.gather(-1, targets[:, None])[:, 0]
    gradients = torch.autograd.grad((expected * weights).sum(), [hidden, layer.weight])
    monkeypatch.setattr(head, "CHUNK", chunk)
    logps, entropy = token_logps(layer, hidden, targets, 0.7)
    assert not entropy.requires_grad
    torch.testing.assert_close(logps, expected, rtol=1e-14, atol=1e-14)
    torch.testing.assert_close(entropy, -(every.exp() * every).sum(-1).detach(), rtol=1e-13, atol=1e-13)
    for ours, theirs in zip(
        torch.autograd.grad((logps * weights).sum(), [hidden, layer.weight]), gradients, strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-13, atol=1e-13)
    labels = torch.where(targets < 10, -100, targets)
    losses = token_cross_entropy(layer, hidden, labels, -100)
    wanted = F.cross_entropy(layer(hidden), labels, ignore_index=-100, reduction="none")
    torch.testing.assert_close(losses, wanted, rtol=1e-14, atol=1e-14)


def test_bfloat16_gradients_are_rounded_once(monkeypatch) -> None:
    """Without chunks a matrix product sums in float32 and rounds once; in chunks the sum of the chunks does."""
    layer, hidden, targets, weights = problem(torch.bfloat16)
    monkeypatch.setattr(head, "CHUNK", VOCABULARY)
    logps, _ = token_logps(layer, hidden, targets, 1.0)
    (found,) = torch.autograd.grad((logps * weights).sum(), [layer.weight])
    exact = nn.Linear(WIDTH, VOCABULARY, bias=False).double()
    exact.weight.data = layer.weight.detach().double()
    states = hidden.detach().double()
    logits = (states @ exact.weight.T).bfloat16().double()  # logits are bfloat16 in both
    sent = weights[:, None].double() * (F.one_hot(targets, VOCABULARY) - logits.softmax(-1))
    unit = 2.0**-9
    # each chunk's gradient is rounded before and after its product, and their sum once: three roundings at most
    bound = 3.1 * unit * (sent.abs().T @ states.abs())
    assert ((found.double() - sent.T @ states).abs() <= bound).all()


def test_memory_grows_with_the_states_and_not_with_the_logits(monkeypatch) -> None:
    monkeypatch.setattr(head, "CHUNK", 16 * VOCABULARY)
    layer, *_ = problem(torch.float32)

    def peak(tokens: int) -> int:
        hidden = torch.randn(tokens, WIDTH, requires_grad=True)
        targets = torch.randint(VOCABULARY, (tokens,))
        with LiveBytes([hidden, targets, *layer.parameters()]) as live:
            logps, _ = token_logps(layer, hidden, targets, 1.0)
            logps.sum().backward()
        return live.peak

    # for each token more: its state's gradient, two numbers and their gradients; its logits alone would be 4 VOCABULARY
    assert peak(640) - peak(320) <= 320 * 4 * (WIDTH + 8) < 320 * 4 * VOCABULARY


def test_a_head_that_is_not_trained(monkeypatch) -> None:
    layer, hidden, targets, _ = problem(torch.float64)
    layer.requires_grad_(False)
    monkeypatch.setattr(head, "CHUNK", VOCABULARY)
    logps, _ = token_logps(layer, hidden, targets, 1.0)
    expected = layer(hidden).log_softmax(-1).gather(-1, targets[:, None]).sum()
    torch.testing.assert_close(*(torch.autograd.grad(x, hidden)[0] for x in (logps.sum(), expected)))


@pytest.mark.parametrize("chunk", [1, 4 * VOCABULARY, TOKENS * VOCABULARY])
def test_divergences_equal_those_of_all_logits(monkeypatch, chunk: int) -> None:
    layer, hidden, _, weights = problem(torch.float64)
    expected = (hidden + torch.randn_like(hidden)).detach().requires_grad_()
    p, q = layer(expected).softmax(-1).detach(), layer(hidden).softmax(-1)
    written = (p * (p / q).log()).sum(-1)
    gradients = torch.autograd.grad((written * weights).sum(), [hidden, layer.weight])
    monkeypatch.setattr(head, "CHUNK", chunk)
    found = token_kl(layer, hidden, expected)
    torch.testing.assert_close(found, written, rtol=1e-12, atol=1e-12)
    (found * weights).sum().backward()
    assert expected.grad is None
    for ours, theirs in zip((hidden.grad, layer.weight.grad), gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
