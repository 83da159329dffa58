"""Facts in two questions that must agree before one gets the other's answer.

Embeddings hardly see them: "from Oslo to Rome" and "from Rome to Oslo" have nearly the same vector, and so
have two questions that differ in a number or a "not". The comparison is of words. It errs towards a miss:
what it does not understand makes texts different, never equal. Words are English, negations of other
languages are known as well, and numbers, codes and names are found in any language that has spaces.
"""

import itertools
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from galley.cache.fact_stems import OPPOSITE_OF, SAME_ACTIONS, SAME_THINGS, stem
from galley.cache.fact_words import (
    CONTRARY,
    DATES,
    DIRECTIONS,
    FUNCTION_WORDS,
    MONTHS,
    NEEDS_NUMBER,
    NEGATING_LETTERS,
    NEGATIONS,
    NUMBERS,
    OF_GERMAN,
    PREFIXES,
    QUESTION_KINDS,
    UNITS,
    words,
)

_TOKEN: Final = re.compile(
    r"\d{4}-\d{1,2}-\d{1,2}"  # a date
    r"|\d+(?:[.,:/]\d+)*"  # a number, a time, a date with strokes, a version
    r"|[^\W\d_]+(?:['\u2019.&+-][^\W_]+)*(?:\+\+|#)?"  # a word: don't, e-mail, C++
    r"|[%$€£¥₹°]"
)
_CODE: Final = re.compile(r"(?<![\w.+-])(?=[\w.+-]*\d)(?=[\w.+-]*[^\W\d_])[\w]+(?:[.+-][\w]+)*")
"""A word with digits, such as a product's model; numbers with a unit attached are told apart."""
_ATTACHED_UNIT: Final = re.compile(r"(\d+(?:[.,]\d+)*)-?([^\W\d_]+|%)")
_ORDINAL: Final = re.compile(r"(\d+)(?:st|nd|rd|th)")
_ISO_DATE: Final = re.compile(r"\d{4}-\d{1,2}-\d{1,2}")
_SENTENCE_END: Final = re.compile(r"[.!?:;]\s*$|\n\s*$|[\"“(]\s*$")
_QUOTED: Final = re.compile(r"\"([^\"]{1,200})\"|“([^”]{1,200})”|`([^`]{1,200})`")
_SIGN: Final = re.compile(
    r"[+*^=<>\u2264\u2265\u2260\u2248\u00d7\u00f7\u00b1\u221a]"
    r"|(?:(?<![\w)])|(?<=[\d)]))[-\u2212\u2013]\s*(?=[\d(])"  # a minus, no hyphen and no dash between words
)
_LIST_MARKER: Final = re.compile(r"^[ \t]*(?:[-*•#>]+|(\d{1,2})[.)])[ \t]+", re.MULTILINE)
"""What precedes an item of a list, or a heading: the word after it begins a sentence."""
_SAME_SIGNS: Final = str.maketrans("\u00d7\u2212\u2013", "*--")
_GROUPED: Final = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_THOUSANDS_OR_PART: Final = re.compile(r"\d{1,3}\.\d{3}")
"""10.000 is ten in English and ten thousand in German."""

_NO_CONTENT: Final = FUNCTION_WORDS | DIRECTIONS.keys()
_NEVER_NAMES: Final = FUNCTION_WORDS | MONTHS.keys() | DATES | UNITS.keys()
_UNWRITTEN: Final = words("dont doesnt cant wont isnt didnt")
"""Negations without their apostrophe."""


@dataclass(frozen=True)
class _Word:
    """A word of a text: as compared, as written, and whether it begins a sentence."""

    plain: str
    written: str
    first: bool


class Facts:
    """The facts of one text."""

    def __init__(self, text: str) -> None:
        """Find them; takes some tens of microseconds for a sentence."""
        self.numbers: Counter[str] = Counter()
        self.units: set[str] = set()
        self.dates: set[str] = set()
        self.quoted = {_folded(next(filter(None, found))) for found in _QUOTED.findall(text)}
        self.signs = Counter(
            sign.strip().translate(_SAME_SIGNS) for sign in _SIGN.findall(_ISO_DATE.sub(" ", text))
        )
        self._text = text
        self._words: list[_Word] = []
        self._take_codes()
        self._take_tokens()

    def _take_codes(self) -> None:
        """Find numbers with attached units, ordinals and codes, which are several tokens otherwise."""
        self.codes: set[str] = set()

        def take(match: re.Match[str]) -> str:
            code = match[0].lower()
            unit = _ATTACHED_UNIT.fullmatch(code)
            if (ordinal := _ORDINAL.fullmatch(code)) is not None:
                return f" {ordinal[1]} "
            if unit is not None and unit[2] in UNITS:
                return f" {unit[1]} {unit[2]} "
            self.codes.add(code.replace("-", ""))
            return f" {match[0]} " if code[0].isalpha() else " "

        self._spaced = _CODE.sub(take, self._text)

    def _take_tokens(self) -> None:
        after_number = False
        for match in _TOKEN.finditer(self._spaced):
            written = match[0].replace("\u2019", "'")
            plain = written.lower()
            if written[0].isdigit():
                numbers = _numbers(written)
                self.numbers.update(numbers)
                self._words += [_Word(number, number, first=False) for number in numbers]
                after_number = True
                continue
            first = not self._words or bool(
                _SENTENCE_END.search(self._spaced[max(0, match.start() - 4) : match.start()])
            )
            self._take_word(written, plain, first=first, after_number=after_number)
            after_number = plain in NUMBERS

    def _take_word(self, written: str, plain: str, *, first: bool, after_number: bool) -> None:
        month = plain in MONTHS and (plain != "may" or (written == "May" and not first))
        unit = UNITS.get(plain)
        if month and not (plain == "march" and not written[0].isupper()):
            self.numbers[MONTHS[plain]] += 1
        elif unit is not None and (after_number or plain not in NEEDS_NUMBER):
            self.units.add(unit)
        elif plain in NUMBERS and plain != "one":  # which is a pronoun more often
            self.numbers[NUMBERS[plain]] += 1
        elif plain in DATES:
            self.dates.add(plain)
        if plain[0].isalpha():
            self._words.append(_Word(plain, written, first))

    @cached_property
    def words(self) -> list[str]:
        """All words, in lower case and in order."""
        return [word.plain for word in self._words]

    @cached_property
    def word_set(self) -> frozenset[str]:
        """The words, and the parts of those with hyphens."""
        parts = (part for word in self.words for part in re.split(r"[-.&]", word))
        owners = (word.removesuffix("'s") for word in self.words)
        return frozenset((*self.words, *parts, *owners))

    @cached_property
    def names(self) -> set[str]:
        """Words with a capital letter that is not a sentence's first; none in a text all in capitals."""
        if not any(letter.islower() for letter in self._text):
            return set()
        return {
            word.plain.removesuffix("'s")
            for word in self._words
            if _is_name(word) and word.plain.removesuffix("'s") not in _NEVER_NAMES
        }

    @cached_property
    def negations(self) -> int:
        """The number of negations."""
        count = sum(
            word in NEGATIONS
            or word in _UNWRITTEN
            or word.endswith("n't")
            or word.startswith("non-")
            for word in self.words
        )
        return count + sum(self._text.count(letter) for letter in NEGATING_LETTERS)

    @cached_property
    def kinds(self) -> set[str]:
        """The kinds of things that the text asks for: a time, a place, a person, a reason."""
        kinds = {QUESTION_KINDS[word] for word in self.words if word in QUESTION_KINDS}
        pairs = set(zip(self.words, self.words[1:], strict=False))
        if ("how", "many") in pairs or ("how", "much") in pairs:
            kinds.add("how much")
        if ("how", "long") in pairs:
            kinds.add("how long")
        return kinds

    @cached_property
    def content(self) -> list[str]:
        """The stems of the words that say more than how others belong together, in order."""
        return [stem(word) for word in self.words if word not in _NO_CONTENT]

    @cached_property
    def actions(self) -> set[str]:
        """The stems of the words for actions."""
        return {each for word in self.words if (each := stem(word)) in SAME_ACTIONS}

    @cached_property
    def things(self) -> set[str]:
        """The stems of the words for the objects of actions."""
        return {each for word in self.words if (each := stem(word)) in SAME_THINGS}

    @cached_property
    def roles(self) -> dict[str, str]:
        """Stem -> the role that the word before it gives it; "" where there is none."""
        roles: dict[str, str] = {}
        role = ""
        for word in self.words:
            if word in DIRECTIONS:
                role = DIRECTIONS[word]
            elif word not in _NO_CONTENT:
                roles.setdefault(stem(word), role)
                role = ""
        return roles


def difference(first: Facts, second: Facts) -> str | None:
    """Return the kind of fact in which two texts differ; None if they agree in all.

    Kinds are "numbers", "signs", "units", "dates", "names", "negations", "opposites", "actions",
    "things", "question" and "roles".
    """
    if first.numbers != second.numbers or first.codes != second.codes:
        return "numbers"
    if first.signs != second.signs:
        return "signs"
    if first.units != second.units:
        return "units"
    if first.dates != second.dates:
        return "dates"
    if first.quoted != second.quoted or not _same_names(first, second):
        return "names"
    if first.negations != second.negations:
        return "negations"
    if _opposed(first.word_set, second.word_set):
        return "opposites"
    if _differ(first.actions, second.actions, SAME_ACTIONS):
        return "actions"
    if _differ(first.things, second.things, SAME_THINGS):
        return "things"
    if first.kinds and second.kinds and first.kinds != second.kinds:
        return "question"
    if _reversed(first, second):
        return "roles"
    return None


def same_facts(first: str, second: str) -> bool:
    """Return whether one of two answers has the numbers of the other, and one has the names of the other.

    An answer may say more than the other, but not something else. Names are not compared in German, where
    they cannot be told from other nouns: two answers would rarely agree.
    """
    a, b = (Facts(_without_markers(text)) for text in (first, second))
    numbers, others = set(a.numbers), set(b.numbers)
    if not (numbers <= others or others <= numbers):
        return False
    if not OF_GERMAN.isdisjoint(a.word_set | b.word_set):
        return True
    return a.names <= b.word_set or b.names <= a.word_set


def _without_markers(text: str) -> str:
    """Return an answer without the markers of its lists and headings.

    Numbers are markers where they count from 1: "24. Dezember" at the start of a line is a date.
    """
    last = 0

    def cut(match: re.Match[str]) -> str:
        nonlocal last
        if match[1] is not None:
            if int(match[1]) not in (1, last + 1):
                return match[0]
            last = int(match[1])
        return "\n"

    return _LIST_MARKER.sub(cut, text)


def _same_names(first: Facts, second: Facts) -> bool:
    """Return whether each name of one text is a word of the other."""
    return first.names <= second.word_set and second.names <= first.word_set


def _opposed(first: frozenset[str], second: frozenset[str]) -> bool:
    only_first, only_second = first - second, second - first
    stems = {stem(word) for word in only_second} | only_second
    if any(not stems.isdisjoint(OPPOSITE_OF.get(stem(word), ())) for word in only_first):
        return True
    return any(
        prefix + word in longer
        for shorter, longer in ((only_first, only_second), (only_second, only_first))
        for word in shorter
        if len(word) > 2
        for prefix in PREFIXES
    )


def _differ(first: set[str], second: set[str], alike: Mapping[str, set[str]]) -> bool:
    """Return whether each text has a word for which the other has no synonym."""
    return all(
        any(alike[word].isdisjoint(others) for word in own)
        for own, others in ((first, second), (second, first))
    )


def _reversed(first: Facts, second: Facts) -> bool:
    """Return whether two shared words have changed places in what the texts say.

    That is so where they have exchanged their roles ("from a to b", "from b to a"), their order around a
    third ("a causes b", "b causes a"), or what follows a word that both say twice ("more red cars than blue
    cars"); or where one word has contrary roles ("to Monday", "from Monday"). With signs of arithmetic, the
    order of all shared words counts ("2^3", "3^2").
    """
    if first.signs and _in_order(first, second) != _in_order(second, first):
        return True
    shared = set(first.content) & set(second.content)
    exchanges = {(first.roles[word], second.roles[word]) for word in shared}
    if any(a != b and (b, a) in exchanges for a, b in exchanges):
        return True
    if any((a, b) in CONTRARY or (b, a) in CONTRARY for a, b in exchanges):
        return True
    if _repeats_differ(first.content, second.content):
        return True
    # Of words that have the same role in both, the order does not matter.
    roles = {word: first.roles[word] for word in shared if first.roles[word]}
    shared = {word for word in shared if roles.get(word) != second.roles[word]}
    order = dict.fromkeys(word for word in second.content if word in shared)
    place = {word: number for number, word in enumerate(order)}
    return _has_three_falling(
        [place[word] for word in dict.fromkeys(first.content) if word in shared]
    )


def _in_order(text: Facts, other: Facts) -> list[str]:
    """Return the words of a text that the other has, too."""
    return [word for word in text.words if word in other.word_set]


def _repeats_differ(first: list[str], second: list[str]) -> bool:
    """Return whether a word that is said several times is followed by the same words in another order."""
    after_a, after_b = _followers(first), _followers(second)
    return any(
        len(words) > 1
        and words != after_b.get(word)
        and sorted(words) == sorted(after_b.get(word, ()))
        for word, words in after_a.items()
    )


def _followers(content: list[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for word, following in itertools.zip_longest(content, content[1:], fillvalue=""):
        found.setdefault(word, []).append(following)
    return found


def _has_three_falling(places: list[int]) -> bool:
    """Return whether three of the numbers, in their order, fall."""
    highest, highest_with_higher_before = -1, -1
    for place in places:
        if place < highest_with_higher_before:
            return True
        if place < highest:
            highest_with_higher_before = max(highest_with_higher_before, place)
        highest = max(highest, place)
    return False


def _is_name(word: _Word) -> bool:
    """Return whether capitals make a word a name: inside a sentence, or more than one of them."""
    written = word.written
    inner = any(letter.isupper() for letter in written[1:])
    return inner or (written[0].isupper() and not word.first)


def _numbers(token: str) -> list[str]:
    """Return the numbers of a token: three of a date, one of all else, a time's as it is written."""
    if _ISO_DATE.fullmatch(token):
        return [str(int(part)) for part in token.split("-")]
    if _GROUPED.fullmatch(token):
        return [_number(token.replace(",", ""))]
    if _THOUSANDS_OR_PART.fullmatch(token):
        return [token]
    if re.fullmatch(r"\d+(?:[.,]\d+)?", token):
        return [_number(token.replace(",", "."))]
    return [token]


def _number(text: str) -> str:
    whole, _, part = text.partition(".")
    part = part.rstrip("0")
    return f"{whole.lstrip('0') or '0'}{'.' if part else ''}{part}"


def _folded(text: str) -> str:
    return " ".join(text.lower().split())
