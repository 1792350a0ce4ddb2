"""Recipes: what a file may say, and what a user is told who said something else."""

import json
import os
from pathlib import Path

import pytest
import yaml
from pydantic import Field

from loop_rl.errors import UserError
from loop_rl.recipe.kinds import SCHEMAS, kind_of, load_any, load_for
from loop_rl.recipe.reading import SYNONYMS, Section, dotted_keys, recipes_folder
from loop_rl.recipe.rl import Recipe, load_recipe

SHARED = Path(os.environ.get("LOOP_RL_CASES", Path(__file__).parents[2] / "../shared/cases"))


def write(folder: Path, text: str, name: str = "mine.yaml") -> Path:
    file = folder / name
    file.write_text(text)
    return file


def refusal(path: Path | str, overrides: tuple[str, ...] = ()) -> str:
    with pytest.raises(UserError) as caught:
        load_recipe(path, overrides)
    message = str(caught.value)
    assert "\n" not in message
    assert "Traceback" not in message and "pydantic" not in message
    return message


# ---- shipped recipes


@pytest.mark.parametrize("file", sorted(recipes_folder().glob("*.yaml")), ids=lambda file: file.stem)
def test_every_shipped_rl_recipe_loads(file: Path) -> None:
    if kind_of(file.stem) != "train":
        pytest.skip("not a recipe of RL")
    recipe = load_recipe(file)
    assert recipe.run.name == file.stem
    assert file.stem.endswith(recipe.learner.estimator) or file.stem.endswith("_eval")


@pytest.mark.parametrize(
    "child", ["full_bptt", "recompute_neumann4", "reuse_neumann3", "reuse_neumann3_tail"], ids=lambda name: name
)
def test_quickstart_children_differ_from_the_base_in_the_estimator_alone(child: str) -> None:
    base = load_recipe("quickstart_reuse_neumann4").model_dump()
    other = load_recipe(f"quickstart_{child}").model_dump()
    assert other["learner"].pop("estimator") == child
    base["learner"].pop("estimator")
    base["run"].pop("name"), other["run"].pop("name")
    assert other == base


def test_the_gsm8k_recipe_is_the_papers_setting() -> None:
    recipe = load_recipe("gsm8k_reuse_neumann4")
    assert (recipe.model.depth, recipe.rollout.num_generations) == (6, 16)
    assert (recipe.data.train_size, recipe.data.eval_size) == (400, 500)
    tiny = load_recipe("gsm8k_tiny_reuse_neumann4")
    assert (tiny.model.path, tiny.model.dtype, tiny.data.train_size) == ("embedded", "float32", 400)


def test_the_mbpp_recipe_is_the_papers_setting_and_says_only_what_differs() -> None:
    recipe, base = load_recipe("mbpp_reuse_neumann4").model_dump(), load_recipe("gsm8k_reuse_neumann4").model_dump()
    assert (recipe["data"]["train_size"], recipe["data"]["eval_size"]) == (272, 100)
    differing = {section for section in recipe if recipe[section] != base[section]}
    assert differing == {"data", "reward", "run"}


def test_a_shipped_recipe_is_found_by_name_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("quickstart_full_bptt", "quickstart_full_bptt.yaml", "recipes/quickstart_full_bptt.yaml"):
        assert load_recipe(name).learner.estimator == "full_bptt"


def test_a_dumped_recipe_reads_back_equal(tmp_path: Path) -> None:
    recipe = load_recipe("gsm8k_reuse_neumann4", ["lora.r=4", "optim.learning_rate=1e-7", "run.wandb=off"])
    assert load_recipe(write(tmp_path, recipe.dump_yaml(), "recipe.yaml")) == recipe


# ---- what may be said


def test_child_over_base_over_defaults_and_overrides_over_all(tmp_path: Path) -> None:
    write(tmp_path, "optim: {learning_rate: 1e-4, weight_decay: 0.1}\nlora: {r: 4}\n", "base.yaml")
    write(tmp_path, "extends: base.yaml\noptim: {learning_rate: 2e-4}\n", "middle.yaml")
    child = write(tmp_path, "extends: middle.yaml\nlora: null\nrollout: {top_k: 5}\n", "child.yaml")
    recipe = load_recipe(child, ["rollout.top_k=7", "run.seed=3"])
    assert recipe.optim.learning_rate == 2e-4 and recipe.optim.weight_decay == 0.1
    assert recipe.lora is None
    assert (recipe.rollout.top_k, recipe.run.seed, recipe.run.name) == (7, 3, "child")


@pytest.mark.parametrize("text", ["1e-6", "1E-6", "1.0e-6", "0.000001", "'1e-6'", "+1e-6"])
def test_floats_of_every_spelling(tmp_path: Path, text: str) -> None:
    assert load_recipe(write(tmp_path, f"optim: {{learning_rate: {text}}}")).optim.learning_rate == 1e-6


def test_a_float_may_be_written_as_an_integer_and_a_name_like_a_float_stays_a_name(tmp_path: Path) -> None:
    recipe = load_recipe(write(tmp_path, "rollout: {temperature: 1}\nrun: {name: 1e5}"))
    assert recipe.rollout.temperature == 1.0 and recipe.run.name == "1e5"


def test_weights_of_every_spelling(tmp_path: Path) -> None:
    recipe = load_recipe(write(tmp_path, "reward: {functions: {gsm8k: 1, 'my_mod.sub:f': -1e-1}}"))
    assert list(recipe.reward.functions.items()) == [("gsm8k", 1.0), ("my_mod.sub:f", -0.1)]  # in their order


def test_wandb_off_is_a_word(tmp_path: Path) -> None:
    assert load_recipe(write(tmp_path, "run: {wandb: off}")).run.wandb == "off"


def test_another_schema_is_checked_the_same_way(tmp_path: Path) -> None:
    class Run(Section):
        width: int = Field(8, description="Width.")
        name: str = Field("x", description="Name.")

    class Other(Section):
        run: Run = Field(Run(), description="Run.")

    assert load_recipe(write(tmp_path, "run: {width: 4}"), schema=Other).run == Run(width=4, name="mine")
    with pytest.raises(UserError, match="run.width"):
        load_recipe(write(tmp_path, "run: {widht: 4}"), schema=Other)


def test_every_key_is_described_and_every_synonym_leads_to_a_key() -> None:
    keys = set(dotted_keys(Recipe))
    assert set(SYNONYMS.values()) <= keys
    for name, field in Recipe.model_fields.items():
        assert field.description, name
    assert "lora.r" in keys and "rollout.num_generations" in keys


# ---- what may not


@pytest.mark.parametrize(
    ("text", "key", "section", "nearest"),
    [
        ("optim: {learning_rte: 1e-6}", "learning_rte", "optim", "optim.learning_rate"),
        ("lr: 1e-6", "lr", "top level", "optim.learning_rate"),
        ("rollout: {group-size: 8}", "group-size", "rollout", "rollout.num_generations"),
        ("group_size: 1", "group_size", "top level", "rollout.num_generations"),
        ("optim: {betas: 1}", "betas", "optim", "optim.adam_beta"),
        ("rolout: {top_k: 1}", "rolout", "top level", "rollout"),
        ("learner: {kl_coef: 0.1}", "kl_coef", "learner", "learner.beta"),
        ("optim: {temperature: 1}", "temperature", "optim", "rollout.temperature"),
        ("eval: {temprature: 1}", "temprature", "eval", "eval.temperature"),
        ("lora: {rank: 4, lora_alhpa: 2}", "lora_alhpa", "lora", "lora.lora_alpha"),
        ("optim.learning_rate: 1e-6", "optim.learning_rate", "top level", "learning_rate within the section optim"),
        ("3: 4", "3", "top level", "nearest"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest(
    tmp_path: Path, text: str, key: str, section: str, nearest: str
) -> None:
    message = refusal(write(tmp_path, text))
    for part in ("mine.yaml", repr(key), section, nearest):
        assert part in message


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("rollout: {num_generations: 1}", ["rollout.num_generations", "group size", "got 1"]),
        ("rollout: {num_generations: eight}", ["rollout.num_generations", "an integer", "'eight'"]),
        ("rollout: {num_generations: 8.0}", ["rollout.num_generations", "an integer", "8.0"]),
        ("rollout: {num_generations: true}", ["rollout.num_generations", "an integer", "True"]),
        ("rollout: {num_generations: }", ["rollout.num_generations", "an integer", "null"]),
        ("rollout: {temperature: 0}", ["rollout.temperature", "at least 1e-06"]),
        ("rollout: {temperature: .nan}", ["rollout.temperature", "nan"]),
        ("rollout: {temperature: .inf}", ["rollout.temperature", "finite"]),
        ("rollout: {temperature: nan}", ["rollout.temperature", "a number"]),
        ("rollout: {temperature: yes}", ["rollout.temperature", "a number", "True"]),
        ("rollout: {top_p: 1.5}", ["rollout.top_p", "at most 1"]),
        ("learner: {epsilon: -0.1}", ["learner.epsilon", "greater than 0"]),
        ("learner: {epsilon: 1}", ["learner.epsilon", "less than 1"]),
        ("learner: {epsilon_high: big}", ["learner.epsilon_high", "a number or null", "'big'"]),
        ("optim: [1, 2]", ["optim", "section", "[1, 2]"]),
        ("optim: 3", ["optim", "section", "3"]),
        ("optim:", ["optim", "section", "null"]),
        ("lora: true", ["lora", "section", "True"]),
        ("lora: {target_modules: [1]}", ["lora.target_modules", "list of str", "'all-linear'"]),
        ("lora: {target_modules: q}", ["lora.target_modules", "'q'"]),
        ("lora: {parts: [cor]}", ["lora.parts", "a list of 'prelude', 'core', 'coda' or null", "['cor']"]),
        ("model: {path: 3}", ["model.path", "a string", "3"]),
        ("model: {path: {a: 1}}", ["model.path", "a string", "mapping"]),
        ("model: {dtype: fp16}", ["model.dtype", "'float32' or 'bfloat16'", "'fp16'"]),
        ("optim: {learning_rate: fast}", ["optim.learning_rate", "a number", "'fast'"]),
        ("optim: {learning_rate: 2024-01-01}", ["optim.learning_rate", "a number"]),
        ("reward: {name: gsm8K}", ["reward.name", "'gsm8K'", "nearest", "gsm8k"]),
        ("reward: {name: 'my mod:f'}", ["reward.name", "module:function"]),
        ("reward: {name: mbpp_pluss}", ["reward.name", "nearest", "mbpp_plus"]),
        ("reward: {functions: {gsm8k: 1, math50: 1}}", ["reward.functions", "'math50'", "nearest", "math500"]),
        ("reward: {functions: {gsm8k: much}}", ["reward.functions", "weight of gsm8k", "'much'"]),
        ("reward: {functions: {gsm8k: .nan}}", ["reward.functions", "finite"]),
        ("reward: {functions: [gsm8k]}", ["reward.functions", "['gsm8k']"]),
        ("reward: {name: gsm8k, functions: {choice: 1}}", ["reward", "exclude each other", "null"]),
        ("reward: {workers: -1}", ["reward.workers", "at least 0"]),
        ("rollout: {workers: 0, cluster: auto}", ["rollout.workers", "auto", "null"]),
        ("eval: {data: [gsm8k, mat500]}", ["eval.data", "'mat500'", "math500"]),
        ("eval: {temperature: -1}", ["eval.temperature", "at least 0"]),
        ("data: {name: gms8k}", ["data.name", "'gms8k'", "gsm8k"]),
        ("run: {name: a/b}", ["run.name", "a/b"]),
        ("run: {wandb: on}", ["run.wandb", "'off'", "True"]),
    ],
)
def test_a_wrong_value_names_key_got_and_wanted(tmp_path: Path, text: str, parts: list[str]) -> None:
    message = refusal(write(tmp_path, text))
    for part in ["mine.yaml", *parts]:
        assert part in message
    assert message.count("mine.yaml") == 1


def test_a_wrong_estimator_names_its_key(tmp_path: Path) -> None:
    message = refusal(write(tmp_path, "learner: {estimator: reuse_neuman4}"))
    assert "mine.yaml" in message and "learner.estimator" in message and "reuse_neuman4" in message


def test_several_mistakes_are_all_told_each_with_its_origin(tmp_path: Path) -> None:
    write(tmp_path, "optim: {learning_rte: 1}", "base.yaml")
    message = refusal(write(tmp_path, "extends: base.yaml\nrollout: {top_k: x}"), ("run.seed=-1",))
    assert "base.yaml: unknown key 'learning_rte'" in message
    assert "mine.yaml: rollout.top_k" in message
    assert "--set run.seed=-1: run.seed" in message


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", ["empty"]),
        ("# only a comment\n", ["empty"]),
        ("- a\n- b\n", ["mapping", "list"]),
        ("just words", ["mapping", "'just words'"]),
        ("optim: {a: 1\nrun: [", ["line", "bad YAML"]),
        ("a: 1\n\tb: 2", ["line 2", "bad YAML"]),
        ("run:\n  seed: 1\n  seed: 2\n", ["line 3", "'seed'", "twice", "line 2"]),
        ("run: {seed: 1}\noptim: {}\nrun: {seed: 2}\n", ["line 3", "'run'", "twice"]),
        ("run: {seed: 1}\n---\nrun: {seed: 2}\n", ["line 2", "bad YAML"]),
        ("run: !!python/object/apply:os.system ['true']", ["line 1", "bad YAML"]),
        ("run: {name: 2026-13-45}", ["bad YAML"]),
        ("run: &a\n  x: *a", ["mine.yaml"]),
        ("? [1, 2]\n: 3", ["mine.yaml"]),
        ("run: " + "[" * 3000, ["mine.yaml"]),
        ("a: \0", ["mine.yaml", "bad YAML"]),
        ("extends: [a, b]", ["extends", "one recipe file"]),
        ("extends: ", ["extends", "null"]),
        ("extends: quickstart_reuse_neuman4.yaml", ["extends", "nearest", "quickstart_reuse_neumann4"]),
        ("extends: mine.yaml", ["circle", "mine.yaml -> mine.yaml"]),
        ("run: {name: *nothing}", ["line 1", "nothing"]),
    ],
)
def test_a_file_that_is_no_recipe(tmp_path: Path, text: str, parts: list[str]) -> None:
    message = refusal(write(tmp_path, text))
    for part in ["mine.yaml", *parts]:
        assert part in message


def test_a_longer_circle(tmp_path: Path) -> None:
    write(tmp_path, "extends: b.yaml", "a.yaml")
    write(tmp_path, "extends: c.yaml", "b.yaml")
    write(tmp_path, "extends: a.yaml", "c.yaml")
    assert "a.yaml -> b.yaml -> c.yaml -> a.yaml" in refusal(tmp_path / "a.yaml")


def test_files_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "quickstart_full_bptt" in refusal(tmp_path / "quickstart_full_bpt.yaml")
    assert "directory" in refusal(tmp_path).lower()
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00\x80")
    assert "UTF-8" in refusal(tmp_path / "binary.yaml")
    closed = write(tmp_path, "run: {seed: 1}", "closed.yaml")

    def refuse(*_: object, **__: object) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_text", refuse)
    assert "Permission denied" in refusal(closed)


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("optim.learning_rte=1", ["'learning_rte'", "optim.learning_rate"]),
        ("lr=1", ["'lr'", "optim.learning_rate"]),
        ("optim.learning_rate", ["key=value"]),
        ("=3", ["key=value"]),
        ("optim..x=3", ["key=value"]),
        ("optim.learning_rate=", ["optim.learning_rate", "null"]),
        ("optim.learning_rate=[", ["bad YAML"]),
        ("run.seed.x=1", ["run.seed", "an integer"]),
    ],
)
def test_a_wrong_override_is_told_as_one(override: str, parts: list[str]) -> None:
    message = refusal("quickstart_full_bptt", (override,))
    for part in [f"--set {override}", *parts]:
        assert part in message


def test_deep_nesting_is_refused_before_it_reaches_a_limit_of_python(tmp_path: Path) -> None:
    for depth in (33, 300, 3000, 30000):
        for opening, closing in (("{a: ", "}"), ("[", "]")):
            message = refusal(write(tmp_path, "run: " + opening * depth + "1" + closing * depth))
            assert "nested too deeply" in message
    aliases = "a: &a [1]\n" + "".join(f"{chr(98 + i)}: &{chr(98 + i)} [*{chr(97 + i)}]\n" for i in range(20))
    assert "unknown key" in refusal(write(tmp_path, aliases))


def test_frozen() -> None:
    with pytest.raises(Exception, match="frozen"):
        Recipe().run.seed = 3


def test_recorded_failures(tmp_path: Path) -> None:
    if not (SHARED / "known_failures.jsonl").exists():
        pytest.skip("the recorded failures are not here")
    cases = [json.loads(line) for line in (SHARED / "known_failures.jsonl").read_text().splitlines()]
    tried = 0
    for case in cases:
        if case["area"] != "config" and case["id"] != "grpo-08":
            continue
        for edit in case["input"].get("recipe_edits", [case["input"].get("recipe")]):
            message = refusal(write(tmp_path, yaml.safe_dump({"extends": "quickstart_reuse_neumann4.yaml", **edit})))
            place = edit
            while isinstance(place, dict):
                key, place = next(iter(place.items()))
                assert key in message
            tried += 1
    assert tried >= 5


def test_a_recipe_tells_its_kind() -> None:
    for file in recipes_folder().glob("*.yaml"):
        kind = next((one for one in ("pretrain", "distill", "sft") if file.stem.startswith(one)), "train")
        assert kind_of(file.stem) == kind
        assert type(load_any(file.stem)) is SCHEMAS[kind]
    with pytest.raises(UserError, match="loop-rl distill distill_embedded"):
        load_for("train", "distill_embedded")
