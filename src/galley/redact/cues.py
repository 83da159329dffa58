"""Words that say what a number is: the nearest one before it counts, whatever it is."""

from collections.abc import Sequence
from typing import Final, Literal

from galley.redact.tokens import Token

Cue = Literal["card", "code", "ssn", "phone", "account", "other"]

_REACH: Final = 14
"""Tokens before a number in which a cue counts."""

_AFTER: Final = 5
"""Tokens after a number in which "is my cell" and the like count."""

_PHRASES: Final[dict[Cue, tuple[str, ...]]] = {
    "card": ("card", "visa", "mastercard", "amex", "credit", "debit", "pan"),
    "code": ("cvv", "cvc", "cvv2", "security code", "verification value", "on the back"),
    "ssn": ("social", "ssn", "social security"),
    "phone": (
        "phone", "telephone", "cell", "mobile", "call", "reach", "callback", "contact", "text", "fax",
        "dial", "landline", "call back",
    ),
    "account": ("account number", "routing", "iban", "sort code", "bank account", "checking account"),
    "other": (
        "order", "tracking", "invoice", "ticket", "confirmation", "case", "reference", "serial", "part",
        "model", "flight", "booking", "quantity", "total", "year", "extension", "article", "item", "sku",
        "meter", "customer number", "policy", "zip",
    ),
}  # fmt: skip
_CUES: Final = {tuple(phrase.split()): cue for cue, known in _PHRASES.items() for phrase in known}
_LONGEST: Final = max(map(len, _CUES))


def cue_before(tokens: Sequence[Token], at: int, reach: int = _REACH) -> Cue | None:
    """Return the cue nearest before the token ``at``; the longest phrase, of those that end there."""
    words = [token.word for token in tokens[max(0, at - reach) : at]]
    return next((cue for end in range(len(words), 0, -1) if (cue := _cue_at(words, end))), None)


def cue_after(tokens: Sequence[Token], last: int) -> Cue | None:
    """Return the first cue in the tokens that follow the token ``last``."""
    words = [token.word for token in tokens[last + 1 : last + 1 + _AFTER]]
    return next((cue for end in range(1, len(words) + 1) if (cue := _cue_at(words, end))), None)


def _cue_at(words: Sequence[str], end: int) -> Cue | None:
    for length in range(min(_LONGEST, end), 0, -1):
        phrase = tuple(words[end - length : end])
        cue = _CUES.get(phrase) or _CUES.get((*phrase[:-1], phrase[-1].rstrip("s")))
        if cue is not None:
            return cue
    return None
