"""Names of people, found by what is said around them and by lists of names.

A capital alone says little: transcripts have one at the beginning of a sentence, and for towns and firms.
"""

import lzma
from collections.abc import Iterator, Sequence, Set
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

from galley.redact.name_tables import (
    AFTER,
    BEFORE,
    CONTRACTIONS,
    DETERMINERS,
    DOES,
    ENDS,
    FIRM_FORMS,
    NO_PERSON,
    NOT_NAMES,
    OF_PLACES,
    PARTICLES,
    PLACES,
    SAYS_WHO,
    SPELLING,
    STATES,
    TITLES,
    TOWNS,
    WEAK,
    WHERE,
)
from galley.redact.spans import Span, words
from galley.redact.tokens import Token

_FILE: Final = Path(__file__).with_name("names.txt.xz")
"""Made by ``recipes.names``."""

_LONGEST_PHRASE: Final = max(len(phrase.split()) for phrase in BEFORE)
_NAME_WORDS: Final = 4

_SPELLING_REACH: Final = 6
_SPELLED: Final = 3
"""Least letters of a name that is spelled out."""


class Lists(NamedTuple):
    """Words in lower case.

    Attributes:
        first, last: first names and surnames.
        also_words: names that are English words.
        common: common words.
        listed: all names.
    """

    first: frozenset[str]
    last: frozenset[str]
    also_words: frozenset[str]
    common: frozenset[str]
    listed: frozenset[str]


@lru_cache(maxsize=1)
def lists() -> Lists:
    """Return the lists of names, read once."""
    lines = lzma.decompress(_FILE.read_bytes()).decode().splitlines()
    first, last, also_words, common = (frozenset(words(line)) for line in lines)
    return Lists(first, last, also_words, common, first | last)


def names(text: str, tokens: Sequence[Token]) -> Iterator[Span]:
    """Yield names, and all other uses of the same capitalized words."""
    found: list[tuple[int, int]] = []
    for at in range(len(tokens)):
        if found and at <= found[-1][1]:
            continue
        last = _announced(tokens, at)
        if last is None:
            last = _listed(tokens, at)
        if last is None and found and found[-1][1] == at - 2:
            last = _joined(tokens, at)
        if last is not None:
            found.append((at, last))
    for first, last in found:
        yield Span("name", tokens[first].start, tokens[last].end)
    for first, last in _spelled(tokens):
        yield Span("name", tokens[first].start, tokens[last].end)
    known = {token.text for first, last in found for token in tokens[first : last + 1]}
    yield from name_words(tokens, known)


def name_words(tokens: Sequence[Token], known: Set[str]) -> Iterator[Span]:
    """Yield all uses of the capitalized words among ``known``, also with ``'s``."""
    for token in tokens:
        text = token.text.removesuffix("'s").removesuffix("\u2019s")
        if text in known and len(text) > 2 and _capital(token):
            yield Span("name", token.start, token.end)


def _announced(tokens: Sequence[Token], at: int) -> int | None:
    """Return the last token of a name that the words around it announce; None if none begins at ``at``."""
    phrases = _phrases(tokens, at)
    if not _is_capitalized(tokens[at]):
        return _without_capitals(tokens, at) if phrases & SAYS_WHO else None
    if _has_title(tokens, at) and len(tokens[at].text) > 1:
        return _run(tokens, at)
    if not _capital(tokens[at]) or tokens[at].word in TITLES:
        return None
    last = _run(tokens, at)
    strong = phrases - WEAK
    after = " ".join(token.word for token in tokens[last + 1 : last + 4])
    if not (strong or after.startswith(AFTER) or (phrases and last > at)):
        return None
    if phrases & SAYS_WHO or after.startswith(AFTER):
        return last
    return None if _is_other(tokens, at, last) else last


def _listed(tokens: Sequence[Token], at: int) -> int | None:
    """Return the last token of a name that the lists know; None if none begins at ``at``."""
    if not _is_capitalized(tokens[at]):
        return _listed_without_capitals(tokens, at)
    if not _capital(tokens[at]) or tokens[at].word in TITLES:
        return None
    known = lists()
    last = _run(tokens, at)
    word = _bare(tokens[at])
    if _is_other(tokens, at, last):
        return None
    if last > at:
        return last if _is_pair(word, _bare(tokens[last])) else None
    if word in known.also_words or word in PLACES:
        return None
    if word in known.first:
        return at
    if word in known.common or _is_place(tokens, at):
        return None
    if _phrases(tokens, at) & WEAK:
        return None
    is_name = word in known.last or not _begins_sentence(tokens, at) or _acts(tokens, at)
    return at if is_name else None


def _joined(tokens: Sequence[Token], at: int) -> int | None:
    """Return the last token of a name that "and" or a comma joins to the name before."""
    known, word = lists(), tokens[at].word
    if tokens[at - 1].word not in (",", "and", "or") or not _capital(tokens[at]):
        return None
    last = _run(tokens, at)
    plain = word in known.common and word not in known.listed
    return None if plain or _is_other(tokens, at, last) else last


def _is_pair(word: str, following: str) -> bool:
    """Return whether two capitalized words are a first name and a surname.

    A word that is neither listed nor a common English word may be a foreign name. A firm may have such a
    name, too, but seldom one of two words.
    """
    known = lists()
    if word in known.first and (following in known.listed or following not in known.common):
        return True
    if following in known.listed and following not in known.also_words:
        return word not in known.common
    return all({word, following}.isdisjoint(others) for others in (known.common, PLACES))


def _without_capitals(tokens: Sequence[Token], at: int) -> int | None:
    """Return the last token of a name in lower case whose first word may be any that is not common."""
    known = lists()
    name = tokens[at].word
    if not name.isalpha() or (name in known.common and name not in known.first):
        return None
    return _extended(tokens, at)


def _listed_without_capitals(tokens: Sequence[Token], at: int) -> int | None:
    """Return the last token of a first name with a surname, both in lower case and not English words."""
    known = lists()
    name = tokens[at].word
    if name not in known.first or name in known.also_words:
        return None
    last = _extended(tokens, at)
    return last if last > at else None


def _extended(tokens: Sequence[Token], at: int) -> int:
    """Return the last token of a name in lower case, whose further words are in the lists."""
    known, last = lists(), at
    for index in range(at + 1, min(len(tokens), at + _NAME_WORDS)):
        word = tokens[index].word
        if word in known.listed and word not in known.also_words and word not in known.common:
            last = index
        elif word not in PARTICLES:
            break
    return last


def _spelled(tokens: Sequence[Token]) -> Iterator[tuple[int, int]]:
    """Yield names that are spelled out after a word about spelling: "S-M-Y-T-H", "S as in Sam, M ..."."""
    at = 0
    while at < len(tokens):
        letters, index, last = 0, at, at
        while index < len(tokens):
            if (end := _letter(tokens, index)) is not None:
                letters, last, index = letters + 1, end, end + 1
            elif letters and tokens[index].text in "-,.":
                index += 1
            else:
                break
        before = {token.word for token in tokens[max(0, at - _SPELLING_REACH) : at]}
        if letters >= _SPELLED and before & SPELLING:
            yield at, last
        at = max(last, at) + 1


def _letter(tokens: Sequence[Token], at: int) -> int | None:
    """Return the last token of a letter that is spelled, with what explains it; None if there is none."""
    text = tokens[at].text
    if len(text) != 1 or not text.isalpha():
        return None
    for phrase in (("as", "in"), ("like",), ("for",)):
        end = at + len(phrase) + 1
        words_after = tuple(token.word for token in tokens[at + 1 : end])
        if words_after == phrase and end < len(tokens) and tokens[end].word[0] == text.lower():
            return end
    return at


def _run(tokens: Sequence[Token], at: int) -> int:
    """Return the last token of the capitalized words that begin at one; particles may be between."""
    last = at
    for index in range(at + 1, min(len(tokens), at + _NAME_WORDS + 2)):
        initial = tokens[index].text == "." and len(tokens[index - 1].text) == 1
        if _is_capitalized(tokens[index]) and (
            tokens[index].word not in NOT_NAMES or tokens[index].word in NO_PERSON
        ):
            last = index
        elif not (tokens[index].word in PARTICLES or tokens[index].text == "-" or initial):
            break
    return last


def _phrases(tokens: Sequence[Token], at: int) -> Set[str]:
    """Return the phrases that announce a name and end before a token."""
    before = [token.word for token in tokens[max(0, at - _LONGEST_PHRASE - 1) : at]]
    found = {" ".join(before[-length:]) for length in range(1, _LONGEST_PHRASE + 1)}
    if before and before[-1] in (",", "is", ":", "was", "?"):
        before.pop()
        found |= {" ".join(before[-length:]) for length in range(1, _LONGEST_PHRASE + 1)}
    return found & BEFORE


def _has_title(tokens: Sequence[Token], at: int) -> bool:
    before = [token.word for token in tokens[max(0, at - 2) : at]]
    return bool(before) and (before[-1] in TITLES or (before[-1] == "." and before[0] in TITLES))


def _is_other(tokens: Sequence[Token], at: int, last: int) -> bool:
    """Return whether capitalized words name a place, a firm or a thing rather than a person."""
    before = tokens[at - 1] if at else None
    if tokens[at].word in OF_PLACES:
        return True
    if before is not None and before.word in OF_PLACES and _is_capitalized(before):
        return True
    if before is not None and before.word in DETERMINERS and last == at:
        return True
    if last > at and tokens[last].word in NO_PERSON:
        return True
    following = [token.text for token in tokens[last + 1 : last + 3]]
    name = following[0] if following else ""
    if name.lower() in NO_PERSON and (name[0].isupper() or name in FIRM_FORMS):
        return True
    state = (
        following[:1] == [","]
        and following[1:2]
        and (following[1] in STATES or following[1].lower() in PLACES)
    )
    return bool(state) or following[:1] == ["&"]


def _is_place(tokens: Sequence[Token], at: int) -> bool:
    """Return whether a single unknown word is rather the name of a town, or a part of a firm's."""
    around = [*tokens[max(0, at - 1) : at], *tokens[at + 1 : at + 2]]
    if any(len(token.text) > 1 and token.text.isupper() for token in around):
        return True
    before = tokens[at - 1].word if at else ""
    return before in WHERE or _bare(tokens[at]).endswith(TOWNS)


def _acts(tokens: Sequence[Token], at: int) -> bool:
    """Return whether something follows that people do, or "and" with another capitalized word."""
    following = [token.word for token in tokens[at + 1 : at + 2]]
    if following == ["and"]:
        return at + 2 < len(tokens) and _capital(tokens[at + 2])
    return bool(DOES.intersection(following))


def _begins_sentence(tokens: Sequence[Token], at: int) -> bool:
    return at == 0 or tokens[at - 1].text in ENDS


def _bare(token: Token) -> str:
    return token.word.removesuffix("'s")


def _capital(token: Token) -> bool:
    """Return whether a token may begin a name; an initial alone may not."""
    word = token.word
    other = word in NOT_NAMES or word.endswith(CONTRACTIONS)
    return len(word) > 1 and _is_capitalized(token) and not other


def _is_capitalized(token: Token) -> bool:
    return token.text[0].isupper() and (len(token.text) == 1 or not _is_abbreviation(token.text))


def _is_abbreviation(text: str) -> bool:
    """Return whether a word is in capitals, perhaps in the plural: "CEO", "CEOs"."""
    singular = text.removesuffix("s")
    return text.isupper() or (len(singular) > 1 and singular.isupper())
