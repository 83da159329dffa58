"""Names of people and dates of birth, found by the words around them."""

import re
from collections.abc import Iterator, Sequence, Set
from typing import Final

from galley.redact.spans import Span, words
from galley.redact.tokens import Token

_TITLES: Final = frozenset(words("mr mrs ms miss mister missus dr doctor professor prof sir madam"))
_BEFORE: Final = frozenset(
    {
        "my name", "my name's", "name", "name's", "i am", "i'm", "this is", "it's", "speaking with",
        "speaking to", "talking to", "talk to", "spoke with", "spoke to", "speak to", "speak with",
        "name of", "under the name", "under", "called", "named", "hi", "hello", "hey", "thank you",
        "thanks", "dear", "account holder", "cardholder", "patient", "customer", "caller",
        "husband", "wife", "son", "daughter", "mother", "father", "brother", "sister",
        "regards", "sincerely", "goodbye", "bye",
        "first name", "last name", "surname", "for", "from", "with", "ask",
    }
)  # fmt: skip
_WEAK: Final = frozenset(
    {"i am", "i'm", "this is", "it's", "called", "under", "for", "from", "with", "ask"}
)
"""Followed by other words as often as by names, so a name needs two capitalized words here."""

_AFTER: Final = ("speaking", "here", "calling", "on the line", "is my name")
_LONGEST_PHRASE: Final = max(len(phrase.split()) for phrase in _BEFORE)
_NAME_WORDS: Final = 4

_NOT_NAMES: Final = frozenset(
    words(
        "i i'm i'll i've i'd the a an and but or so well okay ok yes no sir madam please thank thanks "
        "hello hi monday tuesday wednesday thursday friday saturday sunday january february march "
        "april may june july august september october november december english spanish french german "
        "american british mastercard visa amex paypal google amazon microsoft apple customer support "
        "service team good morning afternoon evening you your my our we they it this that there here "
        "what how when where can could would will just let not very sorry sure calling speaking "
        "street avenue road lane drive inc llc ltd corp company bank"
    )
)
_PARTICLES: Final = frozenset(words("de da van von der den la le bin al o di del st mc"))

_MONTHS: Final = (
    "january|february|march|april|may|june|july|august|september|october|november|december"
    "|jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec"
)
_ORDINALS: Final = (
    "first|second|third|fourth|fifth|sixth|seventh|eighth|ninth|tenth|eleventh|twelfth|thirteenth|fourteenth"
    "|fifteenth|sixteenth|seventeenth|eighteenth|nineteenth|twentieth|thirtieth"
    "|twenty[- ](?:first|second|third|fourth|fifth|sixth|seventh|eighth|ninth)|thirty[- ]first"
)
_NUMBER: Final = (
    "(?:one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|thirteen|fourteen|fifteen|sixteen"
    "|seventeen|eighteen|nineteen|twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety|oh|o|zero|hundred"
    "|thousand|and)"
)
_DAY: Final = rf"(?:\d{{1,2}}(?:st|nd|rd|th)?|{_ORDINALS})"
_YEAR: Final = rf"(?:(?:19|20)\d{{2}}|'\d{{2}}|{_NUMBER}(?:[- ]{_NUMBER}){{1,4}})"
_DATE: Final = re.compile(
    rf"\b(?:\d{{1,2}}[/.-]\d{{1,2}}[/.-](?:\d{{4}}|\d{{2}})|(?:19|20)\d{{2}}[/.-]\d{{1,2}}[/.-]\d{{1,2}}"
    rf"|(?:{_MONTHS})\.?,? (?:the )?{_DAY}(?:,? (?:of )?{_YEAR})?"
    rf"|(?:the )?{_DAY} (?:of )?(?:{_MONTHS})\.?(?:,? {_YEAR})?)(?!\w)",
    re.IGNORECASE,
)
_BIRTH: Final = re.compile(
    r"\b(?:born|birth|birthday|birthdate|birth date|d\.?o\.?b\.?)\b", re.IGNORECASE
)
_BIRTH_REACH: Final = 120
"""Characters before a date in which a word about birth counts."""


def birth_dates(text: str, tokens: Sequence[Token]) -> Iterator[Span]:
    """Yield dates shortly after a word about birth."""
    for cue in _BIRTH.finditer(text):
        match = _DATE.search(text, cue.end(), cue.end() + _BIRTH_REACH)
        if match is not None:
            yield Span("date_of_birth", *match.span())


def names(text: str, tokens: Sequence[Token]) -> Iterator[Span]:
    """Yield capitalized names by what is said around them, and all other uses of the same words.

    A transcript of a model that writes no capitals has names after "my name is" only.
    """
    found: list[tuple[int, int]] = []
    for at in range(len(tokens)):
        last = _name(tokens, at)
        if last is not None and (not found or at > found[-1][1]):
            found.append((at, last))
    for first, last in found:
        yield Span("name", tokens[first].start, tokens[last].end)
    words = {token.text for first, last in found for token in tokens[first : last + 1]}
    yield from name_words(tokens, words)


def name_words(tokens: Sequence[Token], words: Set[str]) -> Iterator[Span]:
    """Yield all uses of the capitalized words among ``words``, also with ``'s``."""
    for token in tokens:
        text = token.text.removesuffix("'s").removesuffix("\u2019s")
        if text in words and len(text) > 2 and _capital(token):
            yield Span("name", token.start, token.end)


def _name(tokens: Sequence[Token], at: int) -> int | None:
    """Return the last token of a name that begins at a token; None if none does."""
    if not _capital(tokens[at]) or tokens[at].word in _TITLES:
        return None
    last = at
    for index in range(at + 1, min(len(tokens), at + _NAME_WORDS)):
        if _is_capitalized(tokens[index]):
            last = index
        elif not (tokens[index].word in _PARTICLES or tokens[index].text in "-"):
            break
    words = [token.word for token in tokens[max(0, at - _LONGEST_PHRASE - 1) : at]]
    if (words and words[-1] in _TITLES) or (
        words[-2:-1] and words[-2] in _TITLES and words[-1] == "."
    ):
        return last
    if words and words[-1] in (",", "is", ":"):
        words.pop()
    phrases = {" ".join(words[-length:]) for length in range(1, _LONGEST_PHRASE + 1)} & _BEFORE
    after = " ".join(token.word for token in tokens[last + 1 : last + 4])
    if phrases - _WEAK or after.startswith(_AFTER) or (phrases and last > at):
        return last
    return None


def _capital(token: Token) -> bool:
    return _is_capitalized(token) and token.word not in _NOT_NAMES


def _is_capitalized(token: Token) -> bool:
    return token.text[0].isupper() and token.text[1:] != token.text[1:].upper()
