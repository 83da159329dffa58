# ruff: noqa: RUF001 - dashes between numbers
"""English texts with dates, money, times and abbreviations written out, as they are read aloud.

Plain numbers stay digits: the phonemizer reads them. What it reads wrongly is rewritten, partly to numbers
that it reads right: it says "19 90" as the year is said.
"""

import re
from collections.abc import Callable
from typing import Final

_MONTHS: Final = (
    *("January", "February", "March", "April", "May", "June", "July"),
    *("August", "September", "October", "November", "December"),
)
_SHORT_MONTHS: Final = {
    **{month[:3].lower(): month for month in _MONTHS},
    "sept": "September",
}
_WORDS: Final = {
    "mr": "mister",
    "mrs": "missus",
    "ms": "miz",
    "dr": "doctor",
    "prof": "professor",
    "rev": "reverend",
    "gen": "general",
    "capt": "captain",
    "sgt": "sergeant",
    "lt": "lieutenant",
    "jr": "junior",
    "sr": "senior",
    "vs": "versus",
    "approx": "approximately",
    "dept": "department",
    "est": "estimated",
    "inc": "incorporated",
    "ltd": "limited",
    "corp": "corporation",
    "ave": "avenue",
    "blvd": "boulevard",
    "rd": "road",
    "mt": "mount",
    "fig": "figure",
    "e.g": "for example",
    "i.e": "that is",
    "a.k.a": "also known as",
    "p.s": "P S",
}
"""Abbreviation, without its last point -> how it is read."""

ABBREVIATIONS: Final = frozenset({*_WORDS, *_SHORT_MONTHS, "st", "no", "u.s", "u.k"} - {"may"})
"""Abbreviations, in lower case and without the last point, after which a sentence continues."""

_CURRENCIES: Final = {
    "$": ("dollar", "cent", "cents"),
    "£": ("pound", "penny", "pence"),
    "€": ("euro", "cent", "cents"),
}
_UNITS: Final = {
    "km/h": "kilometer per hour",
    "mph": "mile per hour",
    "km": "kilometer",
    "cm": "centimeter",
    "mm": "millimeter",
    "kg": "kilogram",
    "mg": "milligram",
    "ml": "milliliter",
    "lbs": "pound",
    "lb": "pound",
    "oz": "ounce",
    "ft": "foot",
    "ms": "millisecond",
    "GHz": "gigahertz",
    "MHz": "megahertz",
    "kHz": "kilohertz",
    "Hz": "hertz",
    "kW": "kilowatt",
    "TB": "terabyte",
    "GB": "gigabyte",
    "MB": "megabyte",
    "KB": "kilobyte",
    "kB": "kilobyte",
    "°C": "degree Celsius",
    "°F": "degree Fahrenheit",
    "°": "degree",
}
_FRACTIONS: Final = {2: "half", 3: "third", 4: "quarter", 5: "fifth", 8: "eighth", 10: "tenth"}
_SIGNS: Final = {"&": " and ", "@": " at ", "=": " equals ", "©": " copyright ", "~": " about "}

_NUMBER: Final = r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?"
_SCALE: Final = r"(?:\s?(thousand|million|billion|trillion))?"
_MONTH: Final = "|".join([*_MONTHS, *(rf"{short.capitalize()}\.?" for short in _SHORT_MONTHS)])
_YEAR: Final = r"(?:1[1-9]|20)\d\d"


def normalized(text: str) -> str:
    """Return English text with what is not plain words or numbers written out."""
    for pattern, replace in _RULES:
        text = pattern.sub(replace, text)
    return text


def year(number: int) -> str:
    """Return a year from 1100 to 2099 in the form whose numbers are read as years are."""
    century, rest = divmod(number, 100)
    if number == 2000 or 2000 < number < 2010:
        return str(number)
    if rest == 0:
        return f"{century} hundred"
    return f"{century} oh {rest}" if rest < 10 else f"{century} {rest}"


def ordinal(number: int) -> str:
    """Return a number with the ending of its ordinal, such as 23rd."""
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10)
    return f"{number}{ending or 'th'}"


def _money(match: re.Match[str]) -> str:
    unit, one, many = _CURRENCIES[match[1]]
    amount, scale = match[2].replace(",", ""), match[3]
    if scale:
        return f"{amount} {scale} {unit}s"
    whole, _, rest = amount.partition(".")
    said = f"{whole} {unit}" + ("" if whole == "1" else "s")
    if not rest or not int(rest):
        return said
    if len(rest) != 2:
        return f"{amount} {unit}s"
    small = f"{int(rest)} {one if int(rest) == 1 else many}"
    return small if int(whole) == 0 else f"{said} and {small}"


def _said_date(month: str, day: int, of: str | None) -> str:
    said = f"{month} {ordinal(day)}"
    return f"{said}, {year(int(of))}" if of else said


def _numeric_date(year_at: int, month_at: int, day_at: int) -> Callable[[re.Match[str]], str]:
    def replace(match: re.Match[str]) -> str:
        month, day = int(match[month_at]), int(match[day_at])
        if not (1 <= month <= 12 and 1 <= day <= 31):
            return match[0]
        return _said_date(_MONTHS[month - 1], day, match[year_at])

    return replace


def _month(name: str) -> str:
    return _SHORT_MONTHS.get(name.rstrip(".")[:3].lower(), name)


def _month_day(match: re.Match[str]) -> str:
    day = int(match[2])
    return _said_date(_month(match[1]), day, match[3]) if 1 <= day <= 31 else match[0]


def _day_month(match: re.Match[str]) -> str:
    day = int(match[1])
    return _said_date(_month(match[2]), day, match[3]) if 1 <= day <= 31 else match[0]


def _time(match: re.Match[str]) -> str:
    hour, minute = int(match[1]), int(match[2])
    if hour > 23 or minute > 59:
        return match[0]
    half = f" {match[3][0].upper()} M" if match[3] else ""
    if minute == 0:
        return f"{hour}{half or (' hundred' if hour > 12 else ' o' + chr(39) + 'clock')}"
    return f"{hour} {'oh ' if minute < 10 else ''}{minute}{half}"


def _unit(match: re.Match[str]) -> str:
    unit = _UNITS[match[2]]
    if match[1] != "1":
        first, _, rest = unit.partition(" ")
        many = {"foot": "feet"}.get(first, first if first.endswith("hertz") else f"{first}s")
        unit = f"{many} {rest}".rstrip()
    return f"{match[1]} {unit}"


def _fraction(match: re.Match[str]) -> str:
    above, below = int(match[1]), int(match[2])
    part = _FRACTIONS.get(below)
    if part is None or not 0 < above < below:
        return match[0]
    many = {"half": "halves"}.get(part, f"{part}s")
    return f"{above} {part if above == 1 else many}"


def _spelled(match: re.Match[str]) -> str:
    """Return a telephone number digit by digit, with a pause between its groups."""
    return ", ".join(" ".join(group) for group in re.findall(r"\d+", match[0]))


def _address(match: re.Match[str]) -> str:
    return match[0].replace("@", " at ").replace(".", " dot ").replace("/", " slash ")


def _word(match: re.Match[str]) -> str:
    # Letters such as the long s match others without regard to case, and are not those in lower case.
    return _WORDS.get(match[1].lower(), match[0])


_RULES: Final[tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...]] = (
    (re.compile(r"https?://|\bwww\.(?=\w)"), ""),
    (re.compile(r"\b[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63})+"), _address),
    (
        re.compile(r"\b[a-z][\w-]{1,62}\.(?:com|org|net|io|dev|edu|gov|co\.uk)\b(?:/[\w-]+)*"),
        _address,
    ),
    (re.compile(r"\b(\d{4})-(\d\d)-(\d\d)\b"), _numeric_date(1, 2, 3)),
    (re.compile(rf"\b(\d\d?)/(\d\d?)/({_YEAR})\b"), _numeric_date(3, 1, 2)),
    (
        re.compile(rf"\b({_MONTH})\s(\d\d?)(?:st|nd|rd|th)?\b(?:,?\s({_YEAR})\b)?"),
        _month_day,
    ),
    (
        re.compile(rf"\b(\d\d?)(?:st|nd|rd|th)?\s({_MONTH})\b(?:,?\s({_YEAR})\b)?"),
        _day_month,
    ),
    (re.compile(r"\b(\d\d?):(\d\d)\b(?:\s?([ap])\.?m\b\.?)?", re.IGNORECASE), _time),
    (
        re.compile(r"\b(\d\d?)\s?([ap])\.?m\b\.?", re.IGNORECASE),
        lambda m: f"{m[1]} {m[2].upper()} M",
    ),
    (re.compile(rf"([$£€])\s?({_NUMBER}){_SCALE}\b", re.IGNORECASE), _money),
    (
        re.compile(r"(?<![\w.])(?:\+\d{1,3}[ -])?(?:\(\d{3}\)\s?|\d{3}[ -])\d{3}[ -]\d{4}\b"),
        _spelled,
    ),
    (re.compile(r"\+\d{1,3}(?:[ -]\d{2,5}){2,5}\b"), _spelled),
    (
        re.compile(rf"\b({_YEAR})\s?[-–]\s?({_YEAR})\b"),
        lambda m: f"{year(int(m[1]))} to {year(int(m[2]))}",
    ),
    (re.compile(r"\b((?:1[1-9]|20)\d)0s\b"), lambda m: f"{year(int(m[1] + '0'))}s"),
    (
        re.compile(
            rf"\b(in|since|by|from|until|before|after|of|year|spring|summer|autumn|fall|winter)\s({_YEAR})"
            r"\b(?![,.]\d|\s?%)(?!\s(?:people|times|dollars|miles|meters|items|users|words|feet)\b)",
            re.IGNORECASE,
        ),
        lambda m: f"{m[1]} {year(int(m[2]))}",
    ),
    (re.compile(rf"\b({_NUMBER})\s?({'|'.join(map(re.escape, _UNITS))})(?![\w/])"), _unit),
    (re.compile(r"(?<![\d/.])(\d{1,2})/(\d{1,2})(?![\d/])"), _fraction),
    (re.compile(r"\b(\d+)\.(\d+)\.(\d+)\b"), r"\1 point \2 point \3"),
    (re.compile(r"(?<![\w.)])-(?=\d)"), "minus "),
    (re.compile(r"(?<=\d)[-–](?=\d)"), " to "),
    (re.compile(r"(?<=\d)\s[-–]\s(?=\d)"), " minus "),
    (re.compile(r"(?<=\d)\s?[*×]\s?(?=\d)"), " times "),
    (re.compile(r"(?:#|\bno\.\s)(?=\d)", re.IGNORECASE), "number "),
    (re.compile(r"\bSt\.(?=\s[A-Z])"), "Saint"),
    (re.compile(r"\bst\.", re.IGNORECASE), "street"),
    (re.compile(r"\betc\.", re.IGNORECASE), "et cetera"),
    (
        re.compile(rf"\b({'|'.join(map(re.escape, _WORDS))})\.(?=[\s,;:)]|\Z)", re.IGNORECASE),
        _word,
    ),
    (re.compile("|".join(map(re.escape, _SIGNS))), lambda m: _SIGNS[m[0]]),
)
