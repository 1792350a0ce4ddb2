"""Estimators by name: their gradients, what they need, and what is refused."""

import pytest
import torch
from torch import Tensor

from loop_rl.fixed_point import (
    FullBPTT,
    Implicit,
    Neumann,
    Recompute,
    Reuse,
    TruncatedBPTT,
    iterate,
    parse_estimator,
    rank,
)

DEPTH = 6


@pytest.fixture
def problem():
    """(f, leaves J B e, z0, g): z -> tanh(z J^T + e B^T), J of spectral norm 1/2, float64."""
    generator = torch.Generator().manual_seed(0)
    j, b, e, z0, g = (
        torch.randn(*shape, dtype=torch.float64, generator=generator)
        for shape in ((5, 5), (5, 5), (4, 5), (4, 5), (4, 5))
    )
    j = j * (0.5 / torch.linalg.matrix_norm(j, 2))
    leaves = [x.requires_grad_() for x in (j, b, e)]
    return lambda z: torch.tanh(z @ j.T + e @ b.T), leaves, z0, g


def grads(z: Tensor, g: Tensor, leaves: list[Tensor]) -> list[Tensor]:
    return list(torch.autograd.grad((z * g).sum(), leaves))


def relative_error(a: list[Tensor], b: list[Tensor]) -> float:
    difference = sum((x - y).square().sum() for x, y in zip(a, b, strict=True))
    return float((difference / sum(y.square().sum() for y in b)).sqrt())


def by_hand(problem, last: int) -> list[Tensor]:
    """Backpropagation written out: delta <- (delta * (1 - z^2)) J, summing the local gradients of `last` steps."""
    _, (j, b, e), z0, g = problem
    j, b, e = (x.detach() for x in (j, b, e))
    states = [z0]
    for _ in range(DEPTH):
        states.append(torch.tanh(states[-1] @ j.T + e @ b.T))
    total = [torch.zeros_like(x) for x in (j, b, e)]
    delta = g
    for step in range(DEPTH, DEPTH - last, -1):
        local = delta * (1 - states[step] ** 2)
        total = [total[0] + local.T @ states[step - 1], total[1] + local.T @ e, total[2] + local @ b]
        delta = local @ j
    return total


@pytest.mark.parametrize("name, last", [("full_bptt", DEPTH), ("truncated_bptt1", 1), ("truncated_bptt4", 4)])
def test_bptt_equals_backpropagation_by_hand(problem, name, last):
    f, leaves, z0, g = problem
    z = parse_estimator(name).endpoint(f, z0=z0, depth=DEPTH)
    torch.testing.assert_close(z, iterate(f, z0, DEPTH), rtol=0, atol=0)
    for ours, expected in zip(grads(z, g, leaves), by_hand(problem, last), strict=True):
        torch.testing.assert_close(ours, expected, rtol=0, atol=1e-10)


def test_truncated_equals_iterating_from_the_detached_state(problem):
    f, leaves, z0, g = problem
    ours = grads(parse_estimator("truncated_bptt2").endpoint(f, z0=z0, depth=DEPTH), g, leaves)
    suffix = grads(iterate(f, iterate(f, z0, DEPTH - 2).detach(), 2), g, leaves)
    assert all(torch.equal(a, b) for a, b in zip(ours, suffix, strict=True))


def test_truncation_beyond_the_depth_is_full_bptt(problem):
    f, leaves, z0, g = problem
    ours = grads(parse_estimator("truncated_bptt99").endpoint(f, z0=z0, depth=DEPTH), g, leaves)
    full = grads(parse_estimator("full_bptt").endpoint(f, z0=z0, depth=DEPTH), g, leaves)
    assert all(torch.equal(a, b) for a, b in zip(ours, full, strict=True))


@pytest.mark.parametrize("suffix", ["neumann1", "neumann3", "neumann3_tail", "implicit"])
def test_reuse_and_recompute_agree_bit_for_bit(problem, suffix):
    f, leaves, z0, g = problem
    saved = iterate(f, z0, DEPTH).detach()
    reused = parse_estimator(f"reuse_{suffix}").endpoint(f, states=saved)
    recomputed = parse_estimator(f"recompute_{suffix}").endpoint(f, z0=z0, depth=DEPTH)
    assert torch.equal(reused, saved) and torch.equal(recomputed, saved)
    pairs = zip(grads(reused, g, leaves), grads(recomputed, g, leaves), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_more_terms_approach_full_bptt_at_a_converged_depth(problem):
    f, leaves, z0, g = problem
    full = grads(parse_estimator("full_bptt").endpoint(f, z0=z0, depth=60), g, leaves)
    saved = iterate(f, z0, 60).detach()

    def error(name: str) -> float:
        return relative_error(grads(parse_estimator(name).endpoint(f, states=saved), g, leaves), full)

    errors = [error(f"reuse_neumann{terms}") for terms in (1, 2, 4, 8, 16)]
    assert errors == sorted(errors, reverse=True) and errors[-1] < 1e-5
    assert error("reuse_neumann3_tail") < error("reuse_neumann3")
    assert error("reuse_implicit") < 1e-5


def test_estimators_say_what_they_need(problem):
    f, _, z0, _ = problem
    with pytest.raises(ValueError, match="reuse_neumann4 needs the rollout's saved endpoint"):
        parse_estimator("reuse_neumann4").endpoint(f, z0=z0, depth=DEPTH)
    for name in ("full_bptt", "recompute_neumann4"):
        with pytest.raises(ValueError, match=f"{name} needs the initial state and the depth"):
            parse_estimator(name).endpoint(f, z0=z0)


@pytest.mark.parametrize(
    "name, expected, window, cost",
    [
        ("full_bptt", FullBPTT(), 32, 96),
        ("truncated_bptt4", TruncatedBPTT(4), 4, 40),
        ("truncated_bptt99", TruncatedBPTT(99), 32, 96),
        ("recompute_neumann4", Recompute(Neumann(4)), 1, 38),
        ("recompute_implicit", Recompute(Implicit()), 1, None),
        ("reuse_neumann4", Reuse(Neumann(4)), 1, 6),
        ("reuse_neumann3_tail", Reuse(Neumann(3, tail=True)), 1, 5),
        ("reuse_neumann1", Reuse(Neumann(1)), 1, 3),
        ("reuse_implicit", Reuse(Implicit()), 1, None),
    ],
)
def test_names_say_what_an_update_keeps_and_costs(name, expected, window, cost):
    """At depth 32, in block-forwards for each block of the core: 3 R, R + 2 b, R + 1 + (k - 1) + 2, and without R."""
    estimator = parse_estimator(name)
    assert estimator == expected and estimator.name == name
    assert (estimator.window(32), estimator.cost(32)) == (window, cost)
    assert estimator.needs_states == (not estimator.needs_replay) == name.startswith("reuse")
    assert estimator.recomputing().name == name.replace("reuse", "recompute")


def test_tables_list_controls_first():
    names = ["full_bptt", "truncated_bptt4", "recompute_neumann4", "reuse_implicit"]
    assert [rank(parse_estimator(name)) for name in names] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "name",
    ["", "bptt", "full_bptt4", "truncated_bptt", "truncated_bptt0", "neumann4", "reuse_neumann", "reuse_neumann0",
     "reuse_neumann-1", "reuse_implicit_tail", "reuse_neumann3_tails", "REUSE_NEUMANN4", " reuse_neumann4"],
)  # fmt: skip
def test_other_names_are_refused_with_examples(name):
    with pytest.raises(ValueError, match="unknown estimator '.*'; expected e.g. full_bptt, "):
        parse_estimator(name)


def test_tail_of_one_term_is_refused():
    with pytest.raises(ValueError, match="needs at least 2 terms"):
        parse_estimator("reuse_neumann1_tail")
