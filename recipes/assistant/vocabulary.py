"""The vocabulary of calls: names, accounts, products, amounts, dates, cards and phones.

Every name, account and number belongs either to training or to the held-out sets, decided by a
checksum of its text (`is_held_out`), so the two never overlap.
"""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field

# The words a caller may use for a product, by the product's name on the ticket.
PRODUCTS: dict[str, tuple[str, ...]] = {
    "broadband": ("broadband", "internet", "home internet", "internet connection", "wifi"),
    "router": ("router", "modem", "wifi router"),
    "mobile plan": ("mobile plan", "phone plan", "phone contract", "mobile contract", "data plan"),
    "SIM card": ("SIM card", "SIM"),
    "handset": ("handset", "smartphone", "mobile phone", "cell phone"),
    "landline": ("landline", "home phone", "phone line", "fixed line"),
    "TV package": ("TV package", "television", "TV", "TV service", "TV subscription"),
    "TV box": ("TV box", "set-top box", "television box"),
    "insurance": ("insurance", "device insurance", "phone insurance", "insurance policy"),
}

ALL = tuple(PRODUCTS)

# Products that are plausible for each intent.
INTENT_PRODUCTS: dict[str, tuple[str, ...]] = {
    "refund": ALL,
    "billing": ALL,
    "payment": ALL,
    "fault": tuple(product for product in ALL if product != "insurance"),
    "cancel": ("broadband", "mobile plan", "landline", "TV package", "insurance"),
    "upgrade": ALL,
    "delivery": ("router", "handset", "SIM card", "TV box"),
    "move": ("broadband", "landline", "TV package"),
    "fraud": ("handset", "SIM card", "mobile plan"),
    "login": ALL,
}
INTENTS = tuple(INTENT_PRODUCTS)

_MOBILE = ("mobile plan", "SIM card", "handset")
_QUEUES = {
    "refund": "billing",
    "billing": "billing",
    "payment": "billing",
    "cancel": "retention",
    "upgrade": "sales",
    "delivery": "delivery",
    "move": "accounts",
    "login": "accounts",
    "fraud": "security",
}


def queue_for(intent: str, product: str | None) -> str:
    """Return the queue that takes a ticket: faults go by product, everything else by intent."""
    if intent == "fault":
        return "mobile support" if product in _MOBILE else "home support"
    return _QUEUES[intent]


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


FIRST_NAMES = _words("""
James Mary Robert Patricia John Jennifer Michael Linda David Elizabeth William Barbara
Richard Susan Joseph Jessica Thomas Sarah Charles Karen Daniel Nancy Matthew Lisa Anthony Betty Mark
Sandra Paul Ashley Steven Kimberly Andrew Emily Kenneth Donna George Michelle Joshua Carol Kevin
Amanda Brian Melissa Edward Deborah Ronald Stephanie Timothy Rebecca Jason Laura Jeffrey Helen Ryan
Olivia Emma Noah Liam Sophia Ava Lucas Mia Ethan Amelia Harper Oliver Jack Harry Freya Isla Poppy
Priya Rahul Anita Vikram Deepa Arjun Aisha Omar Fatima Yusuf Leila Hassan Mei Wei Jing Hiroshi Yuki
Kenji Sakura Minjun Jiwoo Carlos Lucia Mateo Sofia Diego Elena Pablo Carmen Giulia Marco Luca Chiara
Anna Piotr Katarzyna Tomasz Zofia Ivan Olga Dmitri Svetlana Lars Ingrid Sven Astrid Jan Femke Pieter
Hans Greta Klaus Heidi Pierre Camille Antoine Chloé José María Núria João Inês Søren Zoë Renée Kwame
Ama Chidi Ngozi Tunde Zanele Thabo Amina Siobhan Niamh Declan Rhys Megan Gareth Angus Fiona Callum
Abigail Victor Grace Henry Julia Peter Martha Simon Ruth Adam Naomi Felix Clara Oscar Hazel""")

LAST_NAMES = _words("""
Smith Johnson Williams Brown Jones Garcia Miller Davis Rodriguez Martinez Hernandez Lopez
Wilson Anderson Taylor Moore Jackson Martin Lee Perez Thompson White Harris Clark Lewis Robinson
Walker Young Allen King Wright Scott Torres Nguyen Hill Flores Green Adams Nelson Baker Hall Rivera
Campbell Mitchell Carter Roberts Patel Sharma Singh Kumar Gupta Khan Ahmed Hussain Ali Malik Chen
Wang Zhang Liu Yang Tanaka Suzuki Sato Yamamoto Kim Park Choi Kowalski Nowak Ivanov Petrov Novak
Horvat Müller Schmidt Schneider Fischer Weber Bauer Jensen Nielsen Hansen Larsen Johansson Berg
Lindqvist Virtanen Rossi Russo Ferrari Bianchi Romano Fernández González Silva Santos Oliveira Costa
Dubois Laurent Moreau Lefèvre Okafor Adeyemi Mensah Dlamini Nkosi Murphy Kelly Walsh Byrne Doyle
MacDonald McCarthy O'Brien O'Neill Evans Davies Hughes Morgan Bennett Cooper Parker Turner Collins
Stewart Morris Reed Cook Bell Ward Cox Gray Price Barnes Foster Brooks Hayes Wood Ross Ellis Stone
Fletcher Marsh Holt Pruitt Langley Whitaker Ashworth Pemberton Thornton""")

_ONSETS = _words("""b br c ch d dr f g gr h j k l l m m n n p r r s s sh st t th tr v v w y z""")
_VOWELS = _words("a a a a e e e e i i i o o o u u ai ea ie")
_CODAS = ["", "", "", "", "", "", "n", "r", "l", "m", "s", "nd", "th", "x"]
_RUDE = re.compile(
    r"f[aeiou]+r?t|ass|cum|coc|kok|tit|nig|n[ae]gr|rap|poo|pis|puss|pus|anus|anal|sex|porn|slut|hor|"
    r"nazi|fag|kik|dik|dic|shi|wan|dam|hel|dum|mor|gay|hom|jew|pen|vag|boo|tur|crap|di[ae]|kil|ugl"
)
_LAST_ENDS = _words("""son man ton ley well ford ski wicz ova sen berg stein dez ini elli ard ier kov
field wood worth by shaw nen ula oğlu yan shvili aga oto ura""")


def is_held_out(text: str) -> bool:
    """Return whether a name's word or a number's digits are held out (about one in six).

    Case, spaces and punctuation are ignored, so `07700 900-123` and `07700900123` agree.
    """
    key = "".join(ch for ch in text.lower() if ch.isalnum())
    return zlib.crc32(key.encode()) % 6 == 0


_ACCENTS = dict(zip("aeioucn", ("áàâäãå", "éèêë", "íìîï", "óòôöõø", "úùûü", "ç", "ñ"), strict=True))


@dataclass(frozen=True, slots=True)
class Source:
    """Draws names and numbers from one side of the hold-out split only.

    `hard` is the share of names that are hard to copy: with a mark that few names have (`O'`, `é`), or
    with a word of a recently drawn name, so that two people are easily confused.
    """

    rng: random.Random
    held_out: bool
    hard: float = 0.0
    _drawn: list[str] = field(default_factory=list)  # words of the last names

    def pick(self, make: Callable[[], str]) -> str:
        """Draw until the text is on this source's side of the split."""
        while True:
            text = make()
            if is_held_out(text) == self.held_out:
                return text

    def _made_word(self, ends: tuple[str, ...] | None) -> str:
        rng = self.rng
        count = rng.choice((1, 2, 2, 2, 3)) if ends is None else rng.choice((1, 1, 1, 2))
        parts = [
            rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS) for _ in range(count)
        ]
        word = "".join(parts) + (rng.choice(ends) if ends else rng.choice(("", "a", "o", "y", "e")))
        return self._made_word(ends) if _RUDE.search(word) else word.capitalize()

    def _first(self) -> str:
        real = self.rng.random() < 0.5
        return self.pick(lambda: self.rng.choice(FIRST_NAMES) if real else self._made_word(None))

    def _last(self) -> str:
        roll = self.rng.random()
        if roll < 0.45:
            return self.pick(lambda: self.rng.choice(LAST_NAMES))
        return self.pick(lambda: self._made_word(_LAST_ENDS if roll < 0.8 else None))

    def _marked(self, word: str) -> str:
        """Return the word after `O'` or `D'`, or with an accent on one of its letters."""
        if self.rng.random() < 0.4:
            return self.rng.choice(("O'", "O'", "D'")) + word
        bare = [place for place, letter in enumerate(word) if letter in _ACCENTS]
        if not bare:
            return word
        place = self.rng.choice(bare)
        return word[:place] + self.rng.choice(_ACCENTS[word[place]]) + word[place + 1 :]

    def _pair(self) -> tuple[str, str]:
        """Return a first and a last name."""
        first, last = self._first(), self._last()
        if not self.hard:
            return first, last
        if self.rng.random() < self.hard:
            last = self.pick(lambda: self._marked(self._last()))
        if self.rng.random() < self.hard / 2:
            first = self.pick(lambda: self._marked(self._first()))
        if self._drawn and self.rng.random() < self.hard:
            shared = self.rng.choice(self._drawn)
            first, last = (shared, last) if self.rng.random() < 0.5 else (first, shared)
        self._drawn[:] = [*self._drawn[-4:], first, last]
        return first, last

    def name(self) -> str:
        """Return a caller's name: a first and a last name, sometimes a second or a double one."""
        roll = self.rng.random()
        first, last = self._pair()
        if roll < 0.05:
            return f"{first}-{self._first()} {last}"
        if roll < 0.10:
            return f"{first} {last}-{self._last()}"
        if roll < 0.15:
            return f"{first} {self._first()} {last}"
        if roll < 0.18:
            return f"{first} {self.rng.choice(('van', 'de', 'von', 'da'))} {last}"
        if roll < 0.22:
            return first
        return f"{first} {last}"

    def _digits(self, count: int) -> str:
        return "".join(self.rng.choice("0123456789") for _ in range(count))

    def account(self) -> str:
        """Return an account number: six to nine digits, sometimes with a prefix of letters."""
        letters = "".join(self.rng.choices("ABCDEFGHJKLMNPQRSTUVWXYZ", k=2))
        prefix = self.rng.choice(("", "", "", "", "K-", "AC-", letters))
        count = self.rng.choice((6, 7, 8, 8, 9))
        return self.pick(lambda: prefix + self._digits(count))

    def order(self) -> str:
        """Return an order, ticket or case number, used as a distractor."""
        return self.pick(lambda: self.rng.choice(("", "", "R", "T-")) + self._digits(5))

    def amount(self) -> tuple[str, str]:
        """Return an amount as spoken and as a JSON number: (`£42.50`, `42.50`)."""
        rng = self.rng

        def make() -> str:
            whole = rng.choice((rng.randint(5, 99), rng.randint(5, 99), rng.randint(100, 1999)))
            return str(whole) if rng.random() < 0.4 else f"{whole}.{rng.randint(0, 99):02d}"

        number = self.pick(make)
        form = rng.choice(("£{}", "${}", "€{}", "{} pounds", "{} dollars", "{} euros"))
        return form.format(number), number

    def card(self) -> str:
        """Return a card number in one of the usual groupings; its check digit is always wrong."""
        rng = self.rng

        def make() -> str:
            if rng.random() < 0.15:
                digits = rng.choice(("34", "37")) + self._digits(12)
                sizes: tuple[int, ...] = (4, 6, 5)
            else:
                digits = rng.choice("4456") + self._digits(14)
                sizes = (4, 4, 4, 4)
            digits += str((_luhn_digit(digits) + rng.randint(1, 9)) % 10)
            mark = rng.choice((" ", " ", "-", ""))
            return _grouped(digits, sizes, mark)

        return self.pick(make)

    def phone(self) -> str:
        """Return a phone number as written in the UK, the US or with a country code."""
        rng = self.rng

        def make() -> str:
            d = self._digits
            return rng.choice(
                (
                    f"07{d(3)} {d(6)}",
                    f"07{d(9)}",
                    f"07{d(3)} {d(3)} {d(3)}",
                    f"020 7{d(3)} {d(4)}",
                    f"+44 7{d(3)} {d(6)}",
                    f"({rng.randint(2, 9)}{d(2)}) {rng.randint(2, 9)}{d(2)}-{d(4)}",
                    f"{rng.randint(2, 9)}{d(2)}-{d(3)}-{d(4)}",
                    f"+1 {rng.randint(2, 9)}{d(2)} {d(3)} {d(4)}",
                    f"+49 {d(3)} {d(7)}",
                    f"+{rng.randint(30, 98)} {d(3)} {d(3)} {d(3)}",
                )
            )

        return self.pick(make)


def _luhn_digit(digits: str) -> int:
    """Return the check digit that would make a card number valid."""
    total = 0
    for place, digit in enumerate(reversed(digits)):
        doubled = int(digit) * (2 if place % 2 == 0 else 1)
        total += doubled - 9 if doubled > 9 else doubled
    return -total % 10


def _grouped(digits: str, sizes: tuple[int, ...], mark: str) -> str:
    groups, start = [], 0
    for size in sizes:
        groups.append(digits[start : start + size])
        start += size
    return mark.join(groups)


MONTHS = _words("""January February March April May June July August September October November
December""")
_DAYS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
WEEKDAYS = _words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
ORDINALS = _words("""first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth
thirteenth fourteenth fifteenth sixteenth seventeenth eighteenth nineteenth twentieth twenty-first
twenty-second twenty-third twenty-fourth twenty-fifth twenty-sixth twenty-seventh twenty-eighth
twenty-ninth thirtieth thirty-first""")
_RELATIVE = {
    "past": ("yesterday", *(f"last {day}" for day in WEEKDAYS)),
    "future": ("tomorrow", *(f"next {day}" for day in WEEKDAYS)),
}


def _suffix(day: int) -> str:
    if 10 < day < 14:
        return "th"
    return {1: "st", 2: "nd", 3: "rd"}.get(day % 10, "th")


def date(source: Source, tense: str) -> tuple[str, str, str]:
    """Return a date as spoken after `on`, as spoken alone, and on the ticket.

    `tense` is `past` or `future`. A calendar day is written `12 March`, however it was spoken;
    a relative day as spoken (`last Monday`). Calendar days follow the hold-out rule.
    """
    rng = source.rng
    if rng.random() < 0.25:
        said = rng.choice(_RELATIVE[tense])
        return said, said, said

    def make() -> str:
        month = rng.randrange(12)
        return f"{rng.randint(1, _DAYS[month])} {MONTHS[month]}"

    written = source.pick(make)
    number, month = written.split()
    day = int(number)
    said = rng.choice(
        (
            f"{day} {month}",
            f"{month} {day}{_suffix(day)}",
            f"{month} {day}",
            f"the {day}{_suffix(day)} of {month}",
            f"the {ORDINALS[day - 1]} of {month}",
        )
    )
    return f"on {said}", said, written
