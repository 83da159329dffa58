"""Who speaks when in a recording with one channel."""

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from galley.errors import AudioError, RequestError
from galley.speech.decoder import Audio
from galley.speech.diarize.cluster import centroids
from galley.speech.diarize.encoders import PART, Likeness
from galley.speech.diarize.nets import Nets
from galley.speech.diarize.options import (
    BUNDLED_FILES,
    MOST_SPEAKERS,
    DiarizeOptions,
    NetFiles,
)
from galley.speech.diarize.turns import Turn, turns_of
from galley.speech.diarize.voices import Observations, observe, voice_of
from galley.speech.features import SAMPLE_RATE
from galley.speech.sources import Samples

_WHOLE: Final = 3 * PART // 4
"""Samples of a stretch whose voice is good enough to find speakers by."""
_REFERENCE_SECONDS: Final = (2.0, 10.0)
_SLACK_SECONDS: Final = 0.05
"""Codecs add some milliseconds."""


@dataclass(frozen=True)
class Diarization:
    """The speakers of a recording.

    Attributes:
        names: name of each speaker, in the order in which they first speak.
        turns: when each speaks, by start; turns of different speakers may overlap.
    """

    names: tuple[str, ...]
    turns: tuple[Turn, ...]


class Cancelled(Exception):
    """Nobody waits for the diarization any more."""


class Diarizer:
    """Diarizes recordings; loaded once for any number of recordings and threads.

    Raises:
        ModelNotFound, UnsupportedModel: see :class:`Nets`.
    """

    def __init__(self, files: NetFiles) -> None:
        """Load the networks."""
        self._nets = Nets(files)

    def __call__(
        self,
        recording: Audio,
        options: DiarizeOptions,
        open_reference: Callable[[bytes], Audio],
        cancelled: threading.Event | None = None,
    ) -> Diarization:
        """Diarize a recording. Memory grows by some kilobytes for each second.

        Args:
            recording: the recording; closed afterwards.
            options: the caller's options.
            open_reference: decodes the recording of a known speaker.
            cancelled: once it is set, the call ends soon.

        Raises:
            AudioError: the recording cannot be decoded any further.
            RequestError: a reference is not usable.
            Cancelled: ``cancelled`` was set.
        """
        try:
            known = [
                self._reference(voice, name, open_reference)
                for name, voice in zip(options.known_names, options.known_voices, strict=True)
            ]
            found = observe(_until(recording, cancelled), self._nets)
        finally:
            recording.close()
        likeness = self._nets.encoder.likeness
        voices = _speakers(found, options, self._nets)
        turns = turns_of(found, voices, likeness.sharpness)
        return _named(turns, voices, known, options.known_names, likeness)

    def _reference(
        self, file: bytes, name: str, open_file: Callable[[bytes], Audio]
    ) -> NDArray[np.float32]:
        """Return the voice of a known speaker. Raises RequestError if the recording is not usable."""
        least, most = _REFERENCE_SECONDS
        try:
            with closing(open_file(file)) as recording:
                samples = _beginning(recording, 2 * most)
        except AudioError as error:
            raise RequestError(
                f"known_speaker_references: that of {name!r} cannot be read: {error}",
                param="known_speaker_references",
            ) from error
        seconds = len(samples) / SAMPLE_RATE
        if not least - _SLACK_SECONDS <= seconds <= most + _SLACK_SECONDS:
            length = f"{seconds:.1f} s" if seconds < 2 * most else f"more than {2 * most:g} s"
            raise RequestError(
                f"known_speaker_references: that of {name!r} has {length}; expected {least:g} to "
                f"{most:g} s",
                param="known_speaker_references",
            )
        observed = observe([samples], self._nets)
        if not observed.voices:
            raise RequestError(
                f"known_speaker_references: that of {name!r} has no speech",
                param="known_speaker_references",
            )
        speech = [samples[voice.start : voice.end] for voice in observed.voices]
        return voice_of(np.concatenate(speech), self._nets)


@lru_cache(maxsize=2)
def load(files: NetFiles = BUNDLED_FILES) -> Diarizer:
    """Return the diarizer with these networks, loaded once. Raises as :class:`Diarizer`."""
    return Diarizer(files)


def _beginning(recording: Audio, seconds: float) -> NDArray[np.float32]:
    """Return the samples of a recording, of a long one at least this many seconds.

    A small file can have hours of silence.
    """
    blocks, length = [np.zeros(0, np.float32)], 0
    for block in recording:
        blocks.append(block)
        length += len(block)
        if length >= seconds * SAMPLE_RATE:
            break
    return np.concatenate(blocks)


def _until(recording: Audio, cancelled: threading.Event | None) -> Iterator[Samples]:
    for block in recording:
        if cancelled is not None and cancelled.is_set():
            raise Cancelled
        yield block


def _speakers(found: Observations, options: DiarizeOptions, nets: Nets) -> NDArray[np.float32]:
    """Return the voices of the recording's speakers, float32 ``[speakers, width]``."""
    whole = [voice for voice in found.voices if voice.end - voice.start >= _WHOLE]
    voices = whole or found.voices
    if not voices:
        return np.zeros((0, nets.encoder.width), np.float32)
    return centroids(
        np.stack([voice.vector for voice in voices]),
        np.array([(voice.end - voice.start) / SAMPLE_RATE for voice in voices], np.float32),
        threshold=nets.encoder.likeness.different,
        least=options.least,
        most=options.most or MOST_SPEAKERS,
    )


def _named(
    turns: Sequence[Turn],
    voices: NDArray[np.float32],
    known: Sequence[NDArray[np.float32]],
    known_names: Sequence[str],
    likeness: Likeness,
) -> Diarization:
    """Return the turns with named speakers: those of references, and letters for the others."""
    name_of: dict[int, str] = {}
    names: list[str] = []
    letters = _letters(known_names)
    for turn in turns:
        if turn.speaker not in name_of:
            similarities = [float(voices[turn.speaker] @ voice) for voice in known]
            best = int(np.argmax(similarities)) if known else 0
            alike = bool(known) and 1.0 - similarities[best] <= likeness.known
            name = known_names[best] if alike else next(letters)
            name_of[turn.speaker] = name
            if name not in names:
                names.append(name)
    numbered = (turn._replace(speaker=names.index(name_of[turn.speaker])) for turn in turns)
    return Diarization(tuple(names), tuple(numbered))


def _letters(taken: Sequence[str]) -> Iterator[str]:
    """Yield the letters of speakers, without names that are taken."""
    return (name for number in itertools.count() if (name := letter(number)) not in taken)


def letter(number: int) -> str:
    """Return the name of an unknown speaker: A, B, ..., Z, AA, AB, ..."""
    name, rest = "", number + 1
    while rest:
        rest, last = divmod(rest - 1, 26)
        name = chr(ord("A") + last) + name
    return name
