"""The benchmarks' numbers that no clock decides."""

import pytest
import torch

from loop_rl.bench.inference import bench_decode, bench_prefill, table
from loop_rl.diagnosis.sharing import sharing_loss
from loop_rl.models.prefill import PrefillStudent
from tests.tiny import tiny_model


def test_cache_sizes_are_measured_as_predicted():
    model = tiny_model(core_layers=2)
    full, terminal = bench_decode(model, batch=2, prompt=6, tokens=3, depth=5, runs=1)
    assert (full["cache"], terminal["cache"], full["ratio"]) == ("full", "terminal", 1.0)
    for row, banks in ((full, 12), (terminal, 4)):
        assert row["predicted_kib"] == banks * 2 * 2 * 8 * 4 / 1024
        assert row["kib_per_token"] == pytest.approx(row["predicted_kib"])
        assert row["tokens_per_second"] > 0


def test_prefill_losses_are_those_of_sharing():
    model = tiny_model(torch.float64)
    text = torch.randint(3, 40, (3, 14), generator=torch.Generator().manual_seed(0))
    rows = bench_prefill(model, PrefillStudent(model.model), text, length=8, batch=2, depth=4, runs=1)
    assert [row["prefill"] for row in rows] == [
        "teacher, 4 recurrences",
        "teacher, 3",
        "teacher, 2",
        "teacher, 1",
        "student",
    ]
    assert rows[0]["loss"] == pytest.approx(sharing_loss(model, text, 4).terminal, abs=1e-12)
    assert rows[0]["perplexity"] == 0 and rows[0]["speed_up"] == 1
    assert "speed up" in table(rows) and "student" in table(rows)
