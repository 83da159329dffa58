# ruff: noqa: RUF001 - punctuation
"""Phonemes of a text by espeak-ng, a separate program under the GPL that Galley neither contains nor needs.

Its shared library is loaded, if it is installed, into the process of an engine that wants phonemes.
"""

import ctypes
import ctypes.util
import os
import re
from collections.abc import Callable, Mapping
from typing import Final

from galley.errors import SettingsError

LIBRARY_VARIABLE: Final = "GALLEY_ESPEAK_LIBRARY"
"""Path of the library, where the system does not find it."""

_NAMES: Final = ("libespeak-ng.so.1", "libespeak-ng.dylib", "libespeak-ng.dll")
_SYNCHRONOUS: Final = 0x02  # AUDIO_OUTPUT_SYNCHRONOUS: no audio device is opened
_DONT_EXIT: Final = 0x8000  # espeakINITIALIZE_DONT_EXIT
_UTF8: Final = 1  # espeakCHARS_UTF8
_IPA: Final = 0x02  # espeakPHONEMES_IPA
_TIED: Final = 0x80
_TIE_SHIFT: Final = 8
"""Bits 8 to 23 of the mode are the character that joins the letters of a phoneme."""

_MARK: Final = re.compile(r"([,;:.!?…—–])(?=[\s\"'”’)]|\Z)")
_SWITCH: Final = re.compile(r"\([a-z][a-z-]*\)")
"""Marks that espeak-ng writes where a word is in another language."""


class _Wanted(ctypes.Structure):
    """espeak_VOICE of espeak-ng's speak_lib.h."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("languages", ctypes.c_char_p),
        ("identifier", ctypes.c_char_p),
        ("gender", ctypes.c_ubyte),
        ("age", ctypes.c_ubyte),
        ("variant", ctypes.c_ubyte),
        ("unused", ctypes.c_ubyte),
        ("score", ctypes.c_int),
        ("spare", ctypes.c_void_p),
    )


class Espeak:
    """espeak-ng. It keeps global state: one object in a process, used by one thread."""

    def __init__(self, voice: str, tie: str = "") -> None:
        """Load the library, and select a language.

        Args:
            voice: espeak-ng's name of the language, such as "en-us".
            tie: a character that joins the letters of a phoneme that has several; empty: none.

        Raises:
            SettingsError: espeak-ng is not installed, or has no such language.
        """
        self._library = _load()
        if self._library.espeak_Initialize(_SYNCHRONOUS, 0, None, _DONT_EXIT) < 0:
            raise SettingsError(
                "espeak-ng is installed without its data: install the package espeak-ng-data"
            )
        self._voice = ""
        self.select(voice)
        self._mode = _IPA | (_TIED | ord(tie) << _TIE_SHIFT if tie else 0)
        self._convert = self._library.espeak_TextToPhonemes
        self._convert.restype = ctypes.c_char_p
        self._convert.argtypes = [ctypes.POINTER(ctypes.c_char_p), ctypes.c_int, ctypes.c_int]

    def select(self, voice: str) -> None:
        """Select a language by espeak-ng's name or tag of it.

        Raises:
            SettingsError: there is no such language.
        """
        if voice == self._voice:
            return
        name = voice.encode()
        wanted = ctypes.byref(_Wanted(languages=name))
        # Some languages, such as en-gb, are known by their tag alone.
        if self._library.espeak_SetVoiceByName(name) and self._library.espeak_SetVoiceByProperties(
            wanted
        ):
            raise SettingsError(
                f"espeak-ng has no language {voice!r}, which the voice needs; espeak-ng --voices lists them"
            )
        self._voice = voice

    def phonemes(self, text: str) -> str:
        """Return the phonemes of a text in the International Phonetic Alphabet; no punctuation."""
        rest = ctypes.c_char_p(text.replace("\0", " ").encode())
        clauses = []
        while rest.value:
            clause = self._convert(ctypes.byref(rest), _UTF8, self._mode)
            clauses.append((clause or b"").decode("utf-8", "replace"))
        return _SWITCH.sub("", " ".join(clauses)).strip()


def punctuated(text: str, phonemes: Callable[[str], str], marks: Mapping[str, str]) -> str:
    """Return the phonemes of a text with its punctuation, which espeak-ng leaves out.

    Args:
        text: the text.
        phonemes: returns the phonemes of words.
        marks: what is written for a mark; others stay as they are.
    """
    said = []
    parts = _MARK.split(text)
    for words, mark in zip(parts[::2], [*parts[1::2], ""], strict=True):
        found = phonemes(words)
        if found:
            said.append(found + marks.get(mark, mark))
    return " ".join(said)


def _load() -> ctypes.CDLL:
    given = os.environ.get(LIBRARY_VARIABLE)
    found = ctypes.util.find_library("espeak-ng")
    for name in (given,) if given else (*_NAMES, *((found,) if found else ())):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    where = (
        f"{LIBRARY_VARIABLE} is {given}, which cannot be loaded" if given else "it is not installed"
    )
    raise SettingsError(
        f"this voice needs espeak-ng for its phonemes, and {where}: install the system's package, such as "
        "apt-get install espeak-ng (brew install espeak-ng)"
    )
