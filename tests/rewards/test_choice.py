"""The multiple-choice reward: which letter is read, and that none is guessed."""

import json
import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewards.choice import choice_reward, extract_choice

ROOT = Path(__file__).parents[2]
DATA = Path(os.environ.get("LOOP_RL_DATA") or ROOT / "../shared/data")
LETTERS = st.sampled_from("ABCDE")


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        # the last box alone
        ("\\boxed{D}", "D"),
        ("\\boxed{\\text{(D)}}", "D"),
        ("$\\boxed{\\textbf{(A) } 17}$", "A"),
        ("\\boxed{D) 17}", "D"),
        ("\\boxed{d}", None),
        ("\\boxed{(d)}", "D"),
        ("\\boxed{B} no: \\boxed{D}. The answer is B.", "D"),
        ("\\boxed{17}\nAnswer: B", None),
        ("\\boxed{B} or \\boxed{D", None),
        ("\\boxed{B, D}", None),
        ("\\boxed{BD}", None),
        ("The answer is D. I was to put it in \\boxed{}.", "D"),
        ("\\boxed{D} in the form \\boxed{...}", "D"),
        # a question that the model makes up
        ("D\n\nQuestion: 2?\nOptions:\nA)1 B)2\nAnswer: A", "D"),
        ("The answer is D.\n Question: 2?\nAnswer: A", "D"),
        ("Sure!\n\nQuestion: 2?\nAnswer: D", "D"),
        ("\\boxed{D}\n\nQuestion: 2?\nAnswer: \\boxed{A}", "D"),
        # markers
        ("The answer is (D).", "D"),
        ("The answer is D because B is too small.", "D"),
        ("the answer is (d)", "D"),
        ("**Answer: D**", "D"),
        ("Answer: **D. 17**", "D"),
        ("Answer:\n\nD", "D"),
        ("Answer - D.", "D"),
        ("Answer: B\nNo, I misread it. Answer: D", "D"),
        ("The correct answer is option D, by (B).", "D"),
        ("#### D", "D"),
        ("<answer>D</answer> as (B) is odd", "D"),
        ('The answer is "D", not B.', "D"),
        ("Answer: [D] 17", "D"),
        ("The correct choice is **D) 17**.", "D"),
        ("**Correct option:** D. 17", "D"),
        ("The correct choice is between B and D", None),
        ("Answer: $\\text{D}$", "D"),
        ("So D is the correct choice, not B", "D"),
        ("A is the answer", "A"),
        ("Answer: A", "A"),
        ("The answer is A.", "A"),
        ("The answer is A\nas (B) shows", "A"),
        # an article, a variable, a part of something
        ("The answer is A long story", None),
        ("The answer is a prime", None),
        ("the answer is D = 5", None),
        ("the answer is D-4", None),
        ("the answer is D'", None),
        ("The answer is 17", None),
        # without a marker
        ("Hence D", "D"),
        ("Hence\nD\nas it is said", "D"),
        ("(B) fails, (D) holds", "D"),
        ("Option D holds.", "D"),
        ("x = D", None),
        ("CD", None),
        ("A)17 B)19", None),
        ("", None),
        # several
        ("Answer: B or D", None),
        ("Answer: A, B, C, D, E", None),
        ("#### B/D", None),
        ("either B or D", None),
        ("(B) and (D)", None),
    ],
)
def test_reads_the_letter(text, letter):
    assert extract_choice(text) == letter


def test_scores_and_says_why():
    logged = []
    completions = ["Answer: C", [{"role": "assistant", "content": "Answer: D"}], "no idea", "Answer: C", "Answer: C"]
    scores = choice_reward(
        prompts=None,
        completions=completions,
        answer=["C", "(c)", "C", "17", None],
        log_extra=lambda *row: logged.append(row),
        options=None,
    )
    assert scores == [1.0, 0.0, 0.0, None, None]
    unusable = "not scored: the reference is no letter from A to E"
    assert logged == [("reason", ["correct", "wrong", "no answer", unusable, unusable])]


DRESSES = [
    "Answer: {}",
    "The answer is ({}).",
    "\\boxed{{{}}}",
    "#### {}",
    "so \\boxed{{\\text{{({})}}}}.",
    "**Answer:** {}",
]


@given(LETTERS, LETTERS, st.sampled_from(DRESSES), st.text(alphabet="abc \n.,13", max_size=60))
def test_the_last_of_one_form_decides(first, last, dress, between):
    text = f"{dress.format(first)} {between}\n{dress.format(last)}"
    assert extract_choice(text) == last
    assert choice_reward(None, [text] * 5, answer=list("ABCDE")) == [float(letter == last) for letter in "ABCDE"]


@given(st.text(max_size=200) | st.text(alphabet="ABCDEabcde ().,:#*$\\{}\nanswer isboxedoptionor", max_size=200))
def test_any_text_earns_at_most_one_letter(text):
    scores = choice_reward(None, [text] * 5, answer=list("ABCDE"))
    assert set(scores) <= {0.0, 1.0} and sum(scores) <= 1


@given(st.lists(LETTERS, min_size=2, max_size=5, unique=True), st.sampled_from([", ", " or ", " and ", "/", " & "]))
def test_naming_several_letters_earns_nothing(letters, joint):
    for dress in DRESSES:
        assert extract_choice(dress.format(joint.join(letters))) is None


@pytest.mark.parametrize(
    "piece", ["answer is ", "(A)", "A\n", "\\boxed{", "option ", "####", "A, ", "A", " ", "\\text{"]
)
def test_hostile_text_costs_linear_time(piece):
    start = time.process_time()
    extract_choice("Answer: " + piece * (1_000_000 // len(piece)))
    assert time.process_time() - start < 5


def test_the_explanations_of_aqua_never_read_as_a_wrong_letter():
    path = DATA / "aqua_test.jsonl"
    if not path.exists():
        pytest.skip(f"{path} is missing")
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    read = [extract_choice(row["rationale"]) for row in rows]
    assert all(letter in (None, row["correct"]) for letter, row in zip(read, rows, strict=True))
    assert sum(letter is not None for letter in read) >= 0.94 * len(rows)  # the others name no letter
