"""Recipes whose keys can't go together, or whose values no run could have, are refused before anything is loaded."""

import pytest

from loop_rl.errors import UserError
from loop_rl.recipe.kinds import SCHEMAS, kind_of
from loop_rl.recipe.reading import dotted_keys, recipes_folder
from loop_rl.recipe.rl import load_recipe


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["learner.estimator=reuse_neumann1000000000"], "learner.estimator: reuse_neumann1000000000 has 1000000000"),
        (["model.depth=3", "learner.estimator=truncated_bptt4"], "learner.estimator: truncated_bptt4 goes back 4"),
        (["rollout.max_completion_length=9223372036854775808"], "rollout.max_completion_length: must be at most"),
        (["rollout.num_generations=1000000000"], "rollout.num_generations must be at most 100000"),
        (["eval.samples=100000000000"], "eval.samples must be at most 100000"),
        (["model.depth=100000"], "model.depth must be at most 1024"),
        (["optim.learning_rate=1e300"], "optim.learning_rate: must be a number that float32 holds"),
        (["optim.max_grad_norm=1e-300"], "optim.max_grad_norm: must be a number that float32 holds"),
        (["rollout.temperature=1e-30"], "rollout.temperature must be at least 1e-06"),
        (["eval.temperature=1e-30"], "eval.temperature: must be 0 (greedy) or at least 1e-6"),
        (["reward.name=null", "reward.functions={gsm8k: 1e300}"], "reward.functions: must be a number that float32"),
        (["reward.name=null", "reward.functions={gsm8k: 1e30}"], "the weight of gsm8k must be at most 1e+06"),
        (["reward.name=null", "reward.functions={gsm8k: 0}"], "reward.functions: all weights are 0"),
        (["run.seed=1180591620717411303424"], "run.seed: must be at most"),
        (["data.seed=1180591620717411303424"], "data.seed: must be at most"),
        (["run.threads=1000000"], "run.threads must be at most 1024"),
        (["rollout.workers=1000000"], "rollout.workers must be at most 4096"),
        (["reward.workers=1000000"], "reward.workers must be at most 4096"),
        (["learner.epsilon=0.3", "learner.epsilon_high=0.1"], "epsilon_high (0.1) is below epsilon (0.3)"),
        (["optim.warmup_steps=7", "run.max_steps=3", "learner.num_iterations=2"], "optim.warmup_steps (7) is more"),
        (["model.depth=3", "rollout.min_depth=4"], "rollout.min_depth (4) is more than model.depth (3)"),
        (["health.min_cosine=0.5"], "set cosine_steps, too"),
        (['run.name="a\\nb"'], "without slashes and control characters"),
        (["run.name=" + "a" * 300], "at most 200 bytes"),
        (['model.path="a\\0b"'], "model.path: must be text without null"),
        (['data.name="\\ud800.jsonl"'], "without null and surrogate characters"),
        (["lora.target_modules=[]"], "lora.target_modules"),
        (["rollout.prefill=student", "rollout.cache=terminal", "learner.beta=0.1"], "learner.beta, by its reference"),
        (["rollout.prefill=student", "rollout.cache=terminal", "health.cosine_steps=5"], "health.cosine_steps replays"),
        (["rollout.cache=terminal", "learner.estimator=full_bptt"], "rollout.cache: full_bptt replays"),
        (["rollout.cache=terminal", "learner.estimator=recompute_neumann4"], "rollout.cache: recompute_neumann4"),
    ],
)
def test_what_can_not_run_is_refused_before_anything_is_loaded(overrides: list[str], said: str) -> None:
    with pytest.raises(UserError) as caught:
        load_recipe("quickstart_reuse_neumann4", overrides)
    assert said in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", SCHEMAS)
def test_no_update_may_move_weights_out_of_range(kind: str) -> None:
    name = next(file.stem for file in sorted(recipes_folder().glob("*.yaml")) if kind_of(file.stem) == kind)
    for overrides, said in (
        (["optim.learning_rate=1e30"], "optim: learning_rate must be at most 1; got 1e+30"),
        (["optim.learning_rate=0.5", "optim.weight_decay=3"], "weight_decay (3) times learning_rate (0.5)"),
    ):
        with pytest.raises(UserError) as caught:
            load_recipe(name, overrides, schema=SCHEMAS[kind])
        assert said in str(caught.value) and "\n" not in str(caught.value)
    load_recipe(name, ["optim.learning_rate=1", "optim.weight_decay=1"], schema=SCHEMAS[kind])


@pytest.mark.parametrize("kind", SCHEMAS)
def test_every_key_takes_an_extreme_value_or_refuses_it_in_one_line(kind: str) -> None:
    name = next(file.stem for file in sorted(recipes_folder().glob("*.yaml")) if kind_of(file.stem) == kind)
    schema = SCHEMAS[kind]
    sections = [section for section in schema.model_fields if section != "lora"] + ["lora"] * (
        "lora" in schema.model_fields
    )
    extremes = [
        "-1",
        "0",
        "1180591620717411303424",
        "1e308",
        "-1e-308",
        ".nan",
        ".inf",
        '""',
        '"\\0"',
        "a" * 300,
        "[]",
        "{}",
    ]
    for key in dotted_keys(schema):
        if key in sections:
            continue
        for value in extremes:
            try:
                load_recipe(name, [f"{key}={value}"], schema=schema).dump_yaml()
            except UserError as error:
                assert key.partition(".")[0] in str(error) and "\n" not in str(error)
