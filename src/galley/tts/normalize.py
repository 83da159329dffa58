"""Text as a voice is to read it: without control characters and markup, abbreviations written out."""

import re
import unicodedata
from collections.abc import Callable
from typing import Final

from galley.tts import english

NORMALIZERS: Final[dict[str, Callable[[str], str]]] = {"en": english.normalized}
"""Language, the first part of its tag -> function that writes out what a phonemizer reads wrongly."""

_LINK: Final = re.compile(r"\[([^\]\n]{1,300})\]\((?:[^()\s]{1,500})\)")
_MARKUP: Final = re.compile(
    r"(?<!\w)[*_`]{1,3}(?=\S)|(?<=\S)[*_`]{1,3}(?!\w)|^\s{0,3}(?:#{1,6}|[-*+>])\s", re.MULTILINE
)
_IN_WORD: Final = re.compile(r"(?<=\w)_(?=\w)")


def normalized(text: str, language: str) -> str:
    """Return one sentence or clause as it is read in a language.

    Args:
        text: the sentence, in Markdown or plain.
        language: BCP 47 tag; of a language without an entry in :data:`NORMALIZERS`, only markup is removed.
    """
    text = "".join(c if unicodedata.category(c)[0] != "C" else " " for c in text)
    text = _MARKUP.sub("", _IN_WORD.sub(" ", _LINK.sub(r"\1", text)))
    own = NORMALIZERS.get(language.replace("_", "-").partition("-")[0].lower())
    return " ".join((own(text) if own else text).split())
