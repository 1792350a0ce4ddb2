r"""What counts as the same answer: one line for each choice that the reward's docstring states, with own numbers."""

import json

import pytest

from rewards.math500 import check_gold, math500_reward

# gold, an answer, whether they are the same
SAME = r"""
\frac{3}{8} ~ \dfrac{3}{8} ~ \tfrac38 ~ \frac{6}{16} ~ 3/8 ~ .375 ~ 0.3750 ~ {3 \over 8} ~ \left(\frac{3}{8}\right)
\frac{3}{8} ~ $\frac{3}{8}$. ~ \(3/8\)
-\frac{3}{8} ~ \frac{-3}{8} ~ \frac{3}{-8} ~ -0.375 ~ - \frac38 ~ −3/8
\frac{17}{6} ~ 2\frac56 ~ 2 \frac{5}{6} ~ 2 5/6 ~ 2.8\overline{3} ~ 2\tfrac{5}{6}
-\frac{17}{6} ~ -2\frac{5}{6}
41 ~ x = 41 ~ 41. ~ 41, ~ {41} ~ 041 ~ 41.0 ~ +41 ~ \text{41} ~ \mathbf{41} ~ **41** ~ 40 + 1 = 41 ~ n = 40+1 = 41
41 ~ 41 = n ~ -(-41)
41 ~ a + b = 41 ~ \angle PQR = 41^\circ ~ \text{Area} = 41 ~ 41\text{ marbles} ~ 41 marbles ~ 41\quad
41 ~ \textcolor{blue}{41} ~ \approx 41
120 ~ 5! ~ 2^3 \cdot 15 ~ 12 \times 10 ~ 12(10) ~ \binom{10}{3} ~ 1.2e2 ~ 1.2\times10^2 ~ 1.2 \cdot 10^{2}
1024 ~ 2^{10} ~ 2^10 ~ 1,024 ~ 1{,}024 ~ 1\,024 ~ 1,\!024 ~ 1 024 ~ 1.024 \times 10^3
\sqrt{75} ~ 5\sqrt3 ~ 5 sqrt(3) ~ 5\sqrt{3} ~ 75^{1/2} ~ \frac{15}{\sqrt{3}} ~ 5√3 ~ √75 ~ \frac{1}{2}√300
\frac{7}{8} ~ \ 0.875\  ~ ⅞
\frac{12}{5} ~ 2⅖
\sqrt{11+6\sqrt2} ~ 3+\sqrt{2} ~ \sqrt2 + 3
-3 ~ \sqrt[3]{-27} ~ -\sqrt[3]{27}
\frac{2}{\pi} ~ 2/\pi ~ 2\pi^{-1} ~ 2 / pi
7-2i ~ -2i+7 ~ 7 - 2 \mathrm{i} ~ 7 + 2i^3
2e^{i\pi/6} ~ \sqrt{3} + i ~ 2(\cos 30^\circ + i \sin 30^\circ)
\infty ~ +\infty ~ ∞
65^\circ ~ 65 ~ 65° ~ 65 \text{ degrees} ~ 65 degrees ~ 65^{\circ}
12\text{ cm}^2 ~ 12 ~ 12\,\mathrm{cm}^2 ~ 12 \text{ square centimeters} ~ 12 cm^2 ~ 12\mbox{ square units}
\$7.50 ~ 7.5 ~ 7.50 \text{ dollars} ~ $7.50 ~ \$ 7.5
60 \text{ km/h} ~ 60 ~ 60 \text{ km per hour} ~ 60 km/h
3 \text{ million} ~ 3,000,000 ~ 3 \times 10^6
35\% ~ 35 ~ 0.35 ~ \frac{7}{20} ~ 35 \text{ percent} ~ 35 percent ~ 35\%.
0.35 ~ 35\%
413_6 ~ 413 ~ 413_{6} ~ 0413_6 ~ (413)_6
x^2-9 ~ (x-3)(x+3) ~ -9+x^2 ~ f(x) = x^2-9 ~ x^2 - 3^2
3n+3 ~ 3(n+1) ~ S_n = 3n+3 ~ 3(1+n)
\frac{x^2-4}{x-2} ~ x+2
\tan x ~ \frac{\sin x}{\cos x} ~ \frac{1}{\cot(x)}
\ln(x^2) ~ 2 \ln x
\log_5 125 ~ 3 ~ \log 1000
|y| ~ \sqrt{y^2} ~ |-y|
\sqrt{ab} ~ \sqrt{a} \sqrt{b} ~ (ab)^{1/2}
(-\infty, 2) \cup (2, \infty) ~ x \ne 2 ~ x \in \mathbb{R}, x \ne 2
2^{n+2} ~ 4 \cdot 2^n
\frac{k(k-1)}{2} ~ \binom{k}{2}
y = 3x - 1 ~ 3x - y = 1 ~ y + 1 = 3x ~ 2y = 6x - 2 ~ y=-1+3x
xy = 6 ~ y = \frac{6}{x}
x = 6 ~ 6 ~ 6 = x
4, -9 ~ -9, 4 ~ x = 4, x = -9 ~ 4 \text{ and } -9 ~ -9 or 4 ~ \{4, -9\} ~ x \in \{-9, 4\}
3 \pm \sqrt{7} ~ 3+\sqrt7, 3-\sqrt7 ~ x = 3 \pm \sqrt7 ~ \frac{6 \pm \sqrt{28}}{2}
\{2 \pm i, 5\} ~ 5, 2-i, 2+i
(2, 9) ~ (x, y) = (2, 9) ~ x = 2, y = 9 ~ y = 9, x = 2 ~ \left( 2,\; 9 \right) ~ \langle 2, 9 \rangle
(2, 9) ~ \begin{pmatrix} 2 \\ 9 \end{pmatrix}
(2, 9, 4) ~ 2, 9, 4 ~ \begin{pmatrix} 2 & 9 & 4 \end{pmatrix}
(1, 2), (3, 4) ~ (3, 4), (1, 2) ~ \{(1,2), (3,4)\}
(2, 9] ~ 2 < x \le 9 ~ 9 \ge t > 2 ~ x \in (2, 9] ~ \left(\frac{4}{2}, 9\right]
(2, 9) ~ 2 < x < 9
x \ge 6 ~ [6, \infty) ~ 6 \le x
(-\infty, 1) \cup (4, \infty) ~ (4,\infty) \cup (-\infty,1) ~ x < 1 \text{ or } x > 4 ~ \mathbb{R} \setminus [1, 4]
(0, 5) \cup (5, 8) ~ (0, 8) \setminus \{5\} ~ 0<x<8 \text{ and } x \ne 5
\mathbb{R} ~ (-\infty, \infty) ~ \text{all real numbers}
\emptyset ~ \{\} ~ \varnothing
\begin{pmatrix} 2 & 0 \\ 1 & 4 \end{pmatrix} ~ \begin{bmatrix} 2 & 0 \\ 1 & 4 \end{bmatrix}
\begin{pmatrix} 2 & 0 \\ 1 & 4 \end{pmatrix} ~ 2\begin{pmatrix} 1 & 0 \\ 1/2 & 2 \end{pmatrix}
\begin{pmatrix} 2 & 0 \\ 1 & 4 \end{pmatrix} ~ \left[\begin{array}{cc} 2 & 0 \\[2pt] 1 & 4 \end{array}\right]
3:5 ~ 6:10 ~ \frac35 ~ 0.6
3:10 ~ 0.3 ~ \frac{3}{10} ~ 30:100
7:15 ~ 07:15 ~ 7:15 \text{ a.m.} ~ 7:15 a.m. ~ 7:15 PM ~ t = 7:15
7:00 \text{ p.m.} ~ 7:00 ~ 7\text{ p.m.} ~ 7:00 pm ~ 7:00\text{ PM}
8 - 3i ~ 8.0 + -3.0i ~ 8.0+-3.0i ~ 8 + -3i ~ 8 + - 3i
11 ~ 8 - -3 ~ 14 + -3 ~ 14 + (-3)
g(t) = 4t ~ g(t) = 4t \text{ for all } t ~ g(t) = 4t \text{ for all real numbers } t.
g(t) = 4t ~ g(t) = 4t, \quad \forall t \in \mathbb{R}
g(t) = 4t ~ g(t) = 4t for all t ~ g(t)=4t \text{ for every real } t ~ g(t)=4t \quad (\text{for all } t \in \mathbb{R})
m = 5k ~ m = 5k \text{ for all integers } k
\text{Otto} ~ otto ~ \text{otto} ~ Otto. ~ \mathrm{Otto} ~ \textbf{Otto}
\text{no solution} ~ No solution
\text{(D)} ~ D ~ (D) ~ \textbf{D} ~ \text{D.}
D ~ \text{(D)}
17 ~ \textbf{(D) } 17
"""

DIFFERENT = r"""
\frac{1}{7} ~ 0.142857 ~ 0.14285714285714285714285714285714285714 ~ \frac{1}{7.0000001} ~ 7 ~ 1 ~ \frac{7}{1}
\frac{1}{7} ~ 0.142857\ldots
\frac{17}{6} ~ 2 \cdot \frac56 ~ 2(\frac56) ~ 2.83
41 ~ 41 \text{ or } 42 ~ 41, 42 ~ x=41, y=42 ~ 41i ~ -41 ~ 4 1 ~ 41\text{ or more} ~ 41 \text{ million} ~ 41x ~ 14
41 ~ 41_{10} + 1 ~ \text{forty-one} ~ 41! ~ 41? ~ 41 \pm 1
-41 ~ --41 ~ 41 ~ +-41 ~ 1-41
1234 ~ 1.234 ~ 1, 234 ~ 12,34 ~ 1\,23\,4
\frac{1}{2^{70}} ~ \frac{1}{2^{71}} ~ 0
\frac{x}{2^{70}} ~ \frac{x}{2^{71}} ~ 0
10^{90} ~ 10^{90}+1 ~ 10^{91}
\sqrt{3} ~ \sqrt{3} + 10^{-200} ~ 1.7320508075688772935274463415058723669428
\pi ~ 3.14159265358979323846 ~ \frac{355}{113} ~ 3.14 \approx \pi
6\sqrt{2} ~ 6 ~ 2 ~ \sqrt{2} ~ 6+\sqrt{2} ~ 62
1 - \frac{2}{\mathrm{e}} ~ 1 + \frac{2}{\mathrm{e}} ~ 1
12\text{ cm}^2 ~ 12 \text{ cm} ~ 12 \text{ m}^2 ~ 0.0012 \text{ m}^2
7.5 \text{ cents} ~ 7.5 \text{ dollars} ~ \$7.5
60^\circ ~ \frac{\pi}{3} ~ 60 \text{ radians}
35\% ~ 0.35\% ~ 3.5 ~ 350
4 ~ 400\% ~ 0.04
400\% ~ 4
413_6 ~ 413_7 ~ 153 ~ 413_{60} ~ 314_6 ~ 153_{10}
x^2-9 ~ x^2+9 ~ y^2-9 ~ X^2-9 ~ x^2 ~ 9 ~ (x-3)^2 ~ x=3 ~ x^2-9=0
6abc ~ 6
2g/h ~ 2
\ln x ~ \log x
y ~ \sqrt{y^2}
0 ~ \lfloor \frac{1}{x^2 + 1} \rfloor ~ \sin(\pi n) ~ x^{99}
1 ~ \frac{|x|}{x}
y = 3x - 1 ~ 3x - 1 ~ y = 3x + 1 ~ x = 3y - 1 ~ y > 3x - 1 ~ 3x = 1 ~ 0 = 0 ~ (y - 3x + 1)(x - 2) = 0
x = 6 ~ y = 6 ~ 2x = 12 ~ x > 6
0 ~ 3x + y = 0 ~ 10^{-30} ~ \emptyset
4, -9 ~ 4 ~ -9 ~ 4, 9 ~ 4, -9, 4 ~ (4, -9) ~ 4 - 9
3 \pm \sqrt{7} ~ 3+\sqrt{7} ~ 3 \mp \sqrt{5} ~ \pm \sqrt{7}
(2, 9) ~ (9, 2) ~ 2, 9 ~ \{2, 9\} ~ [2, 9] ~ x = 9, y = 2 ~ 2 \le x < 9 ~ 29 ~ (2, 9, 0)
(2, 9] ~ (2, 9) ~ [2, 9] ~ [2, 9) ~ 2 \le x \le 9 ~ x > 2 ~ 9
x \ge 6 ~ x > 6 ~ x \le 6 ~ y \ge 2x ~ 6
y \le x ~ y \ge x ~ y < x ~ x \le y
(-\infty, 1) \cup (4, \infty) ~ (-\infty, 1] \cup (4, \infty) ~ (-\infty, 1) \cap (4, \infty) ~ (1, 4) ~ 1 < x < 4
\begin{pmatrix} 2 \\ 9 \end{pmatrix} ~ \begin{pmatrix} 2 & 9 \end{pmatrix} ~ \begin{pmatrix} 9 \\ 2 \end{pmatrix}
\begin{pmatrix} 2 & 0 \\ 1 & 4 \end{pmatrix} ~ \begin{pmatrix} 2 & 1 \\ 0 & 4 \end{pmatrix}
\begin{pmatrix} 2 & 0 \\ 1 & 4 \end{pmatrix} ~ \begin{vmatrix} 2 & 0 \\ 1 & 4 \end{vmatrix} ~ 8 ~ (2, 0, 1, 4)
3:5 ~ 5:3 ~ 3:5:7
7:15 \text{ a.m.} ~ 7:15 \text{ p.m.}
7:15 ~ 14:30 ~ 7:51 ~ 15:7 ~ 7 ~ \frac{7}{15} + 1 ~ 7:15:00
12:00 ~ 1:00 ~ 3:00 ~ 12 ~ 12:30 ~ 00:12
2:00 \text{ p.m.} ~ 3:00 \text{ p.m.} ~ 2:00 \text{ a.m.} ~ 2 ~ 2\text{ a.m.}
1:02 ~ 1:2 ~ 2:4
1:0 ~ 2:0
8 - 3i ~ 8 + 3i ~ 8 + - - 3i ~ -8.0+-3.0i
5 ~ 8 +- 3 ~ --5 ~ 8 + --3 ~ - -5
g(t) = 4t ~ g(t) = 5t \text{ for all } t ~ g(t) = 4t \text{ for all } t > 0 ~ g(t) = 4t \text{ for all even } t
g(t) = 4t ~ g(t) = 4t \text{ for all positive } t ~ \text{for all } t
5 ~ m = 5k ~ m = 5k \text{ for all } k
\text{listen} ~ silent ~ \text{enlist} ~ \text{listen to} ~ l
\text{Otto} ~ \text{Ott} ~ \text{Toto} ~ 0
\text{(D)} ~ C ~ \text{(C)} ~ \text{(D) or (C)} ~ A, B, C, D
D ~ d ~ C
"""


def pairs(table):
    for line in table.strip().splitlines():
        gold, *answers = line.split(" ~ ")
        yield from ((gold, answer) for answer in answers)


def scores(cases):
    reasons = []
    golds = [gold for gold, _ in cases]
    texts = [f"First \\boxed{{-1}}. So, at last, $\\boxed{{{answer}}}$." for _, answer in cases]
    return math500_reward(None, texts, answer=golds, log_extra=lambda _, row: reasons.extend(row)), reasons


@pytest.mark.parametrize(("table", "score"), [(SAME, 1.0), (DIFFERENT, 0.0)])
def test_every_choice(table, score):
    cases = list(pairs(table))
    found, reasons = scores(cases)
    assert [(*case, reason) for case, got, reason in zip(cases, found, reasons, strict=True) if got != score] == []


def test_the_same_the_other_way_round():
    # only a completion may name the expression it gives, so an equation for an expression is left out here
    named = {"f(x) = x^2-9", "S_n = 3n+3", "a + b = 41"}
    cases = [(answer, gold) for gold, answer in pairs(SAME) if answer not in named]
    found, reasons = scores(cases)
    assert [(*case, reason) for case, got, reason in zip(cases, found, reasons, strict=True) if got != 1.0] == []
    cases = [(answer, gold) for gold, answer in pairs(DIFFERENT) if gold not in ("y = 3x - 1", "0")]
    assert not any(scores(cases)[0])


@pytest.mark.parametrize(
    "gold",
    ["Rosa walks to the mill and Ben rides home again", "", "  ", "\\boxed{5", "\\frac{1}{0}", "x^{", "\\ldots", "$$"]
    + [
        None,
        True,
        float("nan"),
        ["5"],
        {"a": 5},
        b"5",
        "\\begin{cases} 1 \\end{cases}",
    ]
    + ["\\text{It can be seen that there are none}", "(1, 2", "5 5", "__import__('os')"],
)
def test_an_unusable_reference_is_named_and_not_scored(gold):
    assert check_gold([gold, "5"])[0] and check_gold([gold, "5"])[1] is None
    reasons = []
    completions = ["\\boxed{5}", "\\boxed{1}", "no box\nat all", f"\\boxed{{{gold}}}"]
    scores = math500_reward(None, completions, answer=[gold] * 4, log_extra=lambda _, row: reasons.extend(row))
    assert scores == [None] * 4
    assert all(reason.startswith("not scored: the reference") for reason in reasons)


@pytest.mark.parametrize(
    "gold", ["9^{9^{9}}", "2^{2^{2^{2^{2^2}}}}", "1001!", "\\binom{5000}{2}", "7 \\cdot 10^{10^{10}}"]
)
def test_a_reference_past_the_bounds_is_right_as_its_own_text_only(gold):
    reasons = []
    spaced = gold.replace("{9}", "9").replace("{2^2}", "{ {2^2} }")
    texts = [f"\\boxed{{{gold}}}", f"the answer is ${spaced}$", "\\boxed{8}", "\\boxed{9^{9^{8}}}", "a\nb"]
    scores = math500_reward(None, texts, answer=[gold] * 5, log_extra=lambda _, row: reasons.extend(row))
    assert scores == [1.0, 1.0, None, None, 0.0]
    assert all(reason.startswith("not scored: the reference is compared with its own text") for reason in reasons[2:4])
    assert check_gold([gold]) == [None]


def test_a_long_reference_is_named_and_right_as_its_own_text_only():
    gold = "9" * 3000
    assert math500_reward(None, [f"\\boxed{{{gold}}}", "\\boxed{9}", "9" * 3001], answer=[gold] * 3) == [
        1.0,
        None,
        None,
    ]
    assert "too long" in check_gold([gold])[0]


CONTROLS = [
    json.loads(f'"{text}"') for text in ("\\frac{3}{4}", "\\theta", "\\text{Evelyn}", "\\rho", "\\nu", "\\binom{4}{2}")
]
CONTROLS += [
    json.loads(f'"{text}"') for text in ("2\\times 3", "x \\neq 3", "\\boxed{7}", "\\right)", "\\beta + 1", "1\\not= 2")
]


@pytest.mark.parametrize("gold", [*CONTROLS, "So it is \\boxed{" + CONTROLS[0] + "}.", "\x003", "3\x1b[0m", "\x7f"])
def test_a_reference_that_lost_its_backslashes_is_named(gold):
    """LaTeX written with one backslash in JSON: what is left is a control character and the rest of the command."""
    assert "control character" in check_gold([gold])[0]
    reasons = []
    texts = ["\\boxed{\\frac{3}{4}}", "\\boxed{12rac}", f"\\boxed{{{gold}}}"]
    scores = math500_reward(None, texts, answer=[gold] * 3, log_extra=lambda _, row: reasons.extend(row))
    assert scores == [None] * 3 and all("control character" in reason for reason in reasons)


@pytest.mark.parametrize(
    "gold", ["3\n", "\n3", "\\begin{pmatrix}\n1\\\\\n2\n\\end{pmatrix}", "3\t", "x\r\n+ 1", "So\nit is\n\\boxed{3}\n"]
)
def test_line_ends_in_a_reference_are_no_damage(gold):
    assert check_gold([gold]) == [None]


@pytest.mark.parametrize(
    "gold", [5, 5.0, "5", " 5 ", "$5$", "\\(5\\)", "\\boxed{5}", "So $x=5$, that is $\\boxed{x = 5}$."]
)
def test_a_reference_is_text_a_number_or_a_whole_solution(gold):
    assert check_gold([gold]) == [None]
    assert math500_reward(None, ["\\boxed{5}", "\\boxed{6}"], answer=[gold] * 2) == [1.0, 0.0]


@pytest.mark.parametrize(
    "gold", ["\\text{Rosa}", "Rosa", "\\text{no real roots}", "does not exist", "\\text{(B)}", "odd"]
)
def test_short_text_is_a_reference(gold):
    assert check_gold([gold]) == [None]


def test_says_why():
    reasons = []
    texts = [
        "\\boxed{5}",
        "\\boxed{6}",
        "\\boxed{5",
        "a\nb",
        "\\boxed{}",
        "\\boxed{\\foo}",
        "\\boxed{" + "5" * 2001 + "}",
    ]
    math500_reward(None, texts, answer=["5"] * 7, log_extra=lambda _, row: reasons.extend(row))
    assert [reason.split(":")[0] for reason in reasons] == ["correct", "wrong", *["no answer"] * 3, "wrong", "wrong"]
    assert "cut off" in reasons[2] and "empty" in reasons[4] and "\\foo" in reasons[5] and "2000" in reasons[6]


def test_takes_what_trl_passes():
    chat = [{"role": "assistant", "content": "\\boxed{5}"}]
    assert math500_reward(
        prompts=["q"],
        completions=[chat],
        completion_ids=[[1]],
        answer=["5"],
        trainer_state=None,
        log_metric=print,
        level=[3],
    ) == [1.0]
    assert math500_reward([], [], answer=[]) == []
    with pytest.raises(ValueError):
        math500_reward(None, ["5"], answer=["5", "6"])
    with pytest.raises(TypeError):
        math500_reward(None, [None], answer=["5"])
