"""Injections against their formulas (paper, Table 7), written token by token with explicit matrices in float64."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import softplus

from loop_rl.models import LoopedForCausalLM
from loop_rl.models.attention.padded import PaddedContext
from loop_rl.models.looped import PreludeOutput
from tests.models.tiny_looped import INJECTIONS, tiny_config, tiny_model

BATCH, TOKENS, WIDTH, EXACT = 2, 3, 16, 1e-12


@pytest.fixture(params=INJECTIONS)
def injection(request):
    return tiny_model(injection=request.param).model.injection


@pytest.fixture
def state():
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(BATCH, TOKENS, WIDTH, dtype=torch.float64, generator=generator) for _ in range(2)]


def only(name):
    return pytest.mark.parametrize("injection", [name], indirect=True)


def rms(x: Tensor, eps: float = 1e-5) -> Tensor:
    return x / torch.sqrt((x**2).sum() / x.numel() + eps)


def per_token(function, *tensors: Tensor) -> Tensor:
    """Apply `function` to each token's vectors."""
    rows = [function(*vectors) for vectors in zip(*(x.reshape(-1, WIDTH) for x in tensors), strict=True)]
    return torch.stack(rows).view(BATCH, TOKENS, -1)


def decay(injection) -> Tensor:
    """Lambda = exp(-Delta alpha), as a matrix."""
    return torch.diag(torch.exp(-softplus(injection.delta_raw) * torch.exp(injection.alpha_raw)))


def scaled(injection) -> Tensor:
    """Delta W."""
    return torch.diag(softplus(injection.delta_raw)) @ injection.projection.weight


@only("ortho")
def test_ortho(injection, state):
    h, e = state

    def formula(h, e):
        q = scaled(injection) @ e
        project = torch.eye(WIDTH, dtype=torch.float64) - torch.outer(q, q) / (q @ q + 1e-6)
        return project @ decay(injection) @ h + q

    torch.testing.assert_close(injection.enter(h, injection.prepare(e)), per_token(formula, h, e), rtol=0, atol=EXACT)


@only("ortho")
def test_ortho_of_no_input_is_the_decayed_state(injection, state):
    h, _ = state
    out = injection.enter(h, torch.zeros_like(h))
    torch.testing.assert_close(out, h @ decay(injection), rtol=0, atol=EXACT)


@only("parcae_no_norm")
def test_parcae_no_norm(injection, state):
    h, e = state
    expected = per_token(lambda h, e: decay(injection) @ h + scaled(injection) @ e, h, e)
    torch.testing.assert_close(injection.enter(h, injection.prepare(e)), expected, rtol=0, atol=EXACT)


@only("parcae")
def test_parcae(injection, state):
    h, e = state
    expected = per_token(lambda h, e: decay(injection) @ h + scaled(injection) @ (rms(e) * injection.norm.weight), h, e)
    torch.testing.assert_close(injection.enter(h, injection.prepare(e)), expected, rtol=0, atol=EXACT)


@only("huginn_linear")
def test_huginn_linear(injection, state):
    h, e = state
    weight = torch.cat((injection.linear.weight, injection.linear.bias[:, None]), dim=1)
    one = torch.ones(1, dtype=torch.float64)
    expected = per_token(lambda h, e: weight @ torch.cat((h, e, one)), h, e)
    torch.testing.assert_close(injection.enter(h, injection.prepare(e)), expected, rtol=0, atol=EXACT)
    torch.testing.assert_close(injection.leave(h), per_token(rms, h), rtol=0, atol=EXACT)


class RecordingContext:
    """Keeps what a block asks to attend with; [B, H, T, d] each."""

    def attend(self, layer, recurrence, q, k, v):
        self.asked = (q, k, v)
        return q


def test_deq_qkv_adds_to_every_projection(state):
    model = tiny_model(injection="deq_qkv").model
    h, e = state
    prepared = model.injection.prepare(e)
    for index, block in enumerate(model.core):
        context = RecordingContext()
        block.attn(h, context, 1, 0, model.injection.qkv(index, prepared))
        weight = torch.cat([block.attn.q_proj.weight, block.attn.k_proj.weight, block.attn.v_proj.weight])
        w_e = model.injection.projections[index].weight
        expected = per_token(lambda h, e, w=weight, w_e=w_e: w @ h + w_e @ e, h, e)
        found = torch.cat([x.transpose(1, 2).flatten(2) for x in context.asked], dim=-1)
        torch.testing.assert_close(found, expected, rtol=0, atol=EXACT)
    assert torch.equal(model.injection.enter(h, prepared), h)


def test_starting_values_of_parcae_s_decay():
    injection = LoopedForCausalLM(tiny_config()).model.injection
    torch.testing.assert_close(injection.decay(), torch.full((WIDTH,), 0.5))
    torch.testing.assert_close(softplus(injection.delta_raw), torch.ones(WIDTH))


@pytest.mark.parametrize("name", INJECTIONS)
def test_the_injected_input_reaches_every_recurrence(name, state):
    model = tiny_model(injection=name)
    z, x = state
    context = PaddedContext(model.config, torch.ones(BATCH, TOKENS), dtype=torch.float64)
    copies = [model.model.injection.prepare(x).detach().requires_grad_() for _ in range(3)]
    for e in copies:
        z = model.model.recur(z, PreludeOutput(e, x, {}), context)
    grads = torch.autograd.grad(z.sum(), copies)
    assert all(grad.abs().max() > 1e-6 for grad in grads)
