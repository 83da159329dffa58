"""E-mail and postal addresses, written or spoken in English."""

import re
from collections.abc import Iterator, Sequence
from typing import Final

from galley.redact.name_tables import STATES
from galley.redact.spans import Span, words
from galley.redact.tokens import Token, runs

_EMAIL: Final = re.compile(r"(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63})+")
_DOMAINS: Final = frozenset(
    words(
        "com org net edu gov mil int info biz io co us uk ca de fr es it nl ie au nz in jp ch at be "
        "se no dk fi pl eu me tv ai app dev"
    )
)
_JOINTS: Final = frozenset({"dot", "underscore", "dash", "hyphen", "period", ".", "_", "-"})

_LABELS: Final = 8
"""Most joined parts before and after the "at" of a spoken address."""

_SPELLED: Final = 40
"""Most tokens of the part before it."""

_STREETS: Final = frozenset(
    words(
        "street st avenue ave road rd lane ln drive dr court ct boulevard blvd terrace parkway pkwy "
        "highway hwy crescent"
    )
)
"""Kinds of streets that are little else."""

_PLACES: Final = frozenset(
    words(
        "alley annex arcade bayou beach bend bluff bottom branch bridge brook burg bypass camp canyon "
        "cape causeway center centre circle cir cliff club common corner course cove creek crest "
        "crossing crossroad curve dale dam divide estate expressway extension fall ferry field flat "
        "ford forest forge fork fort freeway garden gateway glen green grove harbor haven height hill "
        "hollow inlet island isle junction key knoll lake land landing light loaf lock lodge loop "
        "mall manor meadow mews mill mission motorway mount mountain neck orchard oval overpass park "
        "pass passage path pike pine place pl plain plaza point port prairie radial ramp ranch rapid "
        "rest ridge river route row rue run shoal shore skyway spring spur square sq station "
        "stravenue stream summit throughway trace track trafficway trail trl tunnel turnpike "
        "underpass union valley via viaduct view village ville vista walk wall way well close ter"
    )
)
"""Further kinds of streets (USPS Publication 28, appendix C1), which count with a capital only."""

_UNITS: Final = frozenset(words("apartment apt flat studio suite ste unit floor room number no #"))
_POSTCODE: Final = re.compile(
    r"\b(?:[A-Z]{1,2}\d[A-Z\d]? ?\d[A-Z]{2}|[A-Z]\d[A-Z] ?\d[A-Z]\d)\b(?!-)", re.IGNORECASE
)
"""British and Canadian ones."""
_TO_POSTCODE: Final = re.compile(r"[^.?!\n]{0,80}")
"""Flat, street and town before a postcode."""
_FLAT: Final = re.compile(r"\b(?:flat|studio|apartment|unit) \d{1,4}[a-z]?\b,? ", re.IGNORECASE)
_FORCES: Final = re.compile(
    r"\b(?:(?:PSC|Unit|CMR) \d{1,5},? Box \d{1,5}|US[A-Z]{1,3} [A-Z][\w' -]{1,30}),? [AFD]PO,? A[AEP],? "
    r"\d{5}(?:-\d{4})?\b"
)
"""Addresses of the US forces."""
_STATES: Final = STATES | frozenset(words("AA AE AP PR GU AS MP VI FM MH PW"))
"""Postal abbreviations of states, forces and territories."""
_STATE_NAMES: Final = frozenset(
    words(
        "alabama alaska arizona arkansas california colorado connecticut delaware florida georgia "
        "hawaii idaho illinois indiana iowa kansas kentucky louisiana maine maryland massachusetts "
        "michigan minnesota mississippi missouri montana nebraska nevada hampshire jersey mexico york "
        "carolina dakota ohio oklahoma oregon pennsylvania island tennessee texas utah vermont "
        "virginia washington wisconsin wyoming"
    )
)
_STREET_WORDS: Final = 4
"""Most words between a house number and the kind of street."""

_ORDINAL_ENDS: Final = frozenset(words("st nd rd th"))
_TAIL: Final = 14
"""Most tokens after the street in which flat, town, state and postcode are looked for."""


def emails(text: str, tokens: Sequence[Token]) -> Iterator[Span]:
    """Yield e-mail addresses: ``jo@example.org``, "jo dot smith at example dot org"."""
    for match in _EMAIL.finditer(text):
        yield Span("email", *match.span())
    for at, token in enumerate(tokens):
        if token.word not in ("at", "@"):
            continue
        last = _domain(tokens, at + 1)
        if last is not None:
            yield Span("email", tokens[_local(tokens, at)].start, tokens[last].end)


def _domain(tokens: Sequence[Token], at: int) -> int | None:
    """Return the last token of a spoken domain that begins at a token; None if there is none."""
    last = None
    index = at
    for _ in range(_LABELS):
        if index + 2 >= len(tokens) or not tokens[index].word.isalnum():
            break
        joint = index + 1
        while joint < len(tokens) - 1 and joint - index < 4 and tokens[joint].word.isalnum():
            if tokens[joint].word in _JOINTS:
                break
            joint += 1
        if joint + 1 == len(tokens) or tokens[joint].word not in ("dot", ".", "dash", "-"):
            break
        ending = tokens[joint + 1]
        if tokens[joint].word in ("dot", ".") and ending.word in _DOMAINS:
            adjoining = tokens[joint].word == "dot" or ending.start == tokens[joint].end
            last = joint + 1 if adjoining else last
        index = joint + 1
    return last


def _local(tokens: Sequence[Token], at: int) -> int:
    """Return the first token of the part before "at": joined words, letters and numbers, or one word."""
    first = at - 1 if at else at
    while first > max(0, at - _SPELLED):
        joined = (
            tokens[first - 1].word in _JOINTS and first > 1 and tokens[first - 2].word.isalnum()
        )
        if joined and (
            tokens[first - 1].text not in ".-" or tokens[first].start == tokens[first - 1].end
        ):
            first -= 2
            continue
        if tokens[first - 1].end == tokens[first].start and tokens[first - 1].word.isalnum():
            first -= 1
            continue
        spelled = len(tokens[first].text) == 1 or tokens[first].word.isdecimal()
        before = tokens[first - 1]
        if spelled and before.word.isalnum() and (len(before.text) == 1 or before.word.isdecimal()):
            first -= 1
            continue
        break
    return first


def addresses(text: str, tokens: Sequence[Token]) -> Iterator[Span]:
    """Yield street addresses with what follows them, flats with a postcode, and post office boxes."""
    yield from (Span("address", *match.span()) for match in _FORCES.finditer(text))
    for match in _FLAT.finditer(text):
        if (end := _postcode_after(text, match.end())) is not None:
            yield Span("address", match.start(), end)
    numbers = {run.pieces[-1].last: run.pieces for run in runs(tokens)}
    for index, token in enumerate(tokens):
        pieces = numbers.get(index)
        if pieces is None:
            continue
        first = _number_start(tokens, index, [piece.first for piece in pieces])
        if (box := _box(tokens, first)) is not None:
            yield Span("address", tokens[box].start, token.end)
        elif (street := _street(tokens, index)) is not None:
            last = tokens[_tail(tokens, street)].end
            end = _postcode_after(text, tokens[street].end) or last
            yield Span("address", tokens[first].start, max(last, end))


def _postcode_after(text: str, at: int) -> int | None:
    """Return the end of a British or Canadian postcode in the same sentence; None if there is none."""
    rest = _TO_POSTCODE.match(text, at)
    found = rest and _POSTCODE.search(text, at, rest.end())
    return found.end() if found else None


def _number_start(tokens: Sequence[Token], last: int, firsts: Sequence[int]) -> int:
    """Return the first token of a house number: the pieces of its run that follow each other directly."""
    first = firsts[-1]
    for start in reversed(firsts[:-1]):
        between = tokens[start + 1 : first]
        if any(token.word in (".", ",", "\n") for token in between) or last - start > 8:
            break
        first = start
    return first


def _box(tokens: Sequence[Token], number: int) -> int | None:
    for at in range(max(0, number - 5), number):
        rest = "".join(token.word for token in tokens[at:number]).replace(".", "")
        if rest in ("pobox", "postofficebox"):
            return at
    return None


def _street(tokens: Sequence[Token], number: int) -> int | None:
    """Return the token that ends a street's name after a house number; None if no street follows."""
    count = 0
    for at in range(number + 1, min(len(tokens), number + 2 + _STREET_WORDS + 1)):
        token = tokens[at]
        if not (token.word.isalpha() or token.text in ".'\u2019"):
            return None
        if not count and token.word in _ORDINAL_ENDS and token.start == tokens[number].end:
            return None
        if count and _is_street(token) and not _goes_on(tokens, at):
            return at
        count += token.word.isalpha()
        if count > _STREET_WORDS:
            return None
    return None


def _goes_on(tokens: Sequence[Token], at: int) -> bool:
    """Return whether the kind of street is itself a part of the name ("Park View Road")."""
    return at + 1 < len(tokens) and _is_street(tokens[at + 1])


def _is_street(token: Token) -> bool:
    one, capital = token.word.removesuffix("s"), token.text[0].isupper()
    return bool({token.word, one} & _STREETS) or (capital and bool({token.word, one} & _PLACES))


def _tail(tokens: Sequence[Token], street: int) -> int:
    """Return the last token of an address: flat, town, state and postcode, as far as they follow."""
    last = street
    if last + 1 < len(tokens) and tokens[last + 1].text == "." and tokens[last].word in (
        "st", "ave", "rd", "ln", "dr", "ct", "blvd", "pl", "ter", "cir", "sq", "pkwy", "hwy", "trl",
    ):  # fmt: skip
        last += 1
    end = min(len(tokens), street + 1 + _TAIL)
    for at in range(street + 1, end):
        word, text = tokens[at].word, tokens[at].text
        unit = _unit(tokens, at)
        letter = at == last + 1 and len(word) == 1 and word.isalpha()
        if unit or (letter and last > street):
            last = unit or at
        elif text in _STATES or word in _STATE_NAMES:
            last = _postcode(tokens, at)
            break
        elif text in ".?!\n" and at > last:
            break
    return last


def _unit(tokens: Sequence[Token], at: int) -> int | None:
    """Return the token that ends "apartment 4" or "Apt. 4"; None if no such thing begins at a token."""
    number = at + 2 if tokens[at + 1 : at + 2] and tokens[at + 1].text == "." else at + 1
    if tokens[at].word in _UNITS and number < len(tokens) and tokens[number].word.isalnum():
        return number if len(tokens[number].text) <= 5 else None
    return None


def _postcode(tokens: Sequence[Token], state: int) -> int:
    """Return the token that ends the postcode after a state; the state itself if none follows."""
    at = state + 1
    while at < len(tokens) and tokens[at].word in (",", ".", "zip", "code", "postcode", "is"):
        at += 1
    for run in runs(tokens[at : at + 12]):
        digits, last = "", None
        if run.pieces[0].first:
            break
        for piece in run.pieces:
            digits += piece.chars
            if len(digits) in (5, 9):
                last = at + piece.last
        if last is not None:
            return last
        break
    return state
