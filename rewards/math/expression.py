r"""Tokens to a SymPy expression: one scalar, with every power, factorial and number bounded before it is computed.

Written here, and not left to math-verify's grammar, which reads 2(3) as the mixed number 5, x(x + 1) as a function's
value and i as a variable, drops subscripts, and knows no bounds. What is read:

- sums, products (also unwritten), quotients, powers, factorials, absolute values, floors, roots, binomials, the
  elementary functions; e, i and \pi; \infty. Unwritten products bind as written ones do: 1/2x is (1/2)x.
- `\frac12` is a half and `\sqrt2 x` a root of two times x, as TeX has it; but `2^10` is 1024 and `\sqrt(2)` a root.
- `1\frac{4}{5}` and `1 4/5` are mixed numbers; `2\frac{x}{5}` is a product; `2\frac{7}{5}` is refused.
- log is to the base 10 unless it has one; an odd root of a negative number is the real one.
- No number stands behind an unwritten product (x2, `\pi 2`), no two signs side by side (--5), no blank inside a number.
  With a blank between, a sign may follow a plus or minus: 14 + -1.5 is 12.5.
- Degrees count inside trigonometric functions and are no more than a unit outside.
"""

from collections.abc import Sequence
from fractions import Fraction

import sympy
from sympy import Expr, Integer, Rational, Symbol

from rewards.math.tokens import Token, TooLarge, Unreadable

DEEPEST = 60  # nested groups
LARGEST_BITS = 20_000  # of any integer that is computed
LARGEST_FACTORIAL = 1000

_TRIGONOMETRIC = frozenset("sin cos tan cot sec csc".split())
_INVERSE = {"sin": "asin", "cos": "acos", "tan": "atan", "cot": "acot", "sec": "asec", "csc": "acsc"}
_FUNCTIONS = {
    **{name: getattr(sympy, name) for name in ("sin", "cos", "tan", "cot", "sec", "csc", "exp", "floor")},
    **{name: getattr(sympy, name) for name in ("sinh", "cosh", "tanh", "coth")},
    **{f"arc{name}": getattr(sympy, inverse) for name, inverse in _INVERSE.items()},
    **{f"arc{name}": getattr(sympy, f"a{name}") for name in ("sinh", "cosh", "tanh")},
    **{"abs": sympy.Abs, "ceil": sympy.ceiling, "min": sympy.Min, "max": sympy.Max, "ln": sympy.log},
}
_CLOSING = {"(": ")", "[": "]", "{": "}", "floor(": "floor)", "ceil(": "ceil)"}
_STARTS = frozenset(["(", "[", "{", "floor(", "ceil(", "|", "overline"])


def parse_expression(tokens: Sequence[Token]) -> Expr:
    """The scalar that the tokens write.

    Raises:
        Unreadable: they write none, or one beyond the bounds.
    """
    parser = _Parser(list(tokens))
    value = parser.quotient()
    if parser.left():
        raise Unreadable(f"{parser.peek().text!r} where nothing was expected")
    return value


def power(base: Expr, exponent: Expr) -> Expr:
    """base**exponent, refused where numbers alone would make it too large."""
    if exponent.is_number and base.is_number:
        size = _bits(base) * _magnitude(exponent)
        if size > LARGEST_BITS:
            raise TooLarge("a power that is too large")
    elif exponent.is_Integer and abs(int(exponent)) > LARGEST_FACTORIAL:
        raise TooLarge("a power that is too large")
    if base.is_zero and exponent.is_extended_negative:
        raise Unreadable("a division by zero")
    return base**exponent


def _bits(value: Expr) -> int:
    """About the size of a number's numerator and denominator, in bits; at least 1, unless it is 0 or 1."""
    if value.is_Rational:
        return max(abs(value.p), value.q).bit_length() - 1 or int(abs(value.p) > 1)
    return 64 + sum(_bits(part) for part in value.atoms(sympy.Rational))


def _magnitude(value: Expr) -> int:
    size = abs(value.evalf(5))
    if not size.is_Float and not size.is_Integer:
        return LARGEST_BITS + 1 if value.has(sympy.oo) else 1
    return int(min(size, LARGEST_BITS + 1)) + 1


def divide(top: Expr, bottom: Expr) -> Expr:
    """top / bottom; Unreadable for a division by zero."""
    if bottom.is_zero:
        raise Unreadable("a division by zero")
    return top / bottom


def root(value: Expr, degree: Expr) -> Expr:
    """The real root where there is one (the cube root of -8 is -2), else the principal one."""
    if degree.is_zero:
        raise Unreadable("a root of degree zero")
    if degree.is_Integer and degree % 2 == 1 and value.is_extended_negative:
        return -power(-value, 1 / degree)
    return power(value, 1 / degree)


def factorial(value: Expr) -> Expr:
    """value!, of a small natural number or of an expression with variables."""
    if value.is_number and not (value.is_Integer and 0 <= value <= LARGEST_FACTORIAL):
        raise TooLarge("a factorial that is too large")
    return sympy.factorial(value)


def binomial(upper: Expr, lower: Expr) -> Expr:
    """Of two small natural numbers, or of expressions with variables."""
    for value in (upper, lower):
        if value.is_number and not (value.is_Integer and 0 <= value <= LARGEST_FACTORIAL):
            raise TooLarge("a binomial that is too large")
    return sympy.binomial(upper, lower)


class _Parser:
    """Recursive descent over a list of tokens, which it consumes from the front."""

    def __init__(self, tokens: list[Token]) -> None:
        self.tokens = tokens
        self.at = 0
        self.depth = 0
        self.bars = 0  # open absolute values, inside which a bar closes
        self.trigonometric = 0  # inside an argument, where a degree is pi/180

    def left(self) -> bool:
        return self.at < len(self.tokens)

    def peek(self) -> Token:
        return self.tokens[self.at] if self.left() else Token("end", "")

    def takes(self, *texts: str) -> str:
        """Consumes an operator if it is one of these; "" if not."""
        token = self.peek()
        if token.kind not in ("op", "frac") or token.text not in texts:
            return ""
        self.at += 1
        return token.text

    def expect(self, text: str) -> None:
        if not self.takes(text):
            raise Unreadable(f"{text!r} is missing")

    def sum(self) -> Expr:
        self.depth += 1
        if self.depth > DEEPEST:
            raise TooLarge("too deeply nested")
        sign = self.takes("+", "-")
        value = -self.product() if sign == "-" else self.product()
        while sign := self.takes("+", "-"):
            term = -self.product() if self.takes("+", "-") == "-" else self.product()
            value = value - term if sign == "-" else value + term
        self.depth -= 1
        return value

    def product(self) -> Expr:
        value = self.power()
        while True:
            if operator := self.takes("*", "/"):
                factor = -self.power() if self.takes("-") else self.power()
                value = divide(value, factor) if operator == "/" else value * factor
            elif self.begins_factor():
                value = value * self.power()
            else:
                return value

    def begins_factor(self) -> bool:
        """Whether an unwritten product goes on; a number never does, whatever is in front of it."""
        token = self.peek()
        if token.kind == "op":
            return token.text in _STARTS and not (token.text == "|" and self.bars)
        return token.kind in ("word", "fn", "greek", "const", "frac")

    def power(self) -> Expr:
        value = self.primary()
        while True:
            if self.takes("^"):
                value = power(value, self.exponent())
            elif self.takes("!"):
                if self.peek().text == "!":
                    raise Unreadable("a double factorial")
                value = factorial(value)
            elif self.peek().kind == "degree":
                self.at += 1
                value = value * sympy.pi / 180 if self.trigonometric else value
            else:
                return value

    def exponent(self) -> Expr:
        sign = self.takes("+", "-")
        value = self.argument(whole=True)
        if self.takes("^"):
            value = power(value, self.exponent())
        return -value if sign == "-" else value

    def argument(self, whole: bool = False) -> Expr:
        r"""TeX's argument: a group, or one token; of a number one digit, unless it is taken whole."""
        token = self.peek()
        if token.kind == "num" and not whole and len(token.text) > 1:
            if not token.text.isdigit():
                raise Unreadable("a number that is cut in two")
            rest = token.text[1:]
            self.tokens[self.at] = Token("num", rest, Fraction(rest))
            return Integer(token.text[0])
        return self.primary()

    def group(self, opening: str) -> Expr:
        bars, self.bars = self.bars, 0
        value = self.quotient()
        self.expect(_CLOSING[opening])
        self.bars = bars
        return value

    def quotient(self) -> Expr:
        r"""A sum, or two with TeX's infix `\over` or `\choose` between them."""
        value = self.sum()
        if self.takes("over"):
            return divide(value, self.sum())
        return binomial(value, self.sum()) if self.takes("choose") else value

    def primary(self) -> Expr:
        token = self.peek()
        self.at += 1
        if token.kind == "num":
            return self.mixed(token) or rational(token.value)
        if token.kind in ("word", "greek"):
            return self.symbol(token)
        if token.kind == "const":
            return sympy.oo if token.text == "infty" else sympy.pi if token.text == "pi" else sympy.I
        if token.kind == "fn":
            return self.root() if token.text == "sqrt" else self.function(token.text)
        if token.kind == "frac":
            combine = divide if token.text == "frac" else binomial
            return combine(self.argument(), self.argument())
        if token.kind == "op" and token.text in _CLOSING:
            value = self.group(token.text)
            return {"floor(": sympy.floor, "ceil(": sympy.ceiling}.get(token.text, _same)(value)
        if token.kind == "op" and token.text == "|" and not self.bars:
            self.bars += 1
            value = self.sum()
            self.bars -= 1
            self.expect("|")
            return sympy.Abs(value)
        if token.kind == "op" and token.text == "overline":
            return self.argument()
        raise Unreadable(f"{token.text!r} where a value was expected" if token.text else "an incomplete expression")

    def mixed(self, whole: Token) -> Expr | None:
        """The mixed number that starts with the integer just read; None if none does."""
        if not whole.text.isdigit() or (self.at > 1 and self.tokens[self.at - 2].text == "^"):
            return None
        before = self.at, list(self.tokens)
        top: Expr | None = None
        bottom: Expr | None = None
        if self.peek().kind == "num" and self.peek().text.isdigit():
            top = self.primary_number()
            bottom = self.primary_number() if self.takes("/") else None
        elif self.takes("frac"):
            top, bottom = self.argument(), self.argument()
        if top is None or bottom is None or not (top.is_Integer and bottom.is_Integer):
            self.at, self.tokens = before
            return None
        if not 0 < top < bottom or self.peek().text in ("^", "!"):
            raise Unreadable("a mixed number that isn't one")
        return rational(whole.value) + Rational(top, bottom)

    def primary_number(self) -> Expr | None:
        """An integer's own token; None if there is none."""
        token = self.peek()
        if token.kind != "num" or not token.text.isdigit():
            return None
        self.at += 1
        return rational(token.value)

    def symbol(self, token: Token) -> Expr:
        """A letter (the rest of its word stays) with its subscript and primes: a real variable, or e or i."""
        name = token.text
        if token.kind == "word" and len(name) > 1:
            self.at -= 1
            self.tokens[self.at] = Token("word", name[1:])
            return _letter(name[0])
        if self.takes("_"):
            name += "_" + self.subscript()
        while self.takes("'"):
            name += "'"
        return _letter(name)

    def subscript(self) -> str:
        if not self.takes("{"):
            token = self.peek()
            self.at += 1
            if token.kind not in ("num", "word", "greek", "text", "const"):
                raise Unreadable("a subscript")
            return token.text
        name = ""
        while not self.takes("}"):
            if not self.left():
                raise Unreadable("'}' is missing")
            name += self.peek().text
            self.at += 1
        return name

    def root(self) -> Expr:
        degree: Expr = Integer(2)
        if self.takes("["):
            degree = self.group("[")
        return root(self.argument(), degree)

    def function(self, name: str) -> Expr:
        exponent: Expr | None = None
        base: Expr | None = None
        while mark := self.takes("^", "_"):
            if mark == "^":
                exponent = self.exponent()
            else:
                base = self.argument()
        self.trigonometric += name in _TRIGONOMETRIC
        arguments = self.arguments()
        self.trigonometric -= name in _TRIGONOMETRIC
        if exponent == -1 and name in _TRIGONOMETRIC:
            name, exponent = f"arc{name}", None
        value = apply(name, arguments, base)
        return value if exponent is None else power(value, exponent)

    def arguments(self) -> list[Expr]:
        """Of a function: what the parentheses hold, or else the unwritten product up to another function."""
        if self.takes("("):
            bars, self.bars = self.bars, 0
            values = [self.sum()]
            while self.takes(","):
                values.append(self.sum())
            self.expect(")")
            self.bars = bars
            return values
        value = self.power()
        while self.begins_factor() and self.peek().kind != "fn" and self.peek().text not in ("(", "["):
            value = value * self.power()
        return [value]


def rational(value: Fraction | None) -> Rational:
    """A token's number, exactly."""
    assert value is not None
    return Rational(value.numerator, value.denominator)


def apply(name: str, arguments: list[Expr], base: Expr | None) -> Expr:
    """A function's value at its arguments.

    Raises:
        Unreadable: a base or a number of arguments that the function doesn't take.
    """
    if name in ("log", "ln", "lg") and len(arguments) == 1:
        base = sympy.E if name == "ln" else Integer(10) if base is None else base
        return divide(sympy.log(arguments[0]), sympy.log(base))
    several = name in ("min", "max", "gcd", "lcm")
    if base is not None or (len(arguments) != 1 and not several):
        raise Unreadable(f"what {name} is given")
    if name == "exp":
        return power(sympy.E, arguments[0])
    if name in ("gcd", "lcm"):
        if not all(value.is_Integer for value in arguments):
            raise Unreadable(f"what {name} is given")
        return getattr(sympy, name)(arguments)
    if name not in _FUNCTIONS:
        raise Unreadable(f"the function {name}")
    return _FUNCTIONS[name](*arguments)


def _letter(name: str) -> Expr:
    return {"e": sympy.E, "i": sympy.I}.get(name) or Symbol(name, real=True)


def _same(value: Expr) -> Expr:
    return value
