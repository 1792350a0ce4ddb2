"""What README and docs claim: files and recipes that exist, commands that parse, keys that are keys."""

import os
import re
import shlex
from pathlib import Path

import pytest
import yaml

from loop_rl.cli import _repeat_set, build_parser
from loop_rl.evaluation import load_reward
from loop_rl.fixed_point import parse_estimator
from loop_rl.recipe.kinds import load_any, shipped
from loop_rl.recipe.rl import Recipe, load_recipe

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
NAMES = {file.stem for file in shipped()}


def blocks(page, language):
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), re.S)


def commands(page):
    """Every `loop-rl ...` of a page: in its shell blocks and its inline code."""
    text = page.read_text(encoding="utf-8")
    found = [line.strip() for block in blocks(page, "bash") for line in block.splitlines()]
    found += [" ".join(code.split()) for code in re.findall(r"(?<!`)`(loop-rl [^`]+)`(?!`)", text)]
    return [shlex.split(line, comments=True)[1:] for line in found if line.startswith("loop-rl ")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_parse_and_their_settings_are_keys(page):
    for argv in commands(page):
        if argv in (["train"], ["report"], ["--help"], ["train", "--help"]):
            continue  # named in passing
        arguments = build_parser().parse_args(_repeat_set(argv))
        recipe = getattr(arguments, "recipe", None)
        if getattr(arguments, "set", None):
            base = recipe if recipe in NAMES else "quickstart_reuse_neumann4"
            # What a loop of the shell fills in stands in for itself where it is text.
            settings = [one.replace("$estimator", "full_bptt").replace("$seed", "0") for one in arguments.set]
            load_any(base, settings)
        if recipe is not None and not recipe.endswith(".yaml"):
            assert recipe in NAMES


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_scripts_exist(page):
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert target.startswith("https://") or (page.parent / target).is_file(), target
    for script in re.findall(r"bash (scripts/[\w./-]+\w)", text):
        assert os.access(ROOT / script, os.X_OK), script


def test_the_first_screen_holds_the_two_commands():
    first = "\n".join((ROOT / "README.md").read_text(encoding="utf-8").splitlines()[:24])
    assert "bash scripts/quickstart.sh" in first
    assert "bash scripts/test.sh" in first


def test_the_recipes_and_keys_of_the_examples(tmp_path):
    for page in PAGES:
        for number, block in enumerate(blocks(page, "yaml")):
            file = tmp_path / f"{page.stem}_{number}.yaml"
            file.write_text(block)
            load_recipe(file)
        text = page.read_text(encoding="utf-8")
        for code in re.findall(r"`([a-z_]+): (\{[^`]+\}|[a-z0-9]+)`", text):
            Recipe.model_validate(yaml.safe_load(f"{code[0]}: {code[1]}"))
    for name in re.findall(r"`((?:full|truncated|recompute|reuse)_\w+)`", (ROOT / "docs" / "compare.md").read_text()):
        parse_estimator(name)


def test_the_example_reward_works(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (block,) = blocks(ROOT / "docs" / "train.md", "python")
    (tmp_path / "my_reward.py").write_text(block)
    assert load_reward("my_reward:short")([""], [" 7"], [[1]], answer=["7"]) == [1.0]


def test_the_example_of_ecosystem_scores():
    last = blocks(ROOT / "docs" / "ecosystem.md", "python")[-1]
    code, _, said = last.strip().rpartition("#")
    scope = {}
    first, _, call = code.strip().rpartition("\n")
    exec(first, scope)
    assert eval(call, scope) == eval(said)
