"""The speech model's sentences: the callers' sentences of the language model's generator.

The transcript is what the language model reads: capitals, punctuation, digits (`My account number is
48213377.`), so a transcript needs no rewriting to become a ticket. Of several spellings of the same
sounds one is chosen (`£42.50`, never `42.50 pounds`), so that the audio determines the text. Names come
from closed lists and are ASCII: the spelling of a made-up name cannot be heard.

A sentence belongs to training or to the held-out sets by a checksum of its text, as do its
numbers and full names (`vocabulary.is_held_out`).
"""

from __future__ import annotations

import random
import re
from typing import Final

from ..assistant.generator import Call, Ticket, marked
from ..assistant.vocabulary import FIRST_NAMES, INTENTS, LAST_NAMES, ORDINALS, Source, is_held_out
from ..assistant.wordings import Wordings

FIRST: Final = tuple(name for name in FIRST_NAMES if name.isascii())
LAST: Final = tuple(name for name in LAST_NAMES if name.isascii())

_ORDINAL: Final = re.compile(rf"\bthe ({'|'.join(reversed(ORDINALS))}) of ")
_KINDS: Final = {
    "problem": 30,
    "name": 10,
    "account": 14,
    "name_account": 14,
    "detail": 10,
    "greeting": 5,
    "urgency": 7,
    "chatter": 7,
    "closing": 5,
    "redact": 7,
}
_TENSES: Final = ("past", "future")


class SpokenSource(Source):
    """Names and numbers as a transcript writes them, from one side of the hold-out split."""

    def name(self) -> str:
        """Return a full name, or sometimes a first name alone."""
        rng = self.rng
        if rng.random() < 0.1:
            return rng.choice(FIRST)
        return self.pick(lambda: f"{rng.choice(FIRST)} {rng.choice(LAST)}")

    def account(self) -> str:
        """Return six to nine digits, sometimes after `K-` or `AC-`: other letters are hard to make out."""
        rng = self.rng
        prefix = rng.choice(("", "", "", "", "K-", "AC-"))
        count = rng.choice((6, 7, 8, 8, 9))
        return self.pick(lambda: prefix + self._digits(count))

    def amount(self) -> tuple[str, str]:
        """Return an amount with its currency sign in front, and as a JSON number."""
        rng = self.rng
        sign = rng.choice("£$€")

        def make() -> str:
            whole = rng.choice((rng.randint(5, 99), rng.randint(5, 99), rng.randint(100, 1999)))
            return str(whole) if rng.random() < 0.4 else f"{whole}.{rng.randint(1, 99):02d}"

        number = self.pick(make)
        return sign + number, number

    def card(self) -> str:
        """Return four groups of four digits; as in the generator, the check digit is wrong."""
        while True:
            digits = re.sub(r"\D", "", super().card())
            if len(digits) == 16:
                return " ".join(digits[start : start + 4] for start in range(0, 16, 4))

    def phone(self) -> str:
        """Return a British or an American number in groups."""
        d, rng = self._digits, self.rng
        return self.pick(
            lambda: rng.choice((f"07{d(3)} {d(6)}", f"020 7{d(3)} {d(4)}", f"{d(3)}-{d(3)}-{d(4)}"))
        )


def sentence(source: SpokenSource, wordings: Wordings, *, loose: bool = False) -> str:
    """Return one sentence of a call with its punctuation, on the source's side of the hold-out split.

    `loose` garbles it as `generator.compose` does, so that a model relies on the audio.
    """
    while True:
        text = as_written(marked(_clauses(source, wordings, loose=loose)))
        if is_held_out(text) == source.held_out:
            return text


def as_written(text: str) -> str:
    """Return a text of the generator as a transcript has it: `the 12th of March`, not `the twelfth of`."""
    return _ORDINAL.sub(lambda found: f"the {_numeral(found[1])} of ", text)


def fragment(text: str, rng: random.Random) -> str:
    """Return some words from the middle of a sentence, as in a chunk that was cut too early."""
    words = text.rstrip(".?").split()
    begin = rng.randrange(max(1, len(words) // 2))
    end = rng.randint(min(len(words), begin + 2), len(words))
    return " ".join(words[begin:end]).rstrip(",:")


def _clauses(source: SpokenSource, wordings: Wordings, *, loose: bool) -> str:
    rng = source.rng
    call = Call(source, wordings, Ticket(intent=rng.choice(INTENTS)), loose)
    kind = rng.choices(tuple(_KINDS), tuple(_KINDS.values()))[0]
    detail = rng.choice(
        (wordings.amount[rng.choice(tuple(wordings.amount))], wordings.date[rng.choice(_TENSES)])
    )
    if kind == "problem":
        said = [call.say(wordings.problem[call.ticket.intent])]
        if rng.random() < 0.35:
            said.append(call.say(detail))
    elif kind == "detail":
        said = [call.say(detail)]
    elif kind == "urgency":
        said = [call.say(wordings.urgency[rng.choice(tuple(wordings.urgency))])]
    else:
        said = [call.say(getattr(wordings, kind))]
        if kind == "name" and rng.random() < 0.4:
            said.append(call.say(wordings.account))
    return rng.choice((", ", " and ", ", and ")).join(said)


def _numeral(ordinal: str) -> str:
    day = ORDINALS.index(ordinal) + 1
    ending = "th" if 10 < day < 14 else {1: "st", 2: "nd", 3: "rd"}.get(day % 10, "th")
    return f"{day}{ending}"
