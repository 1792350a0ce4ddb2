"""Prompts with their completions within the model's context, or one line before anything is sampled."""

import pytest

from loop_rl.data import Example
from loop_rl.diagnosis.running import run_diagnose
from loop_rl.errors import UserError
from loop_rl.evaluation.context import check_context, forward_depth
from loop_rl.evaluation.running import run_eval
from loop_rl.models import LoopedConfig
from loop_rl.recipe.rl import Recipe
from loop_rl.sizes.memory import estimate_memory
from loop_rl.training.trainer import Trainer
from tests.evaluation.doubles import Characters
from tests.families import tokenizer
from tests.tiny import tiny_model


def test_the_longest_prompt_decides_to_the_token():
    config = LoopedConfig(max_position_embeddings=20)
    questions = [("short", [Example("ab", "", 0)]), ("long", [Example("x" * n, "", n) for n in (3, 12, 13)])]
    assert check_context(questions, Characters(), config, 7) == 13
    with pytest.raises(
        UserError, match="1 of 3 prompts of long .* 8 tokens pass .* 20 .* has 13 tokens: lower it to 7, or .*=12"
    ):
        check_context(questions, Characters(), config, 8)
    with pytest.raises(UserError, match="use shorter prompts"):
        check_context(questions, Characters(), LoopedConfig(max_position_embeddings=2), 2)
    assert check_context([("none", [])], Characters(), config, 20) == 0


def test_every_command_refuses_before_it_samples(tmp_path):
    tiny_model(vocab_size=64, max_position_embeddings=64).save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    recipe = Recipe.model_validate({"model": {"path": str(tmp_path)}, "rollout": {"max_completion_length": 60}})
    for function in (
        lambda: estimate_memory(recipe),
        lambda: Trainer(recipe),
        lambda: run_eval(str(tmp_path), [], ["rollout.max_completion_length=60"], progress=False),
    ):
        with pytest.raises(UserError, match="rollout.max_completion_length: .* prompts of arithmetic"):
            function()
    with pytest.raises(UserError, match="--length 65 passes the model's context of 64"):
        run_diagnose(str(tmp_path), "arithmetic", None, None, 1, 65, 0.1, None, None, progress=False)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({"learner": {"estimator": "truncated_bptt5"}}, r"truncated_bptt5 goes back 5 .* the model's own depth \(4\)"),
        ({"rollout": {"min_depth": 5}}, r"min_depth \(5\) is more than the model's own depth \(4\)"),
        ({"rollout": {"prefill": "student", "cache": "terminal"}}, "has no prefill_student.safetensors"),
    ],
)
def test_what_only_the_model_says_is_refused_in_a_dry_run_and_at_the_start(overrides, said, tmp_path):
    tiny_model(vocab_size=64).save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    few = {"train_size": 8, "eval_size": 1}
    recipe = Recipe.model_validate({"model": {"path": str(tmp_path)}, "data": few, **overrides})
    for function in (lambda: estimate_memory(recipe), lambda: Trainer(recipe)):
        with pytest.raises(UserError, match=said):
            function()


def test_an_evaluation_refuses_a_min_depth_past_the_models_own(tmp_path):
    tiny_model(vocab_size=64).save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    with pytest.raises(UserError, match="min_depth .* own depth"):
        run_eval(str(tmp_path), [], ["rollout.min_depth=5"], progress=False)


def test_a_long_forward_pass_is_told(caplog):
    assert forward_depth(Recipe(), LoopedConfig(depth=1024)) == 1024
    assert forward_depth(Recipe.model_validate({"model": {"depth": 47}}), LoopedConfig(depth=6)) == 47
    assert caplog.text == ""
    assert forward_depth(Recipe.model_validate({"model": {"depth": 600}}), LoopedConfig(depth=6)) == 600
    assert "takes 600 recurrences, 100 times as many as the model's own depth of 6" in caplog.text
    with pytest.raises(UserError, match="own depth is 1025"):
        forward_depth(Recipe(), LoopedConfig(depth=1025))
