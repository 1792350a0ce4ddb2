"""Endpoint gradients against closed forms, explicit Jacobians and autograd through unrolled iterations."""

import logging

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from loop_rl.fixed_point import Implicit, Neumann, endpoint_gradient, iterate, row_norms

WIDTH, ROWS, EXACT = 6, 5, 1e-8


def contraction(seed: int, kappa: float = 0.6) -> Tensor:
    """A random float64 matrix of spectral norm kappa, not symmetric."""
    matrix = torch.randn(WIDTH, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return matrix * (kappa / torch.linalg.matrix_norm(matrix, 2))


def tensors(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """e [ROWS, WIDTH], B [WIDTH, WIDTH], g [ROWS, WIDTH]."""
    generator = torch.Generator().manual_seed(seed)
    e, b, g = (torch.randn(rows, WIDTH, dtype=torch.float64, generator=generator) for rows in (ROWS, WIDTH, ROWS))
    return e, b, g


def gradients(z: Tensor, g: Tensor, inputs: list[Tensor]) -> tuple[Tensor, ...]:
    return torch.autograd.grad((z * g).sum(), inputs)


@pytest.mark.parametrize("terms", [1, 2, 3, 4, 9])
def test_neumann_equals_the_closed_form_of_a_linear_map(terms):
    j, (e, b, g) = contraction(0), tensors(1)
    e.requires_grad_(), b.requires_grad_()
    z = torch.randn(ROWS, WIDTH, dtype=torch.float64)
    out = endpoint_gradient(lambda z: z @ j.T + e @ b.T, z, Neumann(terms).transform)
    grad_e, grad_b = gradients(out, g, [e, b])
    eye = torch.eye(WIDTH, dtype=torch.float64)
    # sum_{i<k} J^i = (I - J)^-1 (I - J^k)
    series = torch.linalg.inv(eye - j) @ (eye - torch.linalg.matrix_power(j, terms))
    torch.testing.assert_close(grad_e, g @ series @ b.detach(), rtol=0, atol=EXACT)
    torch.testing.assert_close(grad_b, (g @ series).T @ e.detach(), rtol=0, atol=EXACT)


@pytest.mark.parametrize("activation", [lambda x: x, torch.tanh], ids=["linear", "tanh"])
@pytest.mark.parametrize("terms", [1, 2, 4, 7])
def test_at_a_fixed_point_it_equals_autograd_through_the_last_steps(activation, terms):
    j, (e, b, g) = contraction(2), tensors(3)
    for x in (j, e, b):
        x.requires_grad_()

    def f(z: Tensor) -> Tensor:
        return activation(z @ j.T + e @ b.T)

    with torch.no_grad():
        fixed = iterate(f, torch.zeros_like(e), 200)
        assert (f(fixed) - fixed).abs().max() < 1e-13
    ours = gradients(endpoint_gradient(f, fixed, Neumann(terms).transform), g, [j, e, b])
    suffix = gradients(iterate(f, fixed.detach(), terms), g, [j, e, b])
    for a, c in zip(ours, suffix, strict=True):
        torch.testing.assert_close(a, c, rtol=0, atol=EXACT)


@pytest.mark.parametrize("kappa", [0.3, 0.9])
def test_implicit_solves_the_transposed_system(kappa):
    j, (_, _, g) = contraction(4, kappa), tensors(5)
    solved = torch.linalg.solve((torch.eye(WIDTH, dtype=torch.float64) - j).T, g.T).T
    found = Implicit(1e-12, 1000).transform(lambda v: v @ j, g)
    torch.testing.assert_close(found, solved, rtol=0, atol=EXACT)


def test_implicit_stops_each_row_by_itself():
    """Row i is scaled by rates[i]: its k-th term is rates^k, the last one that below the tolerance."""
    rates = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)[:, None]
    g = torch.ones(3, 2, dtype=torch.float64)
    found = Implicit(1e-3, 1000).transform(lambda v: rates * v, g)
    for row, rate in enumerate(rates.flatten().tolist()):
        total = term = 1.0
        while term > 1e-3 * total:
            term *= rate
            total += term
        torch.testing.assert_close(found[row], torch.full((2,), total, dtype=torch.float64), rtol=1e-14, atol=0)
        alone = Implicit(1e-3, 1000).transform(lambda v, r=rate: r * v, g[row : row + 1])
        assert torch.equal(alone[0], found[row])


def test_norms_and_ratios_of_bfloat16_are_float32():
    v = torch.full((2, 1000), 1.0).bfloat16()
    assert row_norms(v).dtype == torch.float32
    torch.testing.assert_close(row_norms(v).flatten(), torch.full((2,), 1000.0**0.5))
    # 0.7 in bfloat16 is 0.69921875, so the tail multiplies the last term by 0.69921875 / (1 - 0.69921875), rounded once
    rate = torch.tensor(0.7).bfloat16()
    found = Neumann(2, tail=True).transform(lambda v: rate * v, v)
    ratio = float(rate) / (1 - float(rate))
    expected = (1 + rate) + rate * torch.tensor(ratio).bfloat16()
    assert torch.equal(found, expected.expand_as(found))


def test_implicit_warns_when_the_map_does_not_contract(caplog):
    with caplog.at_level(logging.WARNING):
        Implicit(1e-6, 5).transform(lambda v: 1.1 * v, torch.ones(3))
    assert "may not contract" in caplog.text


@pytest.mark.parametrize("kappa", [0.2, 0.5, 0.8])
def test_error_is_within_the_geometric_bound(kappa):
    j, (_, b, g) = contraction(6, kappa), tensors(7)
    exact = g @ torch.linalg.inv(torch.eye(WIDTH, dtype=torch.float64) - j) @ b
    for terms in range(1, 12):
        error = (Neumann(terms).transform(lambda v: v @ j, g) @ b - exact).norm()
        assert error <= torch.linalg.matrix_norm(b, 2) * g.norm() * kappa**terms / (1 - kappa)


@pytest.mark.parametrize("eigenvalue", [-0.7, 0.0, 0.4, 0.85])
@pytest.mark.parametrize("terms", [2, 3, 4])
def test_tail_is_exact_along_a_single_eigenvector(eigenvalue, terms):
    _, _, g = tensors(8)
    found = Neumann(terms, tail=True).transform(lambda v: eigenvalue * v, g)
    torch.testing.assert_close(found, g / (1 - eigenvalue), rtol=0, atol=EXACT)


def test_tail_ratio_is_clamped():
    g = torch.ones(4, dtype=torch.float64)
    for eigenvalue, clamped in ((1.5, 0.9), (-1.5, -0.9)):
        expected = g + eigenvalue * g + eigenvalue * g * clamped / (1 - clamped)
        torch.testing.assert_close(Neumann(2, tail=True).transform(lambda v, x=eigenvalue: x * v, g), expected)
    assert Neumann(3, tail=True).transform(lambda v: v, torch.zeros(4)).isfinite().all()


@pytest.mark.parametrize("terms", [2, 3, 4, 6])
def test_tail_lowers_the_error(terms):
    _, _, g = tensors(9)
    basis = torch.linalg.qr(contraction(10)).Q
    j = basis @ torch.diag(torch.linspace(0.1, 0.8, WIDTH, dtype=torch.float64)) @ basis.T
    exact = g @ torch.linalg.inv(torch.eye(WIDTH, dtype=torch.float64) - j)
    plain, tailed = (Neumann(terms, tail).transform(lambda v: v @ j, g) - exact for tail in (False, True))
    assert tailed.norm() < 0.7 * plain.norm()


def test_value_is_the_saved_state_bit_for_bit():
    saved = torch.randn(ROWS, WIDTH)
    weight = torch.randn(WIDTH, WIDTH, requires_grad=True)
    out = endpoint_gradient(lambda z: z @ weight, saved, Neumann(3).transform)
    assert torch.equal(out, saved) and out.requires_grad and out.data_ptr() != saved.data_ptr()


def test_state_products_compute_no_parameter_gradient():
    weight = torch.randn(WIDTH, WIDTH, dtype=torch.float64, requires_grad=True)
    computed = []
    weight.register_hook(lambda grad: computed.append(1))
    saved = torch.randn(ROWS, WIDTH, dtype=torch.float64)

    def flops(terms: int) -> int:
        out = endpoint_gradient(lambda z: z @ weight, saved, Neumann(terms).transform)
        with FlopCounterMode(display=False) as counter:
            out.sum().backward()
        return counter.get_total_flops()

    one_product = 2 * ROWS * WIDTH * WIDTH
    counts = [flops(terms) for terms in (1, 2, 3, 8)]
    assert [count - counts[0] for count in counts] == [0, one_product, 2 * one_product, 7 * one_product]
    assert len(computed) == 4, "one weight gradient a backward"


def test_map_is_applied_once_and_the_graph_is_freed():
    calls = []
    weight = torch.randn(WIDTH, WIDTH, requires_grad=True)

    def f(z: Tensor) -> Tensor:
        calls.append(1)
        return torch.tanh(z @ weight)

    out = endpoint_gradient(f, torch.randn(ROWS, WIDTH), Neumann(5).transform)
    out.sum().backward()
    assert len(calls) == 1
    with pytest.raises(RuntimeError, match="second time"):
        out.sum().backward()
