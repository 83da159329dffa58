# ruff: noqa: RUF001 - phonemes
"""Phonemes in the alphabet that Kokoro was trained with, from those of espeak-ng.

It is that of misaki (github.com/hexgrad/misaki, Apache-2.0): the International Phonetic Alphabet, with one
letter for each diphthong and affricate. The replacements are those of misaki's ``espeak.py``. One of these
misaki never reaches, since it has replaced the letter before: the British vowel of "there".
"""

import re
from typing import Final

TIE: Final = "^"
"""Stands between the letters of one sound in the phonemes that are converted."""

_RUNS: Final = (
    (1, ";:,.!?"),
    (9, '—…"()“” \u0303ʣʥʦʨᵝ\uab67AI'),
    (31, "O"),
    (33, "Q"),
    (35, "ST"),
    (39, "W"),
    (41, "Yᵊabcdef"),
    (50, "hijklmnopqrstuvwxyzɑɐɒæ"),
    (75, "βɔɕç"),
    (80, "ɖðʤə"),
    (85, "ɚɛɜ"),
    (90, "ɟ"),
    (92, "ɡ"),
    (99, "ɥ"),
    (101, "ɨɪʝ"),
    (110, "ɯɰŋɳɲɴø"),
    (118, "ɸθœ"),
    (123, "ɹ"),
    (125, "ɾɻ"),
    (128, "ʁɽʂʃʈʧ"),
    (135, "ʊʋ"),
    (138, "ʌɣɤ"),
    (142, "χʎ"),
    (147, "ʒʔ"),
    (156, "ˈˌː"),
    (162, "ʰ"),
    (164, "ʲ"),
    (169, "↓"),
    (171, "→↗↘"),
    (177, "ᵻ"),
)
VOCABULARY: Final = {
    symbol: first + place for first, symbols in _RUNS for place, symbol in enumerate(symbols)
}
"""Phoneme -> its number, in Kokoro-82M 1.0."""

_ENGLISH: Final = (
    ("ʔˌn\u0329", "ʔn"),
    ("ʔn\u0329", "ʔn"),
    ("a^ɪ", "I"),
    ("a^ʊ", "W"),
    ("d^ʒ", "ʤ"),
    ("e^ɪ", "A"),
    ("t^ʃ", "ʧ"),
    ("ɔ^ɪ", "Y"),
    ("ə^l", "ᵊl"),
    ("ʲo", "jo"),
    ("ʲə", "jə"),
    ("e", "A"),
    ("ʲ", ""),
    ("ɚ", "əɹ"),
    ("r", "ɹ"),
    ("x", "k"),
    ("ç", "k"),
    ("ɐ", "ə"),
    ("ɬ", "l"),
    ("\u0303", ""),
)
_BRITISH: Final = (("A^ə", "ɛː"), ("iə", "ɪə"), ("ə^ʊ", "Q"))
_AMERICAN: Final = (("o^ʊ", "O"), ("ɜːɹ", "ɜɹ"), ("ɜː", "ɜɹ"), ("ɪə", "iə"), ("ː", ""))
_LAST: Final = (("o", "ɔ"), ("ɾ", "T"), ("ʔ", "t"), (TIE, ""))
_OTHERS: Final = (
    ("a^ɪ", "I"),
    ("a^ʊ", "W"),
    ("d^z", "ʣ"),
    ("d^ʒ", "ʤ"),
    ("e^ɪ", "A"),
    ("o^ʊ", "O"),
    ("s^s", "S"),
    ("t^s", "ʦ"),
    ("t^ʃ", "ʧ"),
    ("ɔ^ɪ", "Y"),
    ("ə^ʊ", "Q"),
    (TIE, ""),
    ("-", ""),
)
_SYLLABIC: Final = re.compile("(\\S)\u0329")


def from_espeak(phonemes: str, language: str) -> str:
    """Return espeak-ng's phonemes in Kokoro's alphabet.

    Args:
        phonemes: with :data:`TIE` within the sounds that have several letters.
        language: espeak-ng's name of it, such as "en-us".
    """
    if not language.startswith("en"):
        return _replaced(phonemes, _OTHERS)
    phonemes = _replaced(phonemes, _ENGLISH)
    phonemes = _SYLLABIC.sub(r"ᵊ\1", phonemes).replace("\u0329", "")
    return _replaced(phonemes, (*(_BRITISH if language != "en-us" else _AMERICAN), *_LAST))


def _replaced(text: str, table: tuple[tuple[str, str], ...]) -> str:
    for old, new in table:
        text = text.replace(old, new)
    return text
