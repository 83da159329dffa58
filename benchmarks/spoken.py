"""Synthesize held-out utterances of the speech model's recipe, with the end time of each word.

As in the recipe, espeak-ng speaks them; here its library is used, which reports when each phoneme starts.
"""

import ctypes
import ctypes.util
import difflib
import functools
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import soxr

from galley.errors import SettingsError
from recipes.speech import line
from recipes.speech.heldout import Item
from recipes.speech.spoken import letters
from recipes.speech.voices import RATE, Samples, Voice

_SYNCHRONOUS: Final = 2
_PHONEMES: Final = 1
_UTF8: Final = 1
_SPEED, _PITCH = 1, 3
_WORD, _PHONEME = 1, 7
_AUDIBLE: Final = 0.01
"""Threshold relative to the loudest sample, as in ``voices.say``."""
PAUSE: Final = 0.4
"""Seconds between an utterance's sentences."""


@dataclass(frozen=True)
class Word:
    """A word of a transcript, and the second at which it ends."""

    text: str
    end: float


@dataclass(frozen=True)
class Utterance:
    """Audio at 16 kHz, and the words spoken in it."""

    samples: Samples
    words: tuple[Word, ...]


def say(item: Item) -> Utterance:
    """Synthesize an item of the held-out sets over its telephone line.

    Raises:
        SettingsError: libespeak-ng is not installed.
    """
    parts: list[Samples] = []
    words: list[Word] = []
    at = 0
    for written, spoken in item.sentences:
        if parts:
            parts.append(np.zeros(round(PAUSE * RATE), np.float32))
            at += len(parts[-1])
        speech, ends = _say(spoken, item.voice)
        words += [
            Word(text, line.arrival(at / RATE + end, item.line))
            for text, end in _written(written, spoken, ends)
        ]
        parts.append(speech)
        at += len(speech)
    return Utterance(line.over(line.band(np.concatenate(parts)), item.line), tuple(words))


def _written(
    written: str, spoken: str, ends: Sequence[tuple[int, float]]
) -> list[tuple[str, float]]:
    """Return the words of a transcript with the end time of their speech; a number is many words.

    Args:
        written, spoken: the written and the spoken form of a sentence.
        ends: (place in ``spoken``, second) of each word as espeak-ng splits them.
    """
    said = [
        (letters(found[0]), max((end for place, end in ends if place < found.end()), default=0.0))
        for found in re.finditer(r"[\w']+", spoken)
    ]
    texts = written.split()
    # A chunk with digits is spoken in other words, so it is matched as a whole.
    plain = [letters(text) if not re.search(r"\d", text) else text for text in texts]
    matcher = difflib.SequenceMatcher(None, plain, [word for word, _ in said], autojunk=False)
    found: list[tuple[str, float]] = []
    for _, first, beyond, start, end in matcher.get_opcodes():
        for number in range(first, beyond):
            # With equal word counts, match one to one. Otherwise all words end when the whole chunk ends.
            place = start + number - first if beyond - first == end - start else end - 1
            found.append((texts[number], said[max(0, place)][1]))
    return found


class _Id(ctypes.Union):
    _fields_ = [("number", ctypes.c_int), ("name", ctypes.c_char_p), ("string", ctypes.c_char * 8)]


class _Event(ctypes.Structure):
    """``espeak_EVENT`` of speak_lib.h."""

    _fields_ = [
        ("type", ctypes.c_int),
        ("unique_identifier", ctypes.c_uint),
        ("text_position", ctypes.c_int),
        ("length", ctypes.c_int),
        ("audio_position", ctypes.c_int),
        ("sample", ctypes.c_int),
        ("user_data", ctypes.c_void_p),
        ("id", _Id),
    ]


class _Voice(ctypes.Structure):
    """The language fields of ``espeak_VOICE``, which are enough to select a voice."""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("languages", ctypes.c_char_p),
        ("identifier", ctypes.c_char_p),
        ("properties", ctypes.c_ubyte * 4),
        ("score", ctypes.c_int),
        ("spare", ctypes.c_void_p),
    ]


_Callback = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(_Event)
)


@functools.cache
def _library() -> tuple[Any, int]:
    """Return libespeak-ng and its sample rate."""
    name = ctypes.util.find_library("espeak-ng")
    if name is None:
        raise SettingsError("libespeak-ng is not installed: apt-get install espeak-ng")
    library = ctypes.CDLL(name)
    return library, library.espeak_Initialize(_SYNCHRONOUS, 0, None, _PHONEMES)


def _say(text: str, voice: Voice) -> tuple[Samples, list[tuple[int, float]]]:
    """Return speech at ``RATE`` as ``voices.say`` makes it, and (place in text, second) of word ends."""
    library, rate = _library()
    blocks: list[Samples] = []
    ends: list[tuple[int, int]] = []
    place: int | None = None
    seen = 0

    def take(wave: Any, count: int, events: Any) -> int:
        nonlocal place, seen
        if wave and count:
            blocks.append(np.ctypeslib.as_array(wave, (count,)).astype(np.float32))
        for event in itertools.takewhile(
            lambda event: event.type, (events[n] for n in itertools.count())
        ):
            silent = event.type == _PHONEME and event.id.string.startswith(b"_")
            if event.type == _WORD or silent:
                if place is not None:
                    ends.append((place, event.sample))
                # At the end of a clause espeak-ng reports an empty word at an earlier place.
                begins = event.type == _WORD and event.text_position > seen
                place = event.text_position - 1 if begins else None
                seen = max(seen, event.text_position)
        return 0

    callback = _Callback(take)
    library.espeak_SetSynthCallback(callback)
    chosen = _Voice(languages=f"{voice.accent}+{voice.variant}".encode())
    if library.espeak_SetVoiceByProperties(ctypes.byref(chosen)) != 0:
        raise SettingsError(f"espeak-ng does not know {voice}")
    library.espeak_SetParameter(_SPEED, voice.speed, 0)
    library.espeak_SetParameter(_PITCH, voice.pitch, 0)
    data = text.encode() + b"\0"
    library.espeak_Synth(data, len(data), 0, 1, 0, _UTF8, None, None)
    library.espeak_Synchronize()
    wide = np.concatenate(blocks)
    loudest = np.abs(wide).max()
    audible = np.flatnonzero(np.abs(wide) > _AUDIBLE * loudest)
    first, last = int(audible[0]), int(audible[-1]) + 1
    narrow: Samples = soxr.resample(wide[first:last] * (0.7 / loudest), rate, RATE)
    return narrow, [(place, (min(end, last) - first) / rate) for place, end in ends]
