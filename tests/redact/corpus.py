"""A labeled corpus of calls: values from Faker, in sentences, typed and spoken, with near misses.

Every value that must be found is marked in its template, so labels follow from the construction, not
from the rules under test.
"""

import random
import string
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from faker import Faker

from galley.redact.numbers import luhn
from galley.redact.spans import Kind, Span

_DIGITS: Final = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
_OH: Final = ["oh", *_DIGITS[1:]]
_TEENS: Final = [
    "ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen",
    "nineteen",
]  # fmt: skip
_TENS: Final = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_ORDINALS: Final = [
    "first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth",
    "eleventh", "twelfth", "thirteenth", "fourteenth", "fifteenth", "sixteenth", "seventeenth",
    "eighteenth", "nineteenth", "twentieth",
]  # fmt: skip


class Call(NamedTuple):
    """A text, one turn per line, and the spans in it."""

    text: str
    spans: tuple[Span, ...]


class Value(NamedTuple):
    """A value as it appears in the text, and its kind; None: it must not be found."""

    kind: Kind | None
    text: str


def digit_words(number: str, rng: random.Random) -> str:
    """Return digits as they are read aloud: single, in pairs, doubled."""
    words: list[str] = []
    index = 0
    names = rng.choice([_DIGITS, _OH])
    while index < len(number):
        pair = number[index : index + 2]
        if len(pair) == 2 and pair[0] == pair[1] and rng.random() < 0.3:
            words.append(f"double {names[int(pair[0])]}")
            index += 2
        elif len(pair) == 2 and pair[0] != "0" and _is_clear(number, index) and rng.random() < 0.15:
            words.append(_two_digits(pair))
            index += 2
        else:
            words.append(names[int(number[index])])
            index += 1
    return " ".join(words)


def _is_clear(number: str, index: int) -> bool:
    """Return whether two digits may be read as one number: "forty one" is not 40 and then 1."""
    return number[index + 1] != "0" or number[index + 2 : index + 3] in ("", "0")


def _two_digits(pair: str) -> str:
    if pair[0] == "1":
        return _TEENS[int(pair[1])]
    tens = _TENS[int(pair[0]) - 2]
    return tens if pair[1] == "0" else f"{tens} {_DIGITS[int(pair[1])]}"


def _grouped(number: str, size: int, separator: str) -> str:
    return separator.join(number[at : at + size] for at in range(0, len(number), size))


def _over_turns(spoken: str, rng: random.Random) -> str:
    words = spoken.split(" ")
    cut = rng.randint(2, len(words) - 2)
    cut -= words[cut - 1] == "double"
    reply = rng.choice(["okay", "yes", "mhm", "got it", "go ahead"])
    return f"{' '.join(words[:cut])}\n{reply}\n{' '.join(words[cut:])}"


class Maker:
    """Makes values and sentences from its own seed."""

    def __init__(self, seed: int) -> None:
        """Create the maker of one corpus."""
        self.rng = random.Random(seed)
        self.fake = Faker(["en_US", "en_GB", "en_CA"])
        self.fake.seed_instance(seed)
        self.american = self.fake["en_US"]

    def card(self) -> Value:
        number = self.american.credit_card_number()
        while len(number) < 13:
            number = self.american.credit_card_number()
        forms: list[Callable[[], str]] = [
            lambda: number,
            lambda: _grouped(number, 4, self.rng.choice([" ", "-", "  "])),
            lambda: digit_words(number, self.rng),
            lambda: _over_turns(digit_words(number, self.rng), self.rng),
            lambda: _over_turns(_grouped(number, 4, " "), self.rng),
        ]
        return Value("card", self.rng.choice(forms)())

    def iban(self) -> Value:
        locale = self.rng.choice(["de_DE", "en_GB", "fr_FR", "nl_NL", "it_IT", "es_ES"])
        fake = self.fake if locale == "en_GB" else Faker(locale)
        fake.seed_instance(self.rng.randrange(1 << 30))
        number = fake["en_GB"].iban() if locale == "en_GB" else fake.iban()
        spoken = " ".join(c if c.isalpha() else _DIGITS[int(c)] for c in number)
        form = self.rng.choice([number, _grouped(number, 4, " "), spoken, spoken.lower()])
        return Value("bank_account", form)

    def ssn(self) -> Value:
        number = self.american.ssn()
        digits = number.replace("-", "")
        spoken = digit_words(digits, self.rng)
        return Value("ssn", self.rng.choice([number, number, digits, spoken]))

    def phone(self) -> Value:
        area, exchange = self.rng.randint(200, 989), self.rng.randint(200, 999)
        line = f"{self.rng.randint(0, 9999):04d}"
        digits = f"{area}{exchange}{line}"
        forms = [
            f"{area}-{exchange}-{line}", f"({area}) {exchange}-{line}", f"+1 {area} {exchange} {line}",
            f"{area}.{exchange}.{line}", digits, digit_words(digits, self.rng),
        ]  # fmt: skip
        return Value("phone", self.rng.choice(forms))

    def email(self) -> Value:
        local, _, domain = self.fake.email().partition("@")
        typed = f"{local}@{domain}"
        parts = local.replace(".", " dot ").replace("_", " underscore ")
        spoken = f"{parts} at {domain.replace('.', ' dot ')}"
        return Value("email", self.rng.choice([typed, typed, spoken]))

    def birth(self) -> Value:
        date = self.fake.date_of_birth(minimum_age=18, maximum_age=90)
        day, year = date.day, str(date.year)
        month = date.strftime("%B")
        ordinal = _ORDINALS[day - 1] if day <= 20 else None
        spoken_year = (
            f"{_two_digits(year[:2])} {_two_digits(year[2:]) if year[2] != '0' else 'oh one'}"
        )
        forms = [
            date.strftime("%m/%d/%Y"), date.strftime("%Y-%m-%d"), f"{month} {day}, {year}",
            f"{day} {month} {year}",
        ]  # fmt: skip
        if ordinal and year >= "1910":
            forms += [f"the {ordinal} of {month} {spoken_year}", f"{month} {ordinal} {spoken_year}"]
        return Value("date_of_birth", self.rng.choice(forms))

    def address(self) -> Value:
        street = self.american.street_address()
        place = f"{self.american.city()}, {self.american.state_abbr()} {self.american.zipcode()}"
        number, _, name = street.partition(" ")
        spoken = f"{digit_words(number, self.rng)} {name}"
        return Value("address", self.rng.choice([f"{street}, {place}", street, spoken]))

    def name(self) -> Value:
        first, last = self.fake.first_name(), self.fake.last_name()
        return Value("name", self.rng.choice([f"{first} {last}", f"{first} {last}", first]))

    def not_a_card(self) -> Value:
        length = self.rng.choice([10, 12, 16])
        while True:
            digits = "".join(self.rng.choice(string.digits) for _ in range(length))
            if not luhn(digits):
                return Value(None, digits)

    def code(self) -> Value:
        return Value("security_code", digit_words(f"{self.rng.randint(100, 999)}", self.rng))


SENTENCES: Final[dict[str, tuple[str, ...]]] = {
    "card": (
        "my card number is {}", "the visa is {} if that helps", "can you charge {} instead",
        "I would like to pay with {} please", "it says {} on the front",
    ),
    "iban": ("please wire it to {}", "the IBAN is {}", "the money goes to {} as always"),
    "ssn": ("my social security number is {}", "my social is {}", "SSN {}"),
    "phone": (
        "you can reach me at {}", "my cell phone is {}", "call me back on {} after five",
        "the best number to call is {}",
    ),
    "email": ("send it to {} please", "my email is {}", "you can write to me, {} is best"),
    "birth": ("I was born on {}", "my date of birth is {}", "date of birth {} and nothing else"),
    "address": (
        "I live at {}", "ship it to {} please", "my address is {}", "we moved to {} in the spring",
    ),
    "name": (
        "my name is {}", "this is {} calling", "yes, {} speaking", "please ask for Mr. {}",
        "hi {}, how are you", "I spoke with {} last week", "the account holder is {}",
    ),
    "code": ("the security code is {}", "the CVV is {}"),
    "not_a_card": (
        "my order number is {}", "the tracking number is {}", "invoice {} was wrong",
        "the reference was {} I think", "case {} is still open", "the serial number says {}",
    ),
}  # fmt: skip

OTHER_SENTENCES: Final[dict[str, tuple[str, ...]]] = {
    "card": ("okay so {} is what is printed on it", "put it on {}"),
    "iban": ("you find me under {} at the bank",),
    "ssn": ("they asked for my social, {}, twice",),
    "phone": ("ring {} any time", "my mobile, that is {}, is off"),
    "email": ("try {} maybe", "the login is {}"),
    "birth": ("her birthday, {}, is the password",),
    "address": ("the parcel went to {} by mistake", "somebody moved into {}"),
    "name": ("it was Dr. {} who saw me", "that was {}, my sister", "could I talk to {}"),
    "code": ("and the three numbers on the back, {}",),
    "not_a_card": ("the label says {}", "the meter reads {}"),
}
"""Sentences written after the rules, which were not adapted to them."""

_NEUTRAL: Final = (
    "the parcel came two days late", "I bought twelve chairs and a table in March",
    "it costs one hundred and twenty dollars a month", "Thank you for calling, one moment please",
    "that was at half past nine on Monday", "we are open from eight to five", "it weighs 12.5 pounds",
    "I have been waiting for forty five minutes", "the model is a 4500 series", "about 3,000 of them",
    "version 10.2.4 did not work", "the flight at 10:45 was cancelled", "there are 7 of us",
    "I read it in the manual on page 212", "can you repeat that please", "it was in room 214",
)  # fmt: skip


def corpus(
    seed: int, calls: int, sentences: Mapping[str, tuple[str, ...]] = SENTENCES
) -> Iterator[Call]:
    """Yield calls of a few turns each, about four spans a call."""
    maker = Maker(seed)
    for _ in range(calls):
        turns: list[tuple[str, Value | None]] = []
        for _ in range(maker.rng.randint(4, 8)):
            what = maker.rng.choice([*sentences, None, None, None])
            if what is None:
                turns.append((maker.rng.choice(_NEUTRAL), None))
            else:
                turns.append((maker.rng.choice(sentences[what]), getattr(maker, what)()))
        yield _call(turns)


def _call(turns: list[tuple[str, Value | None]]) -> Call:
    text, spans = "", []
    for sentence, value in turns:
        before, _, after = sentence.partition("{}")
        text += before[:1].upper() + before[1:]
        if value is not None:
            if value.kind is not None:
                spans.append(Span(value.kind, len(text), len(text) + len(value.text)))
            text += value.text + after
        text += ".\n"
    return Call(text, tuple(spans))
