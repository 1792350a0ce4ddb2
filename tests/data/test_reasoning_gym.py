"""reasoning-gym: what is made, what is scored, and that neither a scorer's crash nor its leniency decides a reward."""

import functools
import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from loop_rl.data import load_dataset
from loop_rl.data.gym_child import made, make
from loop_rl.data.gym_process import GymScorer, ScorerFailed, make_items
from loop_rl.data.reasoning_gym import SCORER, close, extract_answer, generators, reasoning_gym_reward, start
from loop_rl.errors import UserError
from tests.data.helpers import settings

pytest.importorskip("reasoning_gym")

# A full pass over the package, in one process, is scripts/check_reasoning_gym.py; these make an item in milliseconds.
QUICK = ["chain_sum", "number_sorting", "game_of_life_halting", "word_ladder"]


@pytest.fixture(scope="module", autouse=True)
def process():
    yield start()
    close()


@pytest.fixture(scope="module", autouse=True)
def made_here():
    """Questions are made in this process, for one of their own takes seconds to start; some tests ask for that one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("loop_rl.data.reasoning_gym.make_items", made)
        yield


@functools.cache
def load(generator, seed=0, train_size=8, eval_size=4):
    name = f"reasoning_gym:{generator}"
    return load_dataset(settings(name, seed=seed, train_size=train_size, eval_size=eval_size))


def refusal(*arguments, **keywords):
    with pytest.raises(UserError) as caught:
        load.__wrapped__(*arguments, **keywords)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def reward(examples, completions):
    """Rewards and reasons, called as a trainer calls: by keyword, and with the columns as lists."""
    said = {}
    columns = {key: [example.columns[key] for example in examples] for key in examples[0].columns}
    values = reasoning_gym_reward(
        prompts=[example.prompt for example in examples],
        completions=completions,
        completion_ids=None,
        answer=[example.answer for example in examples],
        log_extra=lambda name, reasons: said.update({name: reasons}),
        **columns,
    )
    return values, said["reason"]


@pytest.mark.parametrize("generator", QUICK)
def test_a_generators_own_answers_get_the_full_reward(generator):
    splits = load(generator)
    assert (len(splits.train), len(splits.test)) == (8, 4)
    examples = splits.train + splits.test
    for say in ("{}", "First I think.\n#### {}", "<answer>{}</answer> is it.", "So \\boxed{{{}}}.", "Answer: {}\n"):
        values, reasons = reward(examples, [say.format(example.answer) for example in examples])
        assert values == [1.0] * 12 and reasons == ["correct"] * 12
    values, reasons = reward(examples, ["no idea at all"] * 12)
    assert values == [0.0] * 12 and reasons == ["wrong"] * 12
    assert reward(examples[:1], [" \n"]) == ([0.0], ["no answer"])
    assert reward(examples[:1], [[{"role": "assistant", "content": examples[0].answer}]]) == ([1.0], ["correct"])


def test_part_marks_are_no_reward():
    import reasoning_gym

    example = load("chain_sum").train[0]
    said = f"it is {example.answer} I think"
    scorer = reasoning_gym.get_score_answer_fn("chain_sum")
    assert 0 < scorer(said, example.columns["entry"]) < 1
    assert reward([example], [said]) == ([0.0], ["wrong"])


def test_a_scorer_that_takes_anything_does_not_decide():
    import reasoning_gym

    splits = load("game_of_life_halting")
    scorer = reasoning_gym.get_score_answer_fn("game_of_life_halting")
    fooled = [e for e in splits.train if scorer("bananas", e.columns["entry"]) == 1]
    assert fooled
    assert set(reward(fooled, ["bananas"] * len(fooled))[0]) == {0.0}
    assert set(reward(fooled, [e.answer for e in fooled])[0]) == {1.0}


def test_a_scorer_that_raises_is_no_wrong_answer():
    example = load("prime_factorization").train[0]
    values, reasons = reward([example] * 2, ["a few primes", example.answer])
    assert values == [None, 1.0]
    assert reasons[0].startswith("not scored: ValueError: invalid literal") and reasons[1] == "correct"


# ---- what is made


def test_seeded_and_a_smaller_set_begins_a_larger():
    part, whole = load("chain_sum"), load("chain_sum", train_size=0, eval_size=20)
    assert whole.train == [] and part.test == whole.test[:4]
    assert part.train[:5] == load("chain_sum", train_size=5, eval_size=1).train
    assert load("chain_sum", seed=1).train != part.train
    assert len({example.index for example in part.train + whole.test}) == 28


def test_a_process_of_its_own_makes_the_same(monkeypatch):
    monkeypatch.setattr("loop_rl.data.reasoning_gym.make_items", make_items)
    assert load.__wrapped__("chain_sum") == load("chain_sum")
    assert "composite can't be made" in refusal("composite")


def test_no_question_is_in_both_halves_whatever_the_seeds():
    # All that this generator can ask are a few hundred questions, so two seeds meet often.
    made = [load("coin_flip", seed=seed, train_size=60, eval_size=20) for seed in range(2)]
    train = {example.prompt for splits in made for example in splits.train}
    test = {example.prompt for splits in made for example in splits.test}
    assert sum(len(splits.train) for splits in made) > len(train)  # they did meet
    assert not train & test
    for splits in made:
        assert len({example.prompt for example in splits.train}) == 60


def test_a_generator_with_few_questions():
    everything = load("coin_flip", train_size=None, eval_size=None)
    few = len(everything.train)
    assert 0 < few < 500
    assert f"makes only {few} different questions of this half, 500 were" in refusal("coin_flip", train_size=500)


@pytest.mark.parametrize("generator", ["list_functions", "isomorphic_strings"])
def test_the_same_in_every_process(monkeypatch, generator):
    # These depend on the global random state and on the hashes of strings.
    monkeypatch.setenv("PYTHONHASHSEED", "1")
    few = make_items(generator, 3, 3, 2)
    monkeypatch.setenv("PYTHONHASHSEED", "2")
    more = make_items(generator, 3, 3, 4)
    assert few["train"] == more["train"] and few["test"] == more["test"][:2]


def test_the_same_however_many_are_made():
    # This one makes all items of a set at once, and others for another size.
    few, more = (make("acre", 3, {"train": size, "test": 1})["train"] for size in (2, 6))
    assert few == more[:2]


def test_examples_and_the_reward_travel_to_other_processes():
    examples = load("number_sorting").train
    there, function = pickle.loads(pickle.dumps((examples, reasoning_gym_reward)))
    assert there == examples and function is reasoning_gym_reward
    code = (
        "import pickle, sys; examples, reward = pickle.load(sys.stdin.buffer)\n"
        "columns = {k: [e.columns[k] for e in examples] for k in examples[0].columns}\n"
        "print(reward(None, [e.answer for e in examples], **columns))"
    )
    root = Path(__file__).resolve().parents[2]
    given = pickle.dumps((examples[:2], reasoning_gym_reward))
    done = subprocess.run([sys.executable, "-c", code], cwd=root, input=given, stdout=subprocess.PIPE)
    assert done.stdout.strip() == b"[1.0, 1.0]"


def test_unknown_generators_and_those_that_make_nothing():
    assert "no generator 'chian_sum'; the nearest is chain_sum" in refusal("chian_sum")
    names = generators()
    assert "chain_sum" in names and len(names) > 100


def test_a_generator_without_a_gold_is_judged_by_its_scorer():
    example = load("graph_color").train[0]
    assert example.answer == ""
    edges = example.columns["entry"]["metadata"]["puzzle"]["edges"]
    vertices = example.columns["entry"]["metadata"]["puzzle"]["vertices"]
    colours = example.columns["entry"]["metadata"]["puzzle"]["color_options"]

    def colour(given):
        if len(given) == len(vertices):
            return given
        vertex = vertices[len(given)]
        taken = {given.get(b if a == vertex else a) for a, b in edges if vertex in (a, b)}
        options = (colour({**given, vertex: one}) for one in colours if one not in taken)
        return next((found for found in options if found), None)

    right = json.dumps({str(vertex): one for vertex, one in colour({}).items()})
    wrong = json.dumps({str(vertex): colours[0] for vertex in vertices})
    assert reward([example] * 2, [f"#### {right}", f"#### {wrong}"])[0] == [1.0, 0.0]


def test_a_package_that_is_not_installed(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "pip install 'loop-rl[reasoning-gym]'" in refusal("chain_sum")


# ---- the process of the scorers


@pytest.fixture(scope="module")
def item():
    return made("spiral_matrix", 0, 1, 0)["train"][0][1]


@pytest.mark.parametrize(
    "attack",
    [
        "[__import__('os').system('touch {file}')]",
        "[open('{file}', 'w')]",
        "[__import__('pathlib').Path('{file}').touch()]",
        "[__import__('subprocess').run(['touch', '{file}'])]",
        "[__import__('os').kill(__import__('os').getppid(), 9)]",
        "[print('{{\"score\": 1}}')]",
    ],
)
def test_what_a_scorer_evaluates_reaches_nothing(tmp_path, item, attack):
    # This generator's scorer calls eval on an answer that begins with a bracket.
    file = tmp_path / "made"
    assert SCORER.score("spiral_matrix", attack.format(file=file), item) == 0
    assert not file.exists()
    assert SCORER.score("spiral_matrix", item["answer"], item) == 1


@pytest.mark.parametrize("attack", ["[exit()]", "[__import__('os')._exit(0)]", "[__import__('os').close(0)]"])
def test_a_scorer_that_ends_is_started_again(item, attack):
    try:
        assert SCORER.score("spiral_matrix", attack, item) == 0
    except ScorerFailed as error:
        assert "\n" not in str(error)
    assert SCORER.score("spiral_matrix", item["answer"], item) == 1


def test_a_scorer_that_never_ends_is_not_waited_for():
    item = made("polynomial_multiplication", 0, 1, 0)["train"][0][1]
    scorer = GymScorer(seconds=1.0)
    try:
        assert scorer.score("polynomial_multiplication", item["answer"], item) == 1
        with pytest.raises(ScorerFailed, match="no score within 1 s"):
            scorer.score("polynomial_multiplication", "9**9**9**9", item)
        assert scorer.score("polynomial_multiplication", item["answer"], item) == 1
    finally:
        scorer.close()


# ---- which part of a completion is the answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (" 42\n", "42"),
        ("1 2\n3 4", "1 2\n3 4"),
        ("#### 5\nor rather\n#### 7 \nend", "7"),
        ("<answer>1 2\n3 4</answer> #### 9", "1 2\n3 4"),
        ("<answer>1</answer> no <answer> 2 </answer>", "2"),
        ("<answer>cut off #### 3", "3"),
        ("so \\boxed{\\frac{1}{2}} or \\boxed{x}", "x"),
        ("so \\boxed{\\frac{1}{2}}.", "\\frac{1}{2}"),
        ("cut \\boxed{12", "cut \\boxed{12"),
        ("Answer: no\n**Answer:** yes\nbye", "yes"),
        ("The answer: 3", "The answer: 3"),
        ("answer:\n1 2\n3 4\n", "1 2\n3 4"),
        ("##### 5", "##### 5"),
        ("####5", "####5"),
        ("", ""),
    ],
)
def test_the_part_that_is_scored(text, answer):
    assert extract_answer(text) == answer
