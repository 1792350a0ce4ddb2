"""`diagnose` on a checkpoint of every released layout: numbers that a plain forward confirms, advice that fits."""

import math

import pytest
import torch
import torch.nn.functional as F

from loop_rl.diagnosis.advice import EXPANDING, advise
from loop_rl.diagnosis.measure import diagnose
from loop_rl.models import load_checkpoint
from tests.families import FAMILIES, write_model

DEPTH = 4


@pytest.mark.parametrize("family", FAMILIES)
def test_numbers_of_a_released_layout(family, tmp_path):
    model = load_checkpoint(write_model(family, tmp_path), torch.float64).eval()
    ids = torch.randint(3, 40, (2, 12), generator=torch.Generator().manual_seed(0))
    found = diagnose(model, ids, DEPTH, horizon=16)
    for depth in (1, DEPTH, 16):
        with torch.no_grad():
            logits = model(ids, depth=depth).logits
        expected = F.cross_entropy(logits[:, :-1].transpose(1, 2), ids[:, 1:])
        assert found.loss[depth] == pytest.approx(float(expected), rel=1e-10)
    with torch.no_grad():
        states = [model.model(ids, depth=depth).endpoint for depth in (DEPTH, DEPTH + 1)]
    change = (states[1] - states[0]).norm(dim=-1) / states[0].norm(dim=-1)
    assert found.residual[0] == pytest.approx(float(change.quantile(0.5)), rel=1e-3)
    assert math.isfinite(found.sharing.penalty) and found.contraction.worst > 0
    full = next(row for row in found.gradients if row.estimator == f"truncated_bptt{DEPTH - 1}")
    assert full.cosine > 0.5 or family == "ouro"
    text = advise(found)
    print(f"\n{family}: eigenvalue {found.contraction.worst:.3f}, residual {found.residual[0]:.1%}. {text}")
    assert ("Don't reuse" in text) == (found.contraction.worst >= EXPANDING)
