"""Metrics of several updates as one, cosines, and what is undefined."""

import numpy as np
import pytest
import torch

from loop_rl.learner.metrics import Measurements, cosine, over_iterations


def test_metrics_over_iterations() -> None:
    def update(**values) -> dict:
        names = ("loss", "grad_norm", "clip_ratio/region_mean", "residual/q90", "neumann/term_ratio", "time/update")
        defaults = dict.fromkeys(names, 1.0) | {"sampling/ratio": 1.0, "skipped_update": 0.0}
        return {**defaults, "completions/learned_tokens": 10.0, **values}

    first = update()
    last = update(**{"completions/learned_tokens": 30.0, "clip_ratio/region_mean": 0.6, "residual/q90": 3.0,
                     "sampling/ratio": 2.0, "time/update": 2.5, "grad_norm": None, "skipped_update": 1.0})  # fmt: skip
    assert over_iterations([first]) == first
    merged = over_iterations([first, last])
    assert merged["clip_ratio/region_mean"] == pytest.approx((1.0 * 10 + 0.6 * 30) / 40)
    assert merged["grad_norm"] == 1.0, "over the updates that have one"
    assert merged["residual/q90"] == 3.0 and merged["sampling/ratio"] == 1.0
    assert (merged["time/update"], merged["skipped_update"], merged["completions/learned_tokens"]) == (3.5, 1.0, 40.0)
    nothing = {**dict.fromkeys(first), "completions/learned_tokens": 0.0}
    assert over_iterations([nothing, nothing])["loss"] is None


def test_cosine_is_that_of_the_whole_vectors() -> None:
    torch.manual_seed(0)
    a = [torch.randn(3, 5), torch.randn(7), None, torch.randn(2)]
    b = [torch.randn(3, 5), torch.randn(7), torch.randn(4), None]
    sizes = (15, 7, 4, 2)

    def whole(gradients) -> np.ndarray:
        return np.concatenate(
            [
                np.zeros(n) if g is None else g.numpy().ravel().astype(float)
                for g, n in zip(gradients, sizes, strict=True)
            ]
        )

    x, y = whole(a), whole(b)
    expected = x @ y / np.linalg.norm(x) / np.linalg.norm(y)
    assert cosine(a, b) == pytest.approx(expected, rel=1e-14)
    assert cosine(a, a) == pytest.approx(1.0, rel=1e-14)
    assert cosine(a, [None] * 4) is None


def test_what_nothing_was_learned_from_is_undefined() -> None:
    measured = Measurements().gathered()
    assert measured.ratio("loss") is None and measured.quantile(0.5) is None
    measured.add("loss", torch.tensor([float("nan"), 2.0]), torch.tensor([False, True]))
    measured.add("tokens", torch.tensor([False, True]))
    assert measured.ratio("loss") == 2.0
