r"""LaTeX, or what a model writes for it, as a list of tokens. Whatever is not known here is refused, never guessed.

Layout commands go, synonyms become one spelling, Unicode signs become their LaTeX. A number is one token. Thousands may
be separated by `,` `{,}` `\,` `\!` `,\!`, or a blank between groups of exactly three digits, but by a bare comma only
outside brackets: 10,080 is a number, (10,080) has two entries.
"""

import re
from fractions import Fraction
from typing import NamedTuple

LONGEST_NUMBER = 1000  # characters
LARGEST_EXPONENT = 3000  # of the e-notation, 1.5e3

FUNCTIONS = frozenset(
    "sin cos tan cot sec csc arcsin arccos arctan arccot arcsec arccsc sinh cosh tanh coth arcsinh arccosh arctanh "
    "log ln lg exp min max gcd lcm sqrt abs floor ceil".split()
)
GREEK = frozenset(
    "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi rho varrho sigma "
    "tau upsilon phi varphi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega ell".split()
)


class Unreadable(ValueError):
    """Not mathematics, or mathematics outside what is read; the message says which, in a few words."""


class TooLarge(Unreadable):
    """Mathematics past the bounds, which is no answer of an ordinary problem but may be one's reference."""


class Token(NamedTuple):
    """One token: kind is one of num, word, text, fn, greek, const, op, frac, set, env, percent, degree, money."""

    kind: str
    text: str
    value: Fraction | None = None


_UNICODE = str.maketrans(
    {
        **{"−": "-", "–": "-", "—": "-", "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "∗": "*", "÷": r"\div "},
        **{"≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "≈": r"\approx ", "±": r"\pm ", "∓": r"\mp ", "∞": r"\infty "},
        **{"π": r"\pi ", "θ": r"\theta ", "α": r"\alpha ", "β": r"\beta ", "γ": r"\gamma ", "λ": r"\lambda "},
        **{"μ": r"\mu ", "σ": r"\sigma ", "φ": r"\phi ", "ω": r"\omega ", "√": r"\sqrt ", "∪": r"\cup ", "∩": r"\cap "},
        **{"∈": r"\in ", "∅": r"\emptyset ", "ℝ": r"\mathbb{R}", "ℤ": r"\mathbb{Z}", "°": r"^\circ ", "′": "'"},
        **{"⟨": "\\langle ", "⟩": "\\rangle ", "％": "%", "＝": "=", "，": ",", "（": "(", "）": ")"},
        **{"¼": r"\frac{1}{4}", "½": r"\frac{1}{2}", "¾": r"\frac{3}{4}", "⅓": r"\frac{1}{3}", "⅔": r"\frac{2}{3}"},
        **{"⅛": r"\frac{1}{8}", "⅜": r"\frac{3}{8}", "⅝": r"\frac{5}{8}", "⅞": r"\frac{7}{8}", "⅙": r"\frac{1}{6}"},
        **{"⅕": r"\frac{1}{5}", "⅖": r"\frac{2}{5}", "⅗": r"\frac{3}{5}", "⅘": r"\frac{4}{5}", "⅚": r"\frac{5}{6}"},
        **{"²": "^{2}", "³": "^{3}", "⁴": "^{4}", "\u00a0": " ", "\u2009": " ", "\u202f": " ", "\u200b": ""},
    }
)

_SYNONYMS = {
    **dict.fromkeys(["dfrac", "tfrac", "cfrac", "frac"], "frac"),
    **dict.fromkeys(["binom", "dbinom", "tbinom"], "binom"),
    **dict.fromkeys(["le", "leq", "leqslant"], "<="),
    **dict.fromkeys(["ge", "geq", "geqslant"], ">="),
    **dict.fromkeys(["ne", "neq"], "!="),
    **dict.fromkeys(["approx", "simeq", "thickapprox"], "~"),
    **dict.fromkeys(["cdot", "times", "ast"], "*"),
    **dict.fromkeys(["lvert", "rvert", "vert", "mid"], "|"),
    **{"lt": "<", "gt": ">", "div": "/", "lbrace": "\\{", "rbrace": "\\}", "lbrack": "[", "rbrack": "]"},
    **{"pm": "+-", "mp": "-+", "in": "in", "cup": "cup", "cap": "cap", "setminus": "minus", "backslash": "minus"},
    **{"lfloor": "floor(", "rfloor": "floor)", "lceil": "ceil(", "rceil": "ceil)", "langle": "<(", "rangle": ")>"},
    **{"over": "over", "choose": "choose", "overline": "overline", "bar": "overline", "vec": "overline"},
    **dict.fromkeys(["angle", "triangle", "measuredangle"], "mark"),
    "prime": "'",
}
_LAYOUT = frozenset(
    "left right middle big Big bigg Bigg bigl bigr Bigl Bigr biggl biggr Biggl Biggr displaystyle textstyle limits "
    "nolimits mathstrut strut bf rm it bfseries quad qquad thinspace enspace hfill left. right. "
    "therefore mathopen mathclose mathrel mathbin boldmath scriptstyle".split()
)
_TEXT = frozenset(
    "text textbf textit textrm textsf texttt textnormal textup mbox hbox mathrm mathbf mathit mathsf mathtt mathcal "
    "operatorname boldsymbol bm emph underline mathnormal".split()
)
_SETS = {"R": "Reals", "Z": "Integers", "N": "Naturals", "Q": "Rationals", "C": "Complexes"}
_PLAIN_WORDS = {
    **dict.fromkeys(["pi"], ("const", "pi")),
    **dict.fromkeys(["infty", "infinity", "inf", "oo"], ("const", "infty")),
    **{name: ("fn", name) for name in FUNCTIONS},
    **{name: ("op", name) for name in ("or", "and")},
    **dict.fromkeys(["percent", "percentage", "pct"], ("percent", "%")),
    **dict.fromkeys(["degrees", "degree"], ("degree", "deg")),
    **{name: ("greek", name) for name in ("alpha", "beta", "gamma", "theta", "lambda", "sigma", "omega")},
}

_GROUPS = r"[1-9]\d{0,2}(?:%s\d{3})+(?![\d])"
_SEPARATED = _GROUPS % r"(?:,?\\[,!;: ]\s?|\{,\}(?:\\!)?\s?|,?~)"
_BLANKS = _GROUPS % r" "
_COMMAS = _GROUPS % r","
_TAIL = r"(?:\.\d+)?"
_NUMBER = r"(?:\d+(?:\.\d+)?|\.\d+)(?:[eE][+-]?\d{1,6}(?![\dA-Za-z]))?"
_REPEATING = r"(?P<whole>\d*)\.(?P<head>\d*)\\(?:overline|bar)\s?\{(?P<period>\d{1,60})\}"
_SCAN = (
    rf"(?P<repeating>{_REPEATING})|(?P<grouped>(?:{_SEPARATED}|{_BLANKS}@COMMAS){_TAIL})|(?P<number>{_NUMBER})"
    r"|(?P<degree>\^\s?(?:\{\s?\\(?:circ|degree)\s?\}|\\(?:circ|degree)(?![A-Za-z]))|\\degree(?![A-Za-z]))"
    r"|(?P<space>\s+|\\(?:[\s,;:!>]|\Z)|~|&nbsp;)"
    r"|(?P<command>\\[A-Za-z]+)|(?P<word>[A-Za-z]+)|(?P<row>\\\\(?:\[[^\]]{0,20}\])?)|(?P<escaped>\\[{}%$|#&_])"
    r"|(?P<op><=|>=|!=|\*\*|[-+*/^_(){}\[\]|!=<>,.;:'&])|(?P<percent>%)|(?P<money>[$€£¥₹¢])"
)
_ROOT = re.compile(r"√ ?(\d+(?:\.\d+)?)")  # the sign reaches over a whole number, as \sqrt does not
CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
# "5 +- 2" may mean a plus-minus; but "14.0+-1.0i" is how programs print 14 - i
_TWO_SIGNS = re.compile(r"[-+][-+](?!\d+(?:\.\d+)?[ *]?i(?![A-Za-z]))")
_OUTSIDE = re.compile(_SCAN.replace("@COMMAS", f"|{_COMMAS}"))
_INSIDE = re.compile(_SCAN.replace("@COMMAS", ""))


def tokenize(text: str) -> list[Token]:
    """The tokens of a formula.

    Raises:
        Unreadable: a character or command that isn't known, or a number that is too long.
    """
    if CONTROL.search(text):
        raise Unreadable("a control character")
    text = _ROOT.sub(r"\\sqrt{\1}", text).translate(_UNICODE).strip()
    if _TWO_SIGNS.search(text):
        raise Unreadable("two signs side by side")
    tokens: list[Token] = []
    position = depth = 0
    while position < len(text):
        match = (_INSIDE if depth > 0 else _OUTSIDE).match(text, position)
        if match is None:
            raise Unreadable(f"the character {text[position]!r}")
        kind, piece, position = str(match.lastgroup), match[0], match.end()
        if kind in ("repeating", "grouped", "number"):
            tokens.append(_number(match))
        elif kind == "command":
            position = _command(text, piece[1:], position, tokens)
        elif kind == "word":
            tokens.append(Token(*_PLAIN_WORDS.get(piece, ("word", piece))))
        elif kind == "escaped":
            sign = {"\\%": ("percent", "%"), "\\$": ("money", "$"), "\\|": ("op", "norm")}
            tokens.append(Token(*sign.get(piece, ("op", piece))))
        elif kind != "space":
            name = {"row": "\\\\", "degree": "deg", "percent": "%"}.get(kind, "^" if piece == "**" else piece)
            tokens.append(Token("op" if kind == "row" else kind, name))
        if tokens and tokens[-1].kind == "op" and kind != "space":
            depth += (tokens[-1].text in ("(", "[", "\\{", "<(")) - (tokens[-1].text in (")", "]", "\\}", ")>"))
    return tokens


def _number(match: re.Match[str]) -> Token:
    piece = match[0]
    if len(piece) > LONGEST_NUMBER:
        raise TooLarge("a number that is too long")
    if match["repeating"]:
        head, period = match["head"], match["period"]
        scale = 10 ** len(head)
        value = Fraction(int((match["whole"] or "0") + head), scale)
        return Token("num", piece, value + Fraction(int(period), scale * (10 ** len(period) - 1)))
    digits = re.sub(r"[^\d.]", "", piece) if match["grouped"] else piece
    mantissa, _, exponent = digits.replace("E", "e").partition("e")
    if abs(int(exponent or 0)) > LARGEST_EXPONENT:
        raise TooLarge("a number that is too large")
    return Token("num", digits, Fraction(mantissa) * Fraction(10) ** int(exponent or 0))


def _argument(text: str, position: int) -> tuple[str, int]:
    """The braced argument that starts at `position`, and where it ends."""
    while text[position : position + 1] == " ":
        position += 1
    if text[position : position + 1] != "{":
        raise Unreadable("a command without its braces")
    depth = 0
    for match in re.compile(r"\\.|[{}]", re.DOTALL).finditer(text, position):
        depth += (match[0] == "{") - (match[0] == "}")
        if depth == 0:
            return text[position + 1 : match.start()], match.end()
    raise Unreadable("a brace that isn't closed")


def _command(text: str, name: str, position: int, tokens: list[Token]) -> int:
    r"""Appends what `\name` stands for; returns where reading goes on."""
    if name in _LAYOUT:
        if name in ("left", "right") and text.startswith(".", position):
            position += 1
    elif name in _TEXT:
        content, position = _argument(text, position)
        tokens.extend(_text(content, upright=name.startswith("math") or name in ("operatorname", "boldsymbol", "bm")))
    elif name in _SYNONYMS:
        word = _SYNONYMS[name]
        tokens.append(Token("frac" if word in ("frac", "binom") else "op", word))
    elif name in FUNCTIONS:
        tokens.append(Token("fn", name))
    elif name in GREEK:
        tokens.append(Token("greek", name))
    elif name in ("pi", "infty"):
        tokens.append(Token("const", name))
    elif name in ("imath", "jmath"):
        tokens.append(Token("const", "i"))
    elif name == "mathbb":
        content, position = _argument(text, position)
        if content.strip() not in _SETS:
            raise Unreadable(f"\\mathbb{{{content[:20]}}}")
        tokens.append(Token("set", _SETS[content.strip()]))
    elif name in ("emptyset", "varnothing"):
        tokens.append(Token("set", "Empty"))
    elif name in ("begin", "end"):
        content, position = _argument(text, position)
        if content == "array" and name == "begin":
            _, position = _argument(text, position)
        tokens.append(Token("env", f"{name} {content.strip('*')}"))
    elif name in ("percent", "euro", "pounds", "cent"):
        tokens.append(Token("percent", "%") if name == "percent" else Token("money", name))
    elif name in ("hspace", "vspace", "phantom", "color"):
        _, position = _argument(text, position)
    elif name == "textcolor":
        _, position = _argument(text, position)
    else:
        raise Unreadable(f"the command \\{name}"[:40])
    return position


def _text(content: str, upright: bool) -> list[Token]:
    r"""What `\text{content}` stands for: a sign, a formula, or text. A single upright letter is a symbol."""
    words = content.replace("\\ ", " ").replace("~", " ").strip()
    lower = words.lower().strip(" ,.")
    if lower in ("or", "and"):
        return [Token("op", lower)]
    if lower in ("percent", "per cent", "percentage", "pct"):
        return [Token("percent", "%")]
    if lower in ("degree", "degrees"):
        return [Token("degree", "deg")]
    if not any(map(str.isalpha, words)) or re.match(r"[-+]?\s?\\?[$]?\.?\d", words):
        return tokenize(words)
    if upright and (len(words) == 1 or words in FUNCTIONS or not re.fullmatch(r"[A-Za-z /.]+", words)):
        return tokenize(words)
    return [Token("text", words)]
