r"""Laws of the comparison, against Python's fractions and SymPy's own LaTeX printer. In process, for speed."""

import contextlib
from fractions import Fraction

import pytest
import sympy
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from rewards.math.answer import read
from rewards.math.equal import equal
from rewards.math.kinds import Scalar
from rewards.math.tokens import Unreadable
from rewards.math500 import _plain, math500_reward

INTEGERS = st.integers(-(10**30), 10**30)
FRACTIONS = st.fractions(min_value=-(10**12), max_value=10**12, max_denominator=10**12)


def same(one: str, two: str) -> bool:
    return equal(read(one), read(two))


def value(text: str) -> sympy.Expr:
    answer = read(text)
    assert isinstance(answer, Scalar)
    return answer.value


def fraction(number: Fraction, form: int) -> str:
    """A fraction in one of several ways to write it."""
    top, bottom, sign = abs(number.numerator), number.denominator, "-" if number < 0 else ""
    return [
        f"{sign}\\frac{{{top}}}{{{bottom}}}",
        f"{sign}{top}/{bottom}",
        f"\\dfrac{{{sign}{top:,}}}{{{bottom}}}",
        f"\\frac{{{sign}{3 * top}}}{{{3 * bottom}}}",
        f"{sign}{top // bottom}\\frac{{{top % bottom}}}{{{bottom}}}"
        if top > bottom and top % bottom
        else f"{sign}{top}/{bottom}",
        f"{sign}{top} \\cdot {bottom}^{{-1}}",
    ][form]


@given(INTEGERS, INTEGERS)
@example(2**70, 2**70 + 1)
def test_integers_are_equal_exactly_when_they_are(one, two):
    assert same(str(one), f"{two:,}") == (one == two)
    assert same(f"{one:,}".replace(",", "{,}"), f"x = {two}") == (one == two)
    assert same(f"\\frac{{1}}{{{one}}}", f"\\frac{{1}}{{{two}}}") == (one == two) if one and two else True
    assert same(str(one), str(one + 1)) is False


@given(FRACTIONS, FRACTIONS, st.integers(0, 5), st.integers(0, 5))
def test_fractions_are_equal_exactly_when_they_are(one, two, first, second):
    assert same(fraction(one, first), fraction(one, second))
    assert same(fraction(one, first), fraction(two, second)) == (one == two)
    assert value(fraction(one, first)) == sympy.Rational(one.numerator, one.denominator)


@given(st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**9), max_value=10**9, places=12))
def test_a_decimal_is_the_fraction_it_writes(number):
    text, exact = f"{number:f}", Fraction(number)
    assert value(text) == sympy.Rational(exact.numerator, exact.denominator)
    assert not same(text, f"{number:f}1")


@given(st.integers(0, 999), st.integers(1, 10**6 - 1).filter(lambda n: n % 10))
def test_a_repeating_decimal(whole, period):
    digits = str(period)
    exact = whole + Fraction(period, 10 ** len(digits) - 1)
    assert value(f"{whole}.\\overline{{{digits}}}") == sympy.Rational(exact.numerator, exact.denominator)
    assert not same(f"{whole}.{digits * 5}", f"{whole}.\\overline{{{digits}}}")


@given(st.text(alphabet="0123456789-/. \\frac{}d", max_size=30))
@example("-\\frac{2}{3}")
@example("007")
def test_numbers_that_need_no_worker_are_read_as_a_worker_reads_them(text):
    plain = _plain(text)
    if plain is not None:
        assert value(text) == sympy.Rational(plain.numerator, plain.denominator)


# SymPy's expressions and its printer: an independent writer of LaTeX
X, Y = sympy.symbols("x y", real=True)
ATOMS = st.integers(-9, 9).map(sympy.Integer) | st.sampled_from([X, Y, sympy.pi, sympy.I, sympy.Rational(2, 3)])
EXPRESSIONS = st.recursive(
    ATOMS,
    lambda inner: (
        st.tuples(inner, inner).map(sum)
        | st.tuples(inner, inner).map(lambda pair: pair[0] * pair[1])
        | st.tuples(inner, inner.filter(lambda e: e != 0)).map(lambda pair: pair[0] / pair[1])
        | st.tuples(inner, st.integers(2, 4)).map(lambda pair: pair[0] ** pair[1])
        | inner.filter(lambda e: e.is_real).map(lambda e: sympy.sqrt(e**2 + 1))
        | inner.filter(lambda e: e.is_real).map(sympy.sin)
        | inner.filter(lambda e: e.is_real).map(sympy.Abs)
        | inner.filter(lambda e: e.is_real).map(sympy.exp)
    ),
    max_leaves=6,
)


def printable(expression: sympy.Expr) -> bool:
    return not expression.has(sympy.nan, sympy.zoo, sympy.oo)


@settings(deadline=None, max_examples=150)
@given(EXPRESSIONS.filter(printable))
def test_reads_what_sympy_prints(expression):
    text = sympy.latex(expression)
    try:
        found = value(text)
    except Unreadable as error:
        assert "large" in str(error)  # a bound, stated
        return
    point = {X: sympy.Rational(7, 5), Y: sympy.Rational(-3, 4)}
    assert abs(sympy.N((found - expression).subs(point), 20, maxn=300)) < 1e-15
    assert same(text, sympy.latex(expression, root_notation=False, mul_symbol="times"))
    assert not same(text, f"{text} + 1")
    assert not same(text, f"{text} + {{x}}")


@settings(deadline=None, max_examples=100)
@given(st.lists(st.integers(-9, 9), min_size=1, max_size=5), st.lists(st.integers(-9, 9), min_size=1, max_size=5))
def test_polynomials_are_equal_exactly_when_their_coefficients_are(one, two):
    first, second = (sympy.Poly(coefficients, X) for coefficients in (one, two))
    factored = sympy.latex(sympy.factor(second.as_expr()))
    assert same(sympy.latex(first.as_expr()), factored) == (first == second)


SCALARS = st.sampled_from(
    [
        "7",
        "-7",
        "0",
        "0.5",
        "\\frac{1}{2}",
        "50\\%",
        "\\sqrt{8}",
        "2\\sqrt2",
        "\\pi",
        "3.14",
        "90^\\circ",
        "7\\text{ cm}",
    ]
    + ["7\\text{ m}", "\\$7", "x+1", "1+x", "y+1", "x^2-1", "(x-1)(x+1)", "700\\%", "\\infty", "-\\infty", "2i", "i^2"]
    + ["0.\\overline{5}", "\\frac59", "1{,}000", "10^3", "e", "\\ln 2", "|x|", "\\sqrt{x^2}", "12_5", "12_6", "12", "A"]
)
NUMBERS = st.sampled_from(["-3", "0", "\\frac12", "0.5", "\\sqrt2", "2", "\\pi", "4"])


@st.composite
def kinds(draw):
    """An answer of one of the kinds that compare alike both ways round."""
    one, two, three = draw(SCALARS), draw(SCALARS), draw(SCALARS)
    low, high = draw(NUMBERS), draw(NUMBERS)
    return draw(
        st.sampled_from(
            [one, f"x = {low}", f"y = {high}", f"{one}, {two}", f"{two} \\text{{ or }} {one}", f"\\{{{one}, {two}\\}}"]
            + [
                f"({one}, {two})",
                f"({one}, {two}, {three})",
                f"[{low}, {high}]",
                f"({low}, {high}]",
                f"({low}, {high})",
            ]
            + [f"{low} < x \\le {high}", f"{low} < x < {high}", f"x > {low}", f"{low} < x", f"({low}, \\infty)"]
            + [
                f"x \\in [{low}, {high}]",
                f"(-\\infty, {low}) \\cup ({high}, \\infty)",
                f"\\mathbb{{R}} \\setminus [{low}, {high}]",
            ]
            + [
                f"{low} \\pm {high}",
                f"\\begin{{pmatrix}} {low} \\\\ {high} \\end{{pmatrix}}",
                f"{low}:{high}",
                f"x \\ne {low}",
            ]
            + [
                "\\text{Ida}",
                "ida",
                "\\text{(A)}",
                "B",
                "\\text{no}",
                "y = 2x + 1",
                "2y = 4x + 2",
                "y > x",
                "x < y",
                "\\{\\}",
            ]
        )
    )


@settings(deadline=None, max_examples=200)
@example("\\{7, 2i\\}", "[-3, -3]")
@example("0:0", "0:7")
@given(kinds(), kinds())
def test_symmetric_and_reflexive(one, two):
    with contextlib.suppress(Unreadable):
        assert same(one, one)
        assert same(one, two) == same(two, one)


@settings(deadline=None, max_examples=100)
@example("90^\\circ", "{{{}}}")
@given(
    kinds(), st.sampled_from(["\\left({}\\right)", "{{{}}}", "$ {} $", " {} . ", "\\displaystyle {}", "**{}**", "= {}"])
)
def test_dress_changes_nothing(answer, dress):
    assume(not answer.startswith(("[", "(")) and "," not in answer)
    try:
        expected = read(answer)
    except Unreadable:
        return
    assert equal(expected, read(dress.format(answer)))


ALPHABET = "0123456789 xyei+-*/^_(){}[]|!=<>,.;:'\\$%&\"\n"
PIECES = [
    "\\frac",
    "\\sqrt",
    "\\left",
    "\\right",
    "\\text{",
    "\\pm",
    "\\cup",
    "\\in",
    "\\le",
    "\\{",
    "\\}",
    "^\\circ",
    "\\%",
]
PIECES += [
    "\\begin{pmatrix}",
    "\\end{pmatrix}",
    "\\\\",
    "\\infty",
    "\\pi",
    "\\sin",
    "\\log",
    "\\binom",
    "\\overline",
    "or",
]
SOUP = st.lists(st.sampled_from(PIECES) | st.text(alphabet=ALPHABET, max_size=4), max_size=12).map("".join)


@settings(deadline=None, max_examples=400)
@given(st.text(max_size=60) | SOUP)
def test_any_text_is_read_or_refused(text):
    try:
        answer = read(text)
    except Unreadable as error:
        assert str(error)
    else:
        hash(answer)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.text(max_size=60) | SOUP | SOUP.map(lambda text: f"\\boxed{{{text}}}"), min_size=1, max_size=8), SOUP
)
def test_any_text_gets_a_score(texts, gold):
    scores = math500_reward(None, texts, answer=["3"] * len(texts))
    assert set(scores) <= {0.0, 1.0}
    scores = math500_reward(None, [*texts, "\\boxed{3}"], answer=[gold] * (len(texts) + 1))
    assert set(scores) <= {0.0, 1.0} or scores == [None] * (len(texts) + 1)


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("\\frac{1}{2^{60}}", "\\frac{1}{2^{61}}"),
        ("10^{80}", "10^{80} + 1"),
        ("\\frac{\\pi}{10^{40}}", "\\frac{\\pi}{10^{41}}"),
    ]
    + [("\\sqrt{2} + 10^{-60}", "\\sqrt{2}"), ("x + 10^{-60}", "x"), ("10^{-60} x", "10^{-61} x"), ("0", "10^{-500}")]
    + [("\\pi", "\\pi + \\pi^{-200}"), ("e^{\\pi \\sqrt{163}}", "262537412640768744"), ("\\cos 10^{-9}", "1")],
)
def test_nothing_is_too_small_or_too_large_to_tell_apart(one, two):
    assert not same(one, two) and not same(two, one)
    assert same(one, one) and same(two, two)
