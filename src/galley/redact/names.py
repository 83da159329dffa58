"""Names of people, found by what is said around them and by lists of names.

A capital alone says little: a transcript has them at the beginning of each sentence, and for towns and firms.
"""

from collections.abc import Iterator, Sequence, Set
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

from galley.redact.spans import Span, words
from galley.redact.tokens import Token

_FILE: Final = Path(__file__).with_name("names.txt")
"""Made by ``recipes.names``."""

_TITLES: Final = frozenset(
    words("mr mrs ms miss mister missus mx dr doctor professor prof sir madam")
)
_BEFORE: Final = frozenset(
    {
        "my name", "my name's", "name", "name's", "i am", "i'm", "this is", "it's", "speaking with",
        "speaking to", "talking to", "talk to", "spoke with", "spoke to", "speak to", "speak with",
        "name of", "under the name", "under", "called", "named", "hi", "hello", "hey", "thank you",
        "thanks", "dear", "account holder", "cardholder", "patient", "customer", "caller",
        "husband", "wife", "son", "daughter", "mother", "father", "brother", "sister",
        "regards", "sincerely", "goodbye", "bye",
        "first name", "last name", "surname", "for", "from", "with", "ask", "call me", "calls me",
        "people call me", "signed", "colleague", "manager", "boss", "friend", "neighbor", "agent",
        "kid", "child", "partner", "assistant", "nurse", "cousin", "uncle", "aunt", "grandmother",
        "grandfather", "beneficiary", "nephew", "niece",
    }
)  # fmt: skip
_WEAK: Final = frozenset(
    {"i am", "i'm", "this is", "it's", "called", "under", "for", "from", "with", "ask", "name of"}
)
"""Followed by other words as often as by names, so a name needs two capitalized words here."""

_SAYS_WHO: Final = frozenset(
    {"my name", "my name's", "name's", "first name", "last name", "surname"}
)
"""What follows is a name, whatever the list says, even in a transcript without capitals."""

_AFTER: Final = ("speaking", "here", "calling", "on the line", "is my name")
_LONGEST_PHRASE: Final = max(len(phrase.split()) for phrase in _BEFORE)
_NAME_WORDS: Final = 4

_NOT_NAMES: Final = frozenset(
    words(
        "i i'm i'll i've i'd the a an and but or so well okay ok yes no sir madam please thank thanks "
        "hello hi hey dear monday tuesday wednesday thursday friday saturday sunday january february "
        "march april may june july august september october november december english spanish french "
        "german american british mastercard visa amex paypal google amazon microsoft apple customer "
        "support service team good morning afternoon evening you your my our we they it this that "
        "there here what how when where can could would will just let not very sorry sure calling "
        "speaking street avenue road lane drive inc llc ltd corp company bank"
    )
)
_PARTICLES: Final = frozenset(
    words("de da van von der den la le bin al o di del st mc ter ten dos")
)

_PLACES: Final = frozenset(
    words(
        "alabama alaska arizona arkansas california carolina colorado connecticut dakota delaware "
        "florida georgia hawaii idaho illinois indiana iowa kansas kentucky louisiana maine maryland "
        "massachusetts michigan minnesota mississippi missouri montana nebraska nevada hampshire "
        "jersey mexico york ohio oklahoma oregon pennsylvania tennessee texas utah vermont virginia "
        "washington wisconsin wyoming america england scotland wales ireland london paris rome milan "
        "berlin vienna sydney melbourne perth adelaide toronto montreal ottawa vancouver calgary "
        "boston chicago houston dallas austin denver phoenix memphis orlando atlanta charlotte "
        "savannah jackson lincoln madison cleveland columbus cincinnati brooklyn manhattan queens "
        "lancaster chester york durham lincoln oxford cambridge bristol dover kent essex sussex "
        "jordan israel lebanon kenya cuba china india korea malta cyprus chad georgia holland france "
        "germany spain italy troy salem trenton camden asia europe florence victoria aurora verona "
        "vegas angeles francisco diego antonio jose juan juarez odessa lima santiago "
        "afghanistan albania algeria andorra angola arabia argentina armenia aruba australia austria "
        "azerbaijan bahamas bahrain bangladesh barbados belarus belgium belize benin bermuda bhutan "
        "bolivia bosnia botswana brazil brunei bulgaria burkina burundi cambodia cameroon canada chile "
        "colombia congo costa croatia czechia denmark djibouti dominica dominican ecuador egypt eritrea "
        "estonia eswatini ethiopia faso fiji finland gabon gambia ghana gibraltar greece greenland grenada "
        "guam guatemala guernsey guinea guyana haiti herzegovina honduras hungary iceland indonesia iran "
        "iraq jamaica japan kazakhstan kiribati kosovo kuwait kyrgyz kyrgyzstan lanka laos latvia lesotho "
        "leste liberia libya liechtenstein lithuania luxembourg macau macedonia madagascar malawi malaysia "
        "maldives mali martinique mauritania mauritius micronesia moldova monaco mongolia montenegro "
        "montserrat morocco mozambique myanmar namibia nauru nepal netherlands nicaragua niger nigeria niue "
        "norway oman pakistan palau palestine panama papua paraguay peru philippines poland portugal qatar "
        "reunion rica rico romania russia rwanda salvador samoa senegal serbia seychelles singapore slovakia "
        "slovenia somalia sri sudan suriname swaziland sweden switzerland syria taiwan tajikistan tanzania "
        "thailand timor togo tonga trinidad tobago tunisia turkey turkmenistan tuvalu uganda ukraine "
        "uruguay uzbekistan vanuatu venezuela vietnam yemen zambia zimbabwe zealand"
    )
)
"""Towns, states and countries; alone, and beside an unknown word, they are taken for places."""
_OF_PLACES: Final = frozenset(
    words(
        "new north south east west port lake fort mount mt saint st san santa los las el upper lower"
    )
)
_NO_PERSON: Final = frozenset(
    words(
        "street st avenue ave road rd lane drive boulevard square station airport university college "
        "school hospital clinic church cathedral bank hotel county city town park museum theatre theater "
        "stadium center centre institute foundation award prize company group inc llc ltd corp corporation "
        "plc gmbh brothers sons partners associates holdings industries systems motors airlines insurance "
        "financial investments stores club bridge river lake valley hills island beach house hall tower "
        "building day effect law act test limited sons court gardens"
    )
)
"""What these end is a place or a firm that is named after a person."""
_STATES: Final = frozenset(
    words(
        "AL AK AZ AR CA CO CT DE DC FL GA HI ID IL IN IA KS KY LA ME MD MA MI MN MS MO MT NE NV NH NJ "
        "NM NY NC ND OH OK OR PA RI SC SD TN TX UT VT VA WA WV WI WY"
    )
)
_WHERE: Final = frozenset(
    words("in at near to from of into around via city town visit visiting , through")
)
"""What comes before the name of a town more often than before that of a person, unless a phrase announces it."""
_DOES: Final = frozenset(
    words(
        "is was has had said says told asked called calls wants wanted will would did does began wrote writes "
        "came went gave sent took lives lived works worked"
    )
)
"""What a person does; after an unknown word at the beginning of a sentence, it is a name."""
_TOWNS: Final = (
    "ville", "town", "burgh", "borough", "bury", "shire", "mouth", "chester", "furt", "fort", "haven", "side",
    "stad", "port", "view",
)  # fmt: skip
_DETERMINERS: Final = frozenset(words("the a an this that these those our your every each"))
_ENDS: Final = frozenset('.?!:\n"\u201c\u201d>;')
"""The token after one of these begins a sentence, and has a capital whatever it is."""
_SPELLING: Final = frozenset(words("spell spelled spelt spelling spells name surname"))
_SPELLING_REACH: Final = 6
_SPELLED: Final = 3
"""Least letters of a name that is spelled out."""


class Lists(NamedTuple):
    """Words in lower case: first names, surnames, names that are English words, and common words."""

    first: frozenset[str]
    last: frozenset[str]
    also_words: frozenset[str]
    common: frozenset[str]


@lru_cache(maxsize=1)
def lists() -> Lists:
    """Return the lists of names, read once."""
    return Lists(*map(frozenset, map(words, _FILE.read_text(encoding="utf-8").splitlines())))


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
        return _without_capitals(tokens, at) if phrases & _SAYS_WHO else None
    if _has_title(tokens, at) and len(tokens[at].text) > 1:
        return _run(tokens, at)
    if not _capital(tokens[at]) or tokens[at].word in _TITLES:
        return None
    last = _run(tokens, at)
    strong = phrases - _WEAK
    after = " ".join(token.word for token in tokens[last + 1 : last + 4])
    if not (strong or after.startswith(_AFTER) or (phrases and last > at)):
        return None
    if phrases & _SAYS_WHO or after.startswith(_AFTER):
        return last
    return None if _is_other(tokens, at, last) else last


def _listed(tokens: Sequence[Token], at: int) -> int | None:
    """Return the last token of a name that the lists know; None if none begins at ``at``."""
    if not _is_capitalized(tokens[at]):
        return _listed_without_capitals(tokens, at)
    if not _capital(tokens[at]) or tokens[at].word in _TITLES:
        return None
    known = lists()
    last = _run(tokens, at)
    word, following = _bare(tokens[at]), _bare(tokens[last])
    if _is_other(tokens, at, last):
        return None
    certain = word in known.first and word not in known.also_words
    if last > at:
        return last if _is_pair(word, following) else None
    if certain and word not in _PLACES:
        return at
    if word in known.common | known.also_words | _PLACES or _is_place(tokens, at):
        return None
    if _phrases(tokens, at) & _WEAK:
        return None
    following = tokens[at + 1].word if at + 1 < len(tokens) else ""
    return at if following in _DOES or not _begins_sentence(tokens, at) else None


def _joined(tokens: Sequence[Token], at: int) -> int | None:
    """Return the last token of a name that "and" or a comma joins to the name before."""
    known, word = lists(), tokens[at].word
    if tokens[at - 1].word not in (",", "and", "or") or not _capital(tokens[at]):
        return None
    last = _run(tokens, at)
    plain = word in known.common and word not in known.first | known.last
    return None if plain or _is_other(tokens, at, last) else last


def _is_pair(word: str, following: str) -> bool:
    """Return whether two capitalized words are a first name and a surname.

    A word of neither list is one of another language if it is no English word; a firm has such a name, too, but
    seldom two.
    """
    known = lists()
    listed = known.first | known.last
    if word in known.first and (following in listed or following not in known.common):
        return True
    if following in listed and following not in known.also_words:
        return word not in known.common
    return {word, following}.isdisjoint(known.common | _PLACES)


def _without_capitals(tokens: Sequence[Token], at: int) -> int | None:
    """Return the last token of a name in lower case whose first word may be any that is not common."""
    known = lists()
    name = tokens[at].word
    if not name.isalpha() or (name in known.common and name not in known.first):
        return None
    return _extended(tokens, at)


def _listed_without_capitals(tokens: Sequence[Token], at: int) -> int | None:
    """Return the last token of a first name with a surname, both in lower case and no words."""
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
        if word in known.last | known.first and word not in known.also_words | known.common:
            last = index
        elif word not in _PARTICLES:
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
        if letters >= _SPELLED and before & _SPELLING:
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
            tokens[index].word not in _NOT_NAMES or tokens[index].word in _NO_PERSON
        ):
            last = index
        elif not (tokens[index].word in _PARTICLES or tokens[index].text == "-" or initial):
            break
    return last


def _phrases(tokens: Sequence[Token], at: int) -> Set[str]:
    """Return the phrases that announce a name and end before a token."""
    before = [token.word for token in tokens[max(0, at - _LONGEST_PHRASE - 1) : at]]
    found = {" ".join(before[-length:]) for length in range(1, _LONGEST_PHRASE + 1)}
    if before and before[-1] in (",", "is", ":", "was", "?"):
        before.pop()
        found |= {" ".join(before[-length:]) for length in range(1, _LONGEST_PHRASE + 1)}
    return found & _BEFORE


def _has_title(tokens: Sequence[Token], at: int) -> bool:
    before = [token.word for token in tokens[max(0, at - 2) : at]]
    return bool(before) and (before[-1] in _TITLES or (before[-1] == "." and before[0] in _TITLES))


def _is_other(tokens: Sequence[Token], at: int, last: int) -> bool:
    """Return whether capitalized words name a place, a firm or a thing rather than a person."""
    before = tokens[at - 1] if at else None
    if tokens[at].word in _OF_PLACES:
        return True
    if before is not None and before.word in _OF_PLACES and _is_capitalized(before):
        return True
    if before is not None and before.word in _DETERMINERS and last == at:
        return True
    if last > at and tokens[last].word in _NO_PERSON:
        return True
    following = [token.text for token in tokens[last + 1 : last + 3]]
    if following and following[0].lower() in _NO_PERSON and following[0][0].isupper():
        return True
    state = (
        following[:1] == [","]
        and following[1:2]
        and (following[1] in _STATES or following[1].lower() in _PLACES)
    )
    return bool(state) or following[:1] == ["&"]


def _is_place(tokens: Sequence[Token], at: int) -> bool:
    """Return whether a single unknown word is rather the name of a town, or a part of a firm's."""
    around = [*tokens[max(0, at - 1) : at], *tokens[at + 1 : at + 2]]
    if any(len(token.text) > 1 and token.text.isupper() for token in around):
        return True
    before = tokens[at - 1].word if at else ""
    return before in _WHERE or _bare(tokens[at]).endswith(_TOWNS)


def _begins_sentence(tokens: Sequence[Token], at: int) -> bool:
    return at == 0 or tokens[at - 1].text in _ENDS


def _bare(token: Token) -> str:
    return token.word.removesuffix("'s")


def _capital(token: Token) -> bool:
    """Return whether a token may begin a name; an initial alone may not."""
    return len(token.text) > 1 and _is_capitalized(token) and token.word not in _NOT_NAMES


def _is_capitalized(token: Token) -> bool:
    return token.text[0].isupper() and (len(token.text) == 1 or not token.text.isupper())
