"""Convert written text into spoken words: `£42.50` becomes `forty two pounds fifty`.

Every written form that `sentences.py` uses is determined by its sound, so the model can learn the
inverse.
"""

from __future__ import annotations

import random
import re

from ..assistant.vocabulary import MONTHS, ORDINALS

# fmt: off
_UNITS = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven",
    "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)
_TENS = ("zero", "ten", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
# fmt: on
_CURRENCY = {"£": ("pounds", "pence"), "$": ("dollars", "cents"), "€": ("euros", "cents")}
_MONTH = "|".join(MONTHS)

_AMOUNT = re.compile(r"([£$€])(\d{1,4})(?:\.(\d\d))?")
_DAY = re.compile(rf"\b(\d\d?)(?:st|nd|rd|th)\b|\b(\d\d?)(?= (?:{_MONTH})\b)|(?<=\b)(\d\d?)\b")
_PREFIX = re.compile(r"\b(AC|[A-Z])-?(?=\d)")
_DIGITS = re.compile(r"\d{3,}(?:[ -]\d{3,})*")


def spoken(written: str, rng: random.Random) -> str:
    """Words and marks for a voice to read; no digits are left.

    `rng` chooses between spoken variants: `oh` or `zero`, a pause within a long number.
    """
    text = _AMOUNT.sub(lambda found: _amount(found, rng), written)
    text = _PREFIX.sub(lambda found: f"{' '.join(found[1])} ", text)
    text = _DIGITS.sub(lambda found: _digits(found[0], rng), text)
    text = _DAY.sub(_day, text)
    return text.replace("SIM", "sim").replace(":", ",").replace("-", " ")


def letters(said: str) -> str:
    """Return the spoken text as lower-case words, apostrophes kept: the encoder's target."""
    return " ".join(re.findall(r"[a-z']+", said.lower()))


def cardinal(number: int, rng: random.Random) -> str:
    """Return a number from 0 to 9999 in words."""
    if number < 20:
        return _UNITS[number]
    if number < 100:
        tens, unit = divmod(number, 10)
        return f"{_TENS[tens]} {_UNITS[unit]}" if unit else _TENS[tens]
    size, name = (1000, "thousand") if number >= 1000 else (100, "hundred")
    most, rest = divmod(number, size)
    head = f"{cardinal(most, rng)} {name}"
    if not rest:
        return head
    joint = "and " if rest < 100 and rng.random() < 0.7 else ""
    return f"{head} {joint}{cardinal(rest, rng)}"


def _amount(found: re.Match[str], rng: random.Random) -> str:
    large, small = _CURRENCY[found[1]]
    text = f"{cardinal(int(found[2]), rng)} {large}"
    if found[3] is None:
        return text
    rest = cardinal(int(found[3]), rng)
    return f"{text} {rest}" if rng.random() < 0.6 else f"{text} and {rest} {small}"


def _day(found: re.Match[str]) -> str:
    if found[1]:
        return ORDINALS[int(found[1]) - 1]
    number = int(found[2] or found[3])
    tens, unit = divmod(number, 10)
    return (
        _UNITS[number] if number < 20 else f"{_TENS[tens]} {_UNITS[unit]}" if unit else _TENS[tens]
    )


def _digits(text: str, rng: random.Random) -> str:
    """Spell digits one by one; groups as written, a long group sometimes in halves."""
    zero = rng.choice(("zero", "zero", "oh"))
    names = [zero, *_UNITS[1:10]]
    groups = re.split(r"[ -]", text)
    if len(groups) == 1 and len(text) > 5 and rng.random() < 0.5:
        half = (len(text) + 1) // 2
        groups = [text[:half], text[half:]]
    return ", ".join(" ".join(names[int(digit)] for digit in group) for group in groups)
