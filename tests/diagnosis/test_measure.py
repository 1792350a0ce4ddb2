"""The diagnosis of a linear recurrence, number by number against its closed form; and the advice that follows."""

import json
import math

import pytest
import torch
import torch.nn.functional as F

from loop_rl.diagnosis.advice import advise, choose_depth, choose_estimator
from loop_rl.diagnosis.gradients import GradientRow
from loop_rl.diagnosis.measure import diagnose
from loop_rl.diagnosis.render import plot_diagnosis, to_json, to_table
from tests.diagnosis.toy import VOCABULARY, WIDTH, Toy, rotation

DEPTH, HORIZON = 6, 24


def ids_of(rows=3, tokens=10):
    return torch.randint(0, VOCABULARY, (rows, tokens), generator=torch.Generator().manual_seed(5))


def state(model, ids, depth):
    """z^r = (I + A + ... + A^(r-1)) e."""
    a, e = model.model.matrix, model.model.embed_tokens(ids)
    return sum(e @ torch.linalg.matrix_power(a, power).T for power in range(depth)) if depth else 0 * e


def loss_of(model, ids, z):
    return F.cross_entropy(model.lm_head(z[:, :-1]).transpose(1, 2), ids[:, 1:])


@pytest.fixture(scope="module")
def contracting():
    model, ids = Toy(rotation(0.0, 0.6), DEPTH), ids_of()
    return model, ids, diagnose(model, ids, DEPTH, horizon=HORIZON)


def test_losses_residuals_and_changes(contracting):
    model, ids, found = contracting
    with torch.no_grad():
        for depth, loss in found.loss.items():
            assert loss == pytest.approx(float(loss_of(model, ids, state(model, ids, depth))), abs=1e-12)
        states = [state(model, ids, depth) for depth in range(HORIZON + 1)]
        changes = torch.stack(
            [(b - a).norm(dim=-1) / (a.norm(dim=-1) + 1e-8) for a, b in zip(states, states[1:], strict=False)]
        )
    assert set(found.loss) == {1, 2, 3, 4, 5, 6, 8, 12, 16, 24}
    # in float64; the last changes, 1e-6 of the states, keep all but 6 of its 16 digits
    assert found.residual[0] == pytest.approx(float(changes[DEPTH].quantile(0.5)), rel=1e-12)
    assert found.changes == pytest.approx([float(change.median()) for change in changes], rel=1e-8)
    settled = (changes < 0.02).all(-1).all(-1).nonzero()[0, 0] + 1
    assert found.convergence.quantiles[-1] <= settled


def test_eigenvalue(contracting):
    found = contracting[2].contraction
    assert (found.real, found.imaginary) == (pytest.approx(0.6, abs=1e-6), pytest.approx(0, abs=1e-6))
    assert found.shares == {"contracts": 1.0, "oscillates": 0.0, "diverges": 0.0}


def test_gradients_are_those_of_the_written_sums(contracting):
    """With g = dloss/dz: full BPTT sends sum_j (A^T)^j g through each earlier state, the Neumann sum through z^R."""
    model, _, found = contracting
    ids = ids_of()[:2]
    a, e = model.model.matrix.detach(), model.model.embed_tokens(ids).detach()
    states = [state(model, ids, depth).detach() for depth in range(DEPTH + 1)]
    z = states[-1].clone().requires_grad_(True)
    (g,) = torch.autograd.grad(loss_of(model, ids, z), z)
    (head,) = torch.autograd.grad(loss_of(model, ids, states[-1]), model.lm_head.weight)

    def gradient(pairs):
        """pairs: (state that A multiplied, vector sent into that recurrence's output)."""
        matrix = sum(torch.einsum("bti,btj->ij", v, before) for before, v in pairs)
        total = sum(v for _, v in pairs)
        embedding = torch.zeros(VOCABULARY, WIDTH, dtype=torch.float64)
        embedding.index_add_(0, ids.flatten(), total.flatten(0, 1))
        by_name = {"model.embed_tokens.weight": embedding, "model.matrix": matrix, "lm_head.weight": head}
        return torch.cat([by_name[name].flatten() for name, _ in model.named_parameters()])

    def power(j):
        return g @ torch.linalg.matrix_power(a, j)  # (A^T)^j g as rows

    full = gradient([(states[DEPTH - 1 - j], power(j)) for j in range(DEPTH)])
    implicit = gradient([(states[-1], g @ torch.linalg.inv(torch.eye(WIDTH, dtype=torch.float64) - a))])
    rows = {row.estimator: row for row in found.gradients}
    for terms in range(1, 9):
        ours = gradient([(states[-1], sum(power(j) for j in range(terms)))])
        row = rows[f"reuse_neumann{terms}"]
        assert row.cosine == pytest.approx(float(F.cosine_similarity(ours, full, dim=0)), abs=1e-9)
        assert row.error == pytest.approx(float((ours - full).norm() / full.norm()), abs=1e-9)
        assert row.implicit_cosine == pytest.approx(float(F.cosine_similarity(ours, implicit, dim=0)), abs=1e-6)
    for window in range(1, DEPTH):
        ours = gradient([(states[DEPTH - 1 - j], power(j)) for j in range(window)])
        row = rows[f"truncated_bptt{window}"]
        assert row.error == pytest.approx(float((ours - full).norm() / full.norm()), abs=1e-9)
    assert e.shape == g.shape


def test_a_core_without_attention_loses_nothing_by_sharing(contracting):
    assert contracting[2].sharing.penalty == 0.0


def test_table_json_and_figure(contracting, tmp_path):
    found = contracting[2]
    text = to_table(found)
    assert "reuse_neumann4_tail" in text and "largest 0.600" in text
    read = json.loads(to_json(found, model="toy"))
    assert read["model"] == "toy" and read["loss"]["6"] == found.loss[6] and read["advice"] == advise(found)
    assert plot_diagnosis(found, tmp_path / "figure.png", "toy").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("angle", "scale", "kind"), [(1.0, 0.7, "contracts"), (2.0, 1.1, "oscillates"), (0.0, 1.1, "diverges")]
)
def test_advice_follows_the_map(angle, scale, kind):
    found = diagnose(Toy(rotation(angle, scale), DEPTH), ids_of(), DEPTH, horizon=HORIZON)
    assert found.contraction.shares[kind] == 1.0
    assert found.contraction.worst == pytest.approx(scale, rel=1e-3)
    text = advise(found)
    if kind == "contracts":
        assert text.startswith("Use reuse_neumann")
        assert all(row.implicit_cosine is not None for row in found.gradients)
    else:
        assert text.startswith("Don't reuse") and kind in text
        assert not any("use reuse" in part for part in text.split(";"))
        assert all(row.implicit_cosine is None for row in found.gradients)
        assert ("damped" in text) == (kind == "oscillates")


def rows_of(**cosines):
    return [GradientRow(name, cosine, 1 - cosine, None, None) for name, cosine in cosines.items()]


def test_the_cheapest_good_estimator_is_chosen():
    rows = rows_of(truncated_bptt3=0.999, reuse_neumann3=0.97, reuse_neumann4=0.985, reuse_neumann5=0.99)
    assert choose_estimator(rows, 6, allow_reuse=True).estimator == "reuse_neumann4"
    assert choose_estimator(rows, 6, allow_reuse=False).estimator == "truncated_bptt3"
    poor = rows_of(reuse_neumann1=0.3, reuse_neumann2=math.nan, reuse_neumann3=0.5)
    assert choose_estimator(poor, 6, allow_reuse=True).estimator == "reuse_neumann3"


def test_depth():
    assert choose_depth({1: 3.0, 2: 2.004, 4: 2.0, 8: math.nan}) == 2
    assert choose_depth({1: math.nan}) is None
