"""Adapters that the model can't have: one line, in a dry run and before a run has sampled anything."""

import pytest

from loop_rl.errors import UserError
from loop_rl.models.adapters import adapted, adapted_layers
from loop_rl.recipe.rl import LoraSection, Recipe
from loop_rl.sizes.memory import estimate_memory
from loop_rl.training.trainer import Trainer
from tests.families import tokenizer
from tests.tiny import tiny_model


def test_the_rank_is_at_most_the_full_rank_of_the_widest_layer():
    model = tiny_model()
    layers = adapted_layers(model, LoraSection(r=1))
    full = max(min(layer.weight.shape) for layer in layers.values())
    assert full > min(min(layer.weight.shape) for layer in layers.values())  # narrower layers don't decide
    assert adapted_layers(model, LoraSection(r=full)).keys() == layers.keys()
    with pytest.raises(UserError, match=rf"lora.r \({full + 1}\) .*at most {full}\)"):
        adapted_layers(model, LoraSection(r=full + 1))


def test_the_adapted_model_comes_without_a_warning(recwarn):
    adapted(tiny_model(), LoraSection(r=1))
    assert [str(warning.message) for warning in recwarn if "checkpointing" in str(warning.message)] == []


@pytest.mark.parametrize(
    ("lora", "said"), [({"r": 10**6}, r"lora.r \(1000000\)"), ({"target_modules": ["c_attn"]}, "no module 'c_attn'")]
)
def test_refused_in_a_dry_run_and_at_the_start(lora, said, tmp_path):
    tiny_model(vocab_size=64).save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    recipe = Recipe.model_validate({"model": {"path": str(tmp_path)}, "lora": lora})
    for function in (lambda: estimate_memory(recipe), lambda: Trainer(recipe)):
        with pytest.raises(UserError, match=said):
            function()
