"""Parameter counts of the named sizes (paper, Table 1), and what a config refuses."""

import pytest
import torch

from loop_rl.errors import UserError
from loop_rl.models import LoopedConfig, LoopedForCausalLM


@pytest.mark.parametrize("size, blocks, total", [("S", 0.106, 0.304), ("M", 0.425, 0.819), ("L", 1.699, 2.488)])
def test_parameters_in_billions(size, blocks, total):
    with torch.device("meta"):
        model = LoopedForCausalLM(LoopedConfig.named(size))
    everything = sum(p.numel() for p in model.parameters())
    embeddings = model.lm_head.weight.numel() + model.model.embed_tokens.weight.numel()
    assert round((everything - embeddings) / 1e9, 3) == blocks
    assert round(everything / 1e9, 3) == total


def test_bank_count_and_indices():
    config = LoopedConfig(prelude_layers=2, core_layers=3, coda_layers=1)
    assert config.bank_count(4) == 2 + 12 + 1


@pytest.mark.parametrize(
    "values, message",
    [
        ({"injection": "ortho2"}, "'ortho2' is unknown: choose one of deq_qkv"),
        ({"num_attention_heads": 6, "num_key_value_heads": 4}, "must be a multiple of num_key_value_heads"),
        ({"depth": 0}, "must be at least 1"),
        ({"core_layers": 0}, "must be at least 1"),
    ],
)
def test_impossible_configs_are_refused(values, message):
    with pytest.raises(UserError, match=message):
        LoopedConfig(**values)
