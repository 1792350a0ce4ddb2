r"""Which text of a completion is its answer."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewards.math.extract import extract_answer
from rewards.math500 import math500_reward


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        # the last box
        ("so \\boxed{\\frac{5}{9}}.", "\\frac{5}{9}"),
        ("\\boxed{1}, no: \\boxed{2}. So the answer is 1 or $1$.", "2"),
        ("\\boxed{1}\\boxed{2}", "2"),
        ("\\boxed{\\{1, 2\\}} {", "\\{1, 2\\}"),
        ("{ \\boxed{a_{1}} }}", "a_{1}"),
        ("\\fbox{7} ok", "7"),
        ("\\boxed {7}", "7"),
        ("\\boxed\n{7}", "7"),
        ("\\\\boxed{7}", "7"),
        ("x \\\\\\boxed{7}", "7"),
        # nested ones
        ("\\boxed{\\boxed{7}}", "{7}"),
        ("\\boxed{x = \\boxed{7}}", "x = {7}"),
        ("\\boxed{\\fbox{\\boxed{7}}}", "{{7}}"),
        # without braces
        ("so $\\boxed 7$, ok", "7"),
        ("\\boxed 35. Then", "35"),
        ("\\boxed3\nand", "3"),
        ("\\[\\boxed \\frac57\\]", "\\frac57"),
        # cut off or empty
        ("\\boxed{12", None),
        ("\\boxed{12} and \\boxed{3", None),
        ("\\boxed{\\frac{1}{2}", None),
        ("\\boxed{\\{1, 2\\}", None),
        ("\\boxed{\\boxed{7}", None),
        ("\\boxed{3 + \\boxed{7} ", None),
        ("\\boxed", None),
        ("put it into \\boxed{}", None),
        ("\\boxed{7} goes into \\boxed{ }", "7"),
        # a mention of the format is no box
        ("So \\boxed{7}. I was to put it in \\boxed{}.", "7"),
        ("\\boxed{7}, in the form \\boxed{...}", "7"),
        ("\\boxed{7}, in the form \\boxed{\\ldots} or \\fbox{…}", "7"),
        ("\\boxed{7} \\boxed{answer} \\boxed{\\text{your answer}} \\boxed{<final answer>} \\boxed{Answer here}", "7"),
        ("\\boxed{7} \\boxed{\\boxed{}} \\boxed{\\quad} \\boxed{\\;} \\boxed{?} \\boxed{\\_\\_}", "7"),
        ("\\boxed{7}, given in \\boxed format. Or in \\boxed.", "7"),
        ("In \\boxed{}: the answer is $7$", "7"),
        ("In \\boxed{}: so $7$.", "7"),
        ("\\boxed{7} and \\boxed{\\{\\}}", "\\{\\}"),
        ("\\boxed{7} and \\boxed{-1}", "-1"),
        ("\\boxed{7} and \\boxed{\\text{the answer is } 8}", "\\text{the answer is } 8"),
        ("\\boxed{answer}", None),
        ("\\boxed{} and then \\boxed{7", None),
        ("\\boxed{7} and then \\boxed", None),
        # questions that the model makes up
        ("So \\boxed{7}.\n\nQuestion: 5+6?\nPut the final answer in \\boxed{}.\nAnswer:", "7"),
        (" \\boxed{7}\nQuestion: 5+6?\nAnswer: \\boxed{11}", "7"),
        (" 7\n\nQuestion: 5+6?\nAnswer: 11", "7"),
        ("The answer is 7.\n\n  Question: 5+6?\nThe answer is 11.", "7"),
        ("\\boxed{7\n\nQuestion: 5+6?\nAnswer: \\boxed{11}", None),
        # the question repeated before it is answered
        ("Question: 3+4?\nAnswer: \\boxed{7}", "7"),
        ("Sure!\n\nQuestion: 3+4?\nIt is \\boxed{7}.\n\nQuestion: 5+6?\n\\boxed{11}", "7"),
        ("I repeat the question.\nQuestion: 3+4?\n\\boxed{7}", "7"),
        # an earlier box that isn't closed is no matter
        ("\\boxed{12 oh. \\boxed{7}", "7"),
        ("$\\boxed{12$ oh $\\boxed{7}$", "7"),
        # another command
        ("\\boxedfoo{7}", None),
        # behind "answer"
        ("The answer is 7", "7"),
        ("The answer is 7. Then $8$.", "7"),
        ("The answer is 7.5, because $8$", "7.5"),
        ("The answer is 7 because it fits", "7"),
        ("The final answer is: $\\frac57$. I hope", "\\frac57"),
        ("**Answer:** $7$", "7"),
        ("**Answer**: 7 cm", "7 cm"),
        ("Answer:\n\n\\[ x = 7 \\]", "x = 7"),
        ("Answer = \\(7\\)", "7"),
        ("the answer is thus $$7$$", "7"),
        ("The answers are $7$ and $-7$.", "7 , -7"),
        ("The answer is $7$, $8$, or $9$ of 10", "7 , 8 , 9"),
        ("The answer is 1. No, the answer is 2", "2"),
        ("Half of $26$.\n<answer>13</answer> $x$", "13"),
        ("<answer>\n$\\frac57$\n</answer>", "\\frac57"),
        ("The answer is $18.90", "$18.90"),
        ("Answer: B", "B"),
        ("The answer is \\[ 7", None),
        ("The answer is", None),
        # the last formula
        ("from $x=1$ follows $y=2$ at once", "y=2"),
        ("so \\[ x = 3 \\] holds", "x = 3"),
        ("so $$ x = 3 $$", "x = 3"),
        ("it costs $5 and $x=3$", "x=3"),
        ("it has $3$ parts for $5", "3"),
        ("it is \\$5 or \\(6\\)", "6"),
        ("so $1$ and \\[ x =", None),
        # a lone line
        ("\\frac57", "\\frac57"),
        ("7", "7"),
        ("C", "C"),
        ("first\nsecond", None),
        ("w" * 300, None),
        ("", None),
        (" \n ", None),
    ],
)
def test_finds_the_answer(text, answer):
    found, why = extract_answer(text)
    assert (found, bool(why)) == (answer, answer is None)


def test_a_root_without_braces_is_no_reason_to_take_the_number_before_it():
    assert math500_reward(None, ["the answer is $7\\sqrt(3)$"] * 2, answer=["7", "7\\sqrt{3}"]) == [0.0, 1.0]


BALANCED = st.recursive(
    st.text(alphabet="ab1 +\\$", max_size=5).map(lambda text: text.replace("\\", "\\{")),
    lambda inner: st.lists(inner, min_size=1, max_size=3).map(lambda parts: "{" + "".join(parts) + "}"),
    max_leaves=8,
)

CONTENTS = BALANCED.filter(lambda text: text.strip(" {}"))


@given(st.text(max_size=100), CONTENTS, st.text(max_size=100).filter(lambda text: "box" not in text))
def test_any_balanced_content_comes_back(before, content, after):
    before = before.replace("box", "")
    assert extract_answer(f"{before} \\boxed{{{content}}} {after}") == (content.strip(), "")


@given(st.text(max_size=100), st.text(alphabet="ab{1+", min_size=1, max_size=20))
def test_an_open_box_is_no_answer(before, content):
    assert extract_answer(f"{before} \\boxed{{1}} \\boxed{{{content}")[0] is None


MENTIONS = [
    "\\boxed{}",
    "\\boxed{ }",
    "\\boxed{...}",
    "\\boxed{\\dots}",
    "\\boxed{answer}",
    "\\boxed{\\text{your answer}}",
    "\\fbox{}",
]


@given(CONTENTS, st.lists(st.sampled_from(MENTIONS), min_size=1, max_size=4), st.text(max_size=30))
def test_mentions_of_the_format_take_nothing_from_the_answer(content, mentions, between):
    between = between.replace("box", "").replace("{", "")
    answer = extract_answer(f"\\boxed{{{content}}}")
    assert extract_answer(f"\\boxed{{{content}}} " + between.join(mentions)) == answer


@given(st.integers(0, 99), st.text(alphabet="ab1 $\\{}\n.", max_size=40), st.sampled_from(["\n", "\n\n", " \n \n  "]))
def test_a_made_up_question_takes_nothing_from_the_answer(number, text, gap):
    answered = f"so \\boxed{{{number}}}."
    assert extract_answer(f"{answered}{gap}Question: {text}\nAnswer: \\boxed{{{number + 1}}}") == (str(number), "")


@pytest.mark.parametrize(
    "piece",
    ["\\boxed{", "\\boxed{1}", "\\boxed", "\\boxed ", "\\", "{", "}", "$", "$ ", "\\(", "$$", "answer is ", "answer"]
    + ["\\fbox{{", "$1$ and ", " ", "answer: $1$, ", "\\{"]
    + ["\\boxed{}", "\\boxed{...}", "a\nQuestion: ", "\\boxed{\\boxed{}", "\\boxed form. "],
)
def test_hostile_text_costs_linear_time(piece):
    start = time.process_time()
    for lead in ("", "\\boxed{", "the answer is ", "$"):
        extract_answer(lead + piece * (100_000 // len(piece)))
    assert time.process_time() - start < 5
