r"""Units, money and percent signs behind (or before) a value.

Wrapped in `\text` and its like, any few words are a unit, unless one of them could change the value ("or more"). Bare
words are units when they are known or have five letters and more, so that `6xyz` stays a product.
"""

import re
from collections.abc import Sequence

from rewards.math.tokens import Token, Unreadable

_NAMES = {
    "mm": "mm millimeter millimeters millimetre millimetres",
    "cm": "cm cms centimeter centimeters centimetre centimetres",
    "dm": "dm decimeter decimeters",
    "m": "m meter meters metre metres",
    "km": "km kms kilometer kilometers kilometre kilometres",
    "in": "in inch inches",
    "ft": "ft foot feet",
    "yd": "yd yard yards",
    "mi": "mi mile miles",
    "s": "s sec secs second seconds",
    "min": "min mins minute minutes",
    "h": "h hr hrs hour hours",
    "day": "day days",
    "week": "week weeks",
    "month": "month months",
    "year": "year years yr yrs",
    "g": "g gram grams",
    "kg": "kg kgs kilogram kilograms",
    "lb": "lb lbs pound pounds",
    "oz": "oz ounce ounces",
    "l": "l liter liters litre litres",
    "ml": "ml milliliter milliliters",
    "gal": "gallon gallons",
    "usd": "dollar dollars usd $",
    "cent": "cent cents ¢",
    "eur": "euro euros eur €",
    "gbp": "gbp pounds £",
    "deg": "deg degree degrees",
    "rad": "rad radian radians",
    "mi/h": "mph",
    "am": "am a.m",
    "pm": "pm p.m",
}
_KNOWN = {word: name for name, words in _NAMES.items() for word in words.split()}
_COUNTED = frozenset(
    "unit units square sq cubic cu per ways way people person students girls boys men women books balls cards coins "
    "pairs times points steps apples cats dogs cars eggs rolls sides edges faces hats pens toys".split()
)
_SCALES = {"hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12, "dozen": 12}
_CHANGES = frozenset(
    "or and not no non more less fewer greater than least most at between to from if where when for mod modulo "
    "negative minus plus equals equal is are over under above below but except remainder half quarter third double "
    "twice squared cubed factorial choose approximately about unless only until".split()
)
_RATES = frozenset("m/s km/h m/h ft/s mi/h".split())
_LONG = 5  # letters that make a bare word a unit, and not a product of variables


def strip_units(tokens: Sequence[Token]) -> tuple[list[Token], bool, str, int]:
    """The tokens without units; whether there was a percent sign; a known unit's name or ""; a factor ("million").

    Raises:
        Unreadable: words that may change the value, or that are no unit.
    """
    tokens = list(tokens)
    percent, words = False, []
    front = 1 if len(tokens) > 1 and tokens[0].text in ("-", "+") else 0
    if len(tokens) > front and tokens[front].kind == "money":
        words.append(tokens.pop(front).text)
    while len(tokens) > 1:
        if tokens[-1].kind == "percent":
            percent = True
            tokens.pop()
        elif tokens[-1].kind == "money" or (tokens[-1].kind == "degree" and all(t.kind != "fn" for t in tokens)):
            words.insert(0, tokens.pop().text)
        elif _is_rate(tokens):
            words[:0] = [tokens[-3].text, "per", tokens[-1].text]
            del tokens[-3:]
        elif (size := _exponent(tokens)) and _is_unit(tokens[:-size]):
            words.insert(0, f"^{tokens[-1 if size == 2 else -2].text}")
            del tokens[-size:]
            words.insert(0, tokens.pop().text)
        elif _is_unit(tokens):
            words.insert(0, tokens.pop().text)
        else:
            break
    name, scale = _name(" ".join(words))
    return tokens, percent, name, scale


def _exponent(tokens: Sequence[Token]) -> int:
    """How many tokens at the end are an exponent: `^2` or `^{2}`."""
    if len(tokens) > 3 and tokens[-2].kind == "num" and tokens[-2].text in ("2", "3"):
        if [token.text for token in tokens[-4:]] == ["^", "{", tokens[-2].text, "}"]:
            return 4
    return 2 if len(tokens) > 2 and tokens[-1].text in ("2", "3") and tokens[-2].text == "^" else 0


def _is_unit(tokens: Sequence[Token]) -> bool:
    """Whether the last token is a unit, and something is in front of it."""
    if len(tokens) < 2:
        return False
    token, before = tokens[-1], tokens[-2]
    if token.kind == "text":
        return True
    if token.kind != "word" or before.text in ("+", "-", "*", "^", "_", "(", "="):
        return False
    word = token.text.lower()
    known = len(word) > 1 and (word in _KNOWN or word in _COUNTED or word in _SCALES)
    return known or len(word) >= _LONG


def _is_rate(tokens: Sequence[Token]) -> bool:
    """Whether the end is one unit over another, as in m/s; g/h may be variables."""
    if len(tokens) < 4 or tokens[-2].text != "/" or tokens[-4].kind != "num":
        return False
    pair = tokens[-3], tokens[-1]
    if all(token.kind == "text" for token in pair):
        return True
    names = [token.text for token in pair]
    return "/".join(names) in _RATES or all(len(name) > 1 and name in _KNOWN for name in names)


def _name(words: str) -> tuple[str, int]:
    """One spelling for a unit whose every word is known ("square feet": ft^2), else ""; and the scale."""
    words = words.lower().replace("²", "^2").replace("³", "^3")
    parts = re.findall(r"[^\W\d_]\.[^\W\d_]|[^\W\d_]+|\^[23]|[/$€£¥₹¢]|\d", words)
    if len(parts) > 8 or any(part in _CHANGES or part.isdigit() for part in parts):
        raise Unreadable("words that may change the value")
    scale = 1
    while parts and parts[0] in _SCALES:
        scale *= _SCALES[parts.pop(0)]
    if any(part in _SCALES for part in parts):
        raise Unreadable("words that may change the value")
    names: list[str] = []
    power = ""
    for part in parts:
        if part in ("square", "sq", "cubic", "cu"):
            power = "^2" if part in ("square", "sq") else "^3"
        elif part in ("per", "/"):
            names.append("/")
        elif part in ("^2", "^3"):
            names.append(part)
        elif part in _KNOWN:
            names.append(_KNOWN[part] + power)
            power = ""
        else:
            return "", scale
    return "".join(names), scale
