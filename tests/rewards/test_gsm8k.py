"""The GSM8K reward: the reading of answers, checked against Python's own numbers and the data set's references."""

import json
import os
import random
import subprocess
import sys
import time
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewards.gsm8k import extract_answer, gsm8k_reward, gsm8k_strict_reward, parse_gold

ROOT = Path(__file__).parents[2]
DATA = Path(os.environ.get("LOOP_RL_DATA") or ROOT / "../shared/data")


def score(gold, completion, reward=gsm8k_reward):
    return reward(["q"], [completion], [[1]], answer=[gold])[0]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        # a lone comma is no number, and punctuation ends one
        ("#### 37, which checks", "37"),
        ("####37", "37"),
        ("#### 37.", "37"),
        ("#### 2,480.00", "2480"),
        ("#### $2,480", "2480"),
        ("#### \\$2,480", "2480"),
        ("#### £ 2480", "2480"),
        ("#### 2480 USD", "2480"),
        ("#### USD 2480", "2480"),
        ("**#### 2,480**", "2480"),
        ("#### **2480**", "2480"),
        ("#### \\boxed{2480}", "2480"),
        ("#### $2{,}480$", "2480"),
        ("#### \\(2480\\)", "2480"),
        ("#### 2\u202f480", "2480"),
        ("#### 3,12,000", "312000"),
        ("####\n14", "14"),
        ("##### 14", "14"),
        ("#### x = 14", "14"),
        ("#### The answer is 14.", "14"),
        ("#### 14-day", "14"),
        # signs
        ("#### -8", "-8"),
        ("#### \u22128", "-8"),
        ("#### \u20138", "-8"),
        ("#### - 8", "-8"),
        ("#### -$8", "-8"),
        ("#### $-8", "-8"),
        ("#### +8", "8"),
        # fractions, percent, powers of ten
        ("#### 3/4", "3/4"),
        ("#### 2 3/4", "11/4"),
        ("#### \\frac{3}{4}", "3/4"),
        ("#### -\\dfrac{3}{4}", "-3/4"),
        ("#### 2\\frac{3}{4}", "11/4"),
        ("#### 2½", "5/2"),
        ("#### .75", "3/4"),
        ("#### 35%", "35"),
        ("#### 35\\%", "35"),
        ("#### 2.5e3", "2500"),
        # an equation counts by its right side, an expression not at all
        ("#### 6 + 5 = 11", "11"),
        ("#### 6 x $5 = $30", "30"),
        ("#### -6 - -5 = -1", "-1"),
        ("#### 11 (= 6 + 5)", "11"),
        ("#### 6 + 5", None),
        ("#### 6\\times 5", None),
        ("#### 11\n- 5 of them red", "11"),
        # the last one decides, whatever follows; headings do not count
        ("#### 4\n#### 9", "9"),
        ("#### 9\n#### Check\n2 + 7", "9"),
        ("#### 9\n" + "It was checked 3 times. " * 100, "9"),
        ("#### 9\nThe answer is 4", "9"),
        # numbered headings
        (
            "#### 1. Cost of the pens\n2 * 3 = 6 dollars.\n\n#### 2. Total\n6 + 11 = 17 dollars.\n\nThe answer is 17.",
            "17",
        ),
        ("#### 2. Total\n6 + 11 = 17 dollars.", "17"),
        ("##### 2. Total\n6 + 11 = 17 dollars.", "17"),
        ("#### 2) Total cost\nIt is 17.", "17"),
        ("#### (2) Total cost\nIt is 17.", "17"),
        ("#### 2: Total cost\nIt is 17.", "17"),
        ("#### **2. Total**\nIt is 17.", "17"),
        ("#### 2. **Total**\nIt is 17.", "17"),
        ("#### 17\n#### 2. A check\n17 - 11 = 6", "17"),
        ("#### 2 - Total\n6 + 11 = 17 dollars.", "17"),
        ("#### 2 \u2013 Total cost\nIt is 17.", "17"),
        ("#### 2 \u2014 **Total**\nIt is 17.", "17"),
        ("#### **2** - Total\nIt is 17.", "17"),
        ("#### 17\n#### 2 - A check\n17 - 11 = 6", "17"),
        ("#### 17 - all pens\nIt was 2.", "17"),
        ("#### 17 - That is all.\nIt was 2.", "17"),
        ("#### 117 - Done\nIt was 2.", "117"),
        ("#### -2", "-2"),
        ("#### 2-3", None),
        ("#### 2 - 3", None),
        ("#### 2 \u2013 3 apples", None),
        ("#### 2 \u2014 3 apples", None),
        ("#### 2\u20113", None),
        # hyphenated words
        ("#### 14-day trips", "14"),
        ("#### 5 two-year-old horses", "5"),
        ("#### 4 six-packs + 2 cans = 26 cans", "26"),
        ("#### 4 six-packs + 2 cans", None),
        ("#### 4-pound + 3-pound = 7-pound bags", "7"),
        ("#### 7 six-packs - 3 of them open", "7"),
        ("#### 17. That is all.", "17"),
        ("#### 17: it was checked.", "17"),
        ("#### 117. Done", "117"),
        ("#### 17.\nDone", "17"),
        # equations with units
        ("#### 30 minutes + 20 minutes = 50 minutes", "50"),
        ("The answer is 30 minutes + 20 minutes = 50 minutes.", "50"),
        ("#### 3 boxes * 4 pens/box = 12 pens", "12"),
        ("#### 3 dollars x 5 = 15 dollars", "15"),
        ("#### 5\\text{ cm} + 3\\text{ cm} = 8\\text{ cm}", "8"),
        ("#### 2.5 kg \\times 2 = 5 kg", "5"),
        ("#### 60 square feet / 4 = $15", "15"),
        ("#### 30 minutes + 20 minutes", None),
        ("#### 7 pens - 3 of them red", "7"),
        ("#### 14 where x - 3 = 11", "14"),
        ("#### 50 minutes", "50"),
        ("#### 10 apples/day", "10"),
        # a question that the model makes up
        ("3 + 4 = 7.\n#### 7\n\nQuestion: Tom has 5 pens and buys 6.\nAnswer: 5 + 6 = 11.\n#### 11", "7"),
        (" 7\nQuestion: Tom has 5 pens.\nAnswer: 11", "7"),
        ("The answer is 7.\n\n Question: Tom has 5 pens.\nThe answer is 11.", "7"),
        ("Question: Ann has 3 pens.\nAnswer: 3 + 4 = 7\n#### 7\n\nQuestion: Tom has 5 pens.\n#### 11", "7"),
        ("Sure!\n\nQuestion: Ann has 3 pens.\n#### 7", "7"),
        ("#### 7\n\nMy Question: has it 11?", "7"),
        # no single number
        ("#### 10-15", None),
        ("#### 7:30", None),
        ("#### 1.2.3", None),
        ("#### 12,50", None),
        ("#### 4,5,6", None),
        ("#### 4 5", None),
        ("#### 1/0", None),
        ("#### 1/2/3", None),
        ("#### 1e9999", None),
        ("#### " + "7" * 101, None),
        ("#### 0," + "7" * 9000, None),
        # without a marker
        ("She has 37 pens, all told.", "37"),
        ("It earns \\$2,480 per week", "2480"),
        ("from 9 down to -8", "-8"),
        ("12-4=8", "8"),
        ("The answer is **8**, not 9", "8"),
        ("Answer: 8 of 10", "8"),
        ("so \\boxed{8} of 10", "8"),
        ("#### unknown\nanswer = 8", "8"),
        ("so \\boxed{8", None),
        ("so 12 - 4", None),
        ("on 3/4/2024", None),
        ("", None),
        ("#### ", None),
        ("#### ,", None),
        ("no number", None),
    ],
)
def test_reads_the_answer(text, value):
    assert extract_answer(text) == (None if value is None else Fraction(value))


@pytest.mark.parametrize(
    ("gold", "completion", "reward"),
    [("-8", "#### 8", 0.0), ("8", "#### -8", 0.0), ("8", "#### +8", 1.0), ("0.5", "#### 1/2", 1.0)]
    + [("35", "#### 0.35", 0.0), ("2,480", "#### 2480.5", 0.0), (2480, "#### 2,480", 1.0), (0.1, "#### 0.1", 1.0)]
    + [("0.3", "#### 0.30000000000000001", 0.0), (Decimal("2.50"), "#### 2.5", 1.0), ("x\n#### 8", "#### 8", 1.0)],
)
def test_compares_exact_values(gold, completion, reward):
    assert score(gold, completion) == reward


@pytest.mark.parametrize(
    "gold", [None, "", "eight", "#### ", "10-15", True, float("nan"), float("inf"), [8], "9" * 5000]
)
def test_a_reference_without_a_number_is_not_scored(gold):
    assert score(gold, "#### 8") is None


def test_strict_needs_the_marker():
    assert score("8", "The answer is 8", gsm8k_strict_reward) == 0.0
    assert score("8", "#### 8", gsm8k_strict_reward) == 1.0
    assert score("2", "#### 2 - Total\nIt is 2", gsm8k_strict_reward) == 0.0  # a heading is no marker


def test_chat_completions_and_extra_columns():
    chat = [{"role": "user", "content": "#### 1"}, {"role": "assistant", "content": "#### 8"}]
    parts = [{"role": "assistant", "content": [{"type": "text", "text": "####"}, {"type": "text", "text": " 8"}]}]
    empty = [{"role": "assistant", "content": None}]
    rewards = gsm8k_reward(
        prompts=["q"] * 3, completions=[chat, parts, empty], completion_ids=[[1]] * 3, answer=["8"] * 3, level=[1, 2, 3]
    )
    assert rewards == [1.0, 1.0, 0.0]


def test_a_callers_mistake_is_an_error_not_a_zero():
    with pytest.raises(ValueError):
        gsm8k_reward(["q"], ["#### 8"], [[1]], answer=["8", "9"])
    with pytest.raises(TypeError, match="completion"):
        gsm8k_reward(["q"], [8], [[1]], answer=["8"])


def _references(split):
    path = DATA / f"gsm8k_{split}.jsonl"
    if not path.exists():
        pytest.skip(f"{path} is missing")
    return [json.loads(line)["answer"] for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize(("split", "count"), [("train", 7473), ("test", 1319)])
def test_every_reference_scores_one_against_itself(split, count):
    answers = _references(split)
    golds = [int(answer.rsplit("#### ", 1)[1].replace(",", "")) for answer in answers]  # this data set's own form
    assert len(answers) == count
    assert [parse_gold(answer) for answer in answers] == golds
    assert gsm8k_reward(answers, answers, answers, answer=golds) == [1.0] * count
    assert gsm8k_reward(answers, answers, answers, answer=[gold + 1 for gold in golds]) == [0.0] * count


@pytest.mark.parametrize("reward", [gsm8k_reward, gsm8k_strict_reward])
def test_says_why(reward):
    logged = []
    completions = ["#### 8", "#### 9", "#### unknown", "#### 8"]
    scores = reward(
        None, completions, answer=["8", "8", "8", "none"], log_extra=lambda *row: logged.append(row), trainer_state=None
    )
    assert scores == [1.0, 0.0, 0.0, None]
    assert logged == [("reason", ["correct", "wrong", "no answer", "not scored: the reference has no number"])]


@given(st.integers(-(10**30), 10**30), st.sampled_from(["", " ", "\n", " $", " **", " \\$"]), st.booleans())
def test_any_integer_in_any_dress(number, dress, commas):
    written = f"{number:,}" if commas else str(number)
    assert extract_answer(f"1 + 1 = 2\n####{dress}{written}** dollars, as said.") == number


@given(
    st.integers(0, 10**6),
    st.integers(0, 10**6),
    st.sampled_from(["cm", "dollars", "square feet", "pens/box", "\\text{ cm}"]),
)
def test_any_sum_with_units(one, two, unit):
    assert extract_answer(f"#### {one} {unit} + {two} {unit} = {one + two} {unit}") == one + two
    assert extract_answer(f"#### {one + two} {unit}") == one + two
    assert extract_answer(f"#### {one} {unit} + {two} {unit}") is None


@given(st.integers(-(10**6), 10**6), st.text(max_size=100))
def test_a_made_up_question_takes_nothing_from_the_answer(number, text):
    assert extract_answer(f"so it is\n#### {number}\n\nQuestion: {text}\n#### {number + 1}") == number


@given(st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**12), max_value=10**12, places=6))
def test_any_decimal(number):
    assert extract_answer(f"#### {number:f}") == Fraction(number)
    assert extract_answer(f"so it is {number:f}.") == Fraction(number)


@given(st.integers(-(10**9), 10**9), st.integers(1, 10**9))
def test_any_fraction(top, bottom):
    assert extract_answer(f"#### {top}/{bottom}") == Fraction(top, bottom)
    assert extract_answer(f"#### \\frac{{{top}}}{{{bottom}}}") == Fraction(top, bottom)


@given(st.text(alphabet=st.sampled_from("0123456789 ,.-+/#=$%\\{}[](){}xeE½\nanswer is:boxedfrac"), max_size=200))
def test_any_text_gives_a_number_or_nothing(text):
    value = extract_answer(text)
    assert value is None or isinstance(value, Fraction)
    assert score("8", text) in (0.0, 1.0)
    assert extract_answer(f"{text}\n#### 8\nand so on") == 8


@given(st.text(alphabet=st.characters(exclude_characters="#"), max_size=2000), st.integers(-999, 999))
def test_text_around_the_marker_changes_nothing(text, number):
    assert extract_answer(f"{text}\n#### {number}\n\n{text}") == number


def test_the_last_number_is_found_the_same_however_long_the_text():
    source = random.Random(0)
    for _ in range(300):
        tail = "".join(source.choice("0123456789,. -ab$=") for _ in range(30))
        filler = " and so on" * 200
        assert extract_answer(filler + " . " + tail) == extract_answer(" . " + tail)


HOSTILE = [
    "#",
    "9",
    "#### ",
    "\\boxed{",
    "answer is ",
    "1,",
    "1/",
    "1 ",
    "#### 1=",
    "\\frac{1}{",
    "1{,}",
    "a=",
    "1e1",
    "-",
    "#### 1. a",
    "#### 1 - A",
    "#### 1 a-b-",
    "#### 1 a + 1 ",
    "1 cm + ",
    "1\nQuestion:",
]


@pytest.mark.parametrize("piece", HOSTILE)
@pytest.mark.parametrize("lead", ["", "####", "#### 1", "\\boxed{1} "])
def test_hostile_text_costs_linear_time(piece, lead):
    text = lead + piece * (200_000 // len(piece))
    start = time.process_time()
    extract_answer(text)
    assert time.process_time() - start < 5  # quadratic would be minutes; a slow machine has a tenfold margin


def test_thousands_of_scores_a_second():
    answers = ["She bought 12 + 30 = 42 pens.\nThen she sold 2, so 42 - 2 = 40 are left.\n#### 40"] * 5000

    def seconds():
        start = time.process_time()
        gsm8k_reward(answers, answers, answers, answer=answers)
        return time.process_time() - start

    assert 5000 / min(seconds() for _ in range(3)) > 2_000  # tens of thousands where this was written


def test_imports_nothing_of_the_project():
    code = "import sys, rewards.gsm8k; assert not {'loop_rl', 'torch', 'transformers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
