"""A recording's chunks and their features, computed as a session consumes them."""

import math
import threading
from collections.abc import Iterator

import numpy as np

from galley.speech.chunks import AudioChunk, chunk_audio
from galley.speech.decoder import Audio
from galley.speech.features import LogMel
from galley.speech.options import SpeechOptions, TranscribeOptions
from galley.speech.results import Info
from galley.speech.segmenter import AllSpeech, VadStream
from galley.speech.session import Session
from galley.speech.sources import Samples
from galley.speech.vad import Leveled, SpeechDetector, leveled


class ChunkSource:
    """Reads one recording's chunks into a session. :meth:`close` may be called from another thread.

    Args:
        recording: the recording to read; closed with the source.
        features: makes the model's encoder inputs.
        options: the caller's options; ``options.speech`` sets how speech is found.
        detector: the speech detector.
    """

    def __init__(
        self,
        recording: Audio,
        features: LogMel,
        options: TranscribeOptions,
        detector: SpeechDetector,
    ) -> None:
        self._recording = recording
        self._task = options.task
        self._features = features
        self._reading = threading.Lock()
        self._closed = False
        self._detects = options.speech is not None
        self._loudest = 0.0
        self._has_chunks = False
        """Whether the recording has had a chunk so far."""
        self._complete = False
        found: VadStream = Leveled(detector.stream()) if self._detects else AllSpeech()
        self._chunks: Iterator[AudioChunk] = chunk_audio(
            self._blocks(),
            features.chunk_seconds,
            options.speech or SpeechOptions(),
            found,
            pack=features.pads,
        )

    @property
    def stated_duration(self) -> float | None:
        """The duration in seconds that the recording states."""
        return self._recording.duration

    def fill(self, session: Session) -> None:
        """Add chunks to the session while it has room, and end the session after the last chunk.

        Raises:
            AudioError: the recording cannot be decoded any further.
        """
        with self._reading:
            while session.has_room:
                chunk = next(self._chunks, None)
                if chunk is None:
                    self._complete = True
                    session.end()
                else:
                    self._has_chunks = True
                    session.add(chunk, self._features(leveled(chunk.samples)))

    def info(self, session: Session) -> Info:
        """Return information about the recording, as far as it was read and transcribed in ``session``."""
        return Info(
            task=self._task,
            language=session.language or "",
            duration=self._recording.seconds,
            warnings=(*self._recording.warnings, *self._no_speech(), *session.warnings()),
        )

    def _no_speech(self) -> list[str]:
        if (
            not self._complete
            or self._has_chunks
            or not self._detects
            or not self._recording.seconds
        ):
            return []
        loudest = "it is silent"
        if self._loudest:
            decibels = 20 * math.log10(self._loudest)
            loudest = f"its loudest sample is at {decibels:.0f} dB of full scale"
        return [
            f"no speech was found in {self._recording.seconds:.1f} s of audio ({loudest}); turn off speech "
            "detection (vad) to transcribe all of it"
        ]

    def close(self) -> None:
        """Close the recording. A :meth:`fill` in another thread stops after its current block."""
        self._closed = True
        with self._reading:
            self._recording.close()

    def _blocks(self) -> Iterator[Samples]:
        for block in self._recording:
            if self._closed:
                return
            self._loudest = max(self._loudest, float(np.abs(block).max(initial=0.0)))
            yield block
