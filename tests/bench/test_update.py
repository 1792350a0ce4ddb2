"""The update benchmark: what it reports, and that what it times is the gradient it says."""

import math

import numpy as np
import pytest
import torch

from loop_rl.bench import update as bench
from loop_rl.errors import UserError
from loop_rl.fixed_point import parse_estimator

SMALL = dict(width=64, batch=2, length=24, vocab_size=40)


@pytest.fixture(scope="module")
def problem():
    return bench.make_problem(depth=6, seed=0, device="cpu", dtype=torch.float64, **SMALL)


def test_rows_and_progress():
    lines = []
    state = torch.get_rng_state()
    out = bench.bench_update(
        depth=6, runs=2, methods=("reuse_neumann4", "reuse_implicit"), progress=lines.append, **SMALL
    )
    assert torch.equal(torch.get_rng_state(), state), "the global generator is left as it was"
    assert [row["method"] for row in out["rows"]] == ["full_bptt", "reuse_neumann4", "reuse_implicit"]
    for row in out["rows"]:
        assert list(row) == ["method", "seconds", "ratio", "peak_memory_mb", "cosine", "relative_error"]
        assert all(math.isfinite(value) and value >= 0 for key, value in row.items() if key != "method")
        assert row["ratio"] == pytest.approx(out["rows"][0]["seconds"] / row["seconds"])
    assert out["rows"][0]["ratio"] == 1.0 and out["rows"][0]["relative_error"] == 0.0
    assert out["rows"][0]["cosine"] == pytest.approx(1.0)
    assert 0 < out["residual"] < 0.1 and out["learned_tokens"] == 24
    assert lines[-1].startswith("run 2 of 2: full_bptt")


def test_full_bptt_is_autograd_through_the_model_s_own_forward(problem):
    model = problem.model
    rows = [np.concatenate((s.rollout.prompt_ids, s.completion.token_ids)) for s in problem.samples]
    ids, advantages = torch.from_numpy(np.stack(rows)), [s.advantage for s in problem.samples]
    ours, metrics = bench.gradient(problem, parse_estimator("full_bptt"))
    model.zero_grad()
    z0 = model.model.draw_initial_state(torch.arange(24).expand(2, -1), torch.arange(2))
    logps = model(ids, initial_state=z0).logits.log_softmax(-1)
    taken = [[logps[row, t - 1, ids[row, t]] for t in range(12, 24)] for row in range(2)]
    loss = -sum(advantages[row] * sum(taken[row]) for row in range(2)) / 24
    loss.backward()
    expected = torch.cat([p.grad.flatten().float() for p in model.parameters()])
    # both are rounded to float32; the behaviour log-probabilities are, too, so that ratios are 1 to float32's eps
    bound = 4 * torch.finfo(torch.float32).eps * float(expected.abs().max())
    torch.testing.assert_close(ours, expected, rtol=0, atol=bound)
    assert metrics["completions/learned_tokens"] == 24 and metrics["grad_norm"] > 0


def test_gradients_come_closer_with_more_terms_and_with_the_tail(problem):
    full = bench.gradient(problem, parse_estimator("full_bptt"))[0].double()

    def error(name: str) -> float:
        return float((bench.gradient(problem, parse_estimator(name))[0].double() - full).norm() / full.norm())

    assert error("reuse_neumann4") < error("reuse_neumann3") < error("reuse_neumann1")
    assert error("reuse_neumann3_tail") < error("reuse_neumann3")
    # gradients are rounded to float32, and so are the behaviour log-probabilities in their ratios
    bound = 4 * torch.finfo(torch.float32).eps
    assert error("recompute_neumann3") == pytest.approx(error("reuse_neumann3"), abs=bound)


def test_live_bytes_count_each_storage_once_and_forget_the_dead():
    given = torch.zeros(1000)
    with bench.LiveBytes([given]) as live:
        a = given + 1
        views = [a.view(10, 100), a[5:], given.view(100, 10)]
        assert live.now == 4000
        b = a * 2
        assert live.now == 8000
        del a, views
        assert live.now == 4000
        c = b.exp_()
        assert live.now == 4000 and c.data_ptr() == b.data_ptr()
    assert live.peak == 8000


def test_memory_of_bptt_grows_with_depth_and_that_of_reuse_does_not():
    def peaks(name: str) -> list[int]:
        problems = [bench.make_problem(depth=d, seed=0, device="cpu", dtype=torch.float32, **SMALL) for d in (2, 6, 10)]
        return [bench.peak_memory(problem, parse_estimator(name)) for problem in problems]

    full, reuse = peaks("full_bptt"), peaks("reuse_neumann4")
    assert full[2] - full[1] == full[1] - full[0] > 0
    assert reuse[0] == reuse[1] == reuse[2] < full[1]


@pytest.mark.parametrize(
    "values, error, message",
    [
        ({"width": 100}, UserError, "multiple of 64"),
        ({"methods": ["bptt"]}, ValueError, "unknown estimator .bptt.; expected e.g. full_bptt"),
    ],
)
def test_what_is_refused(values, error, message):
    with pytest.raises(error, match=message):
        bench.bench_update(**{**SMALL, "depth": 2, **values})
