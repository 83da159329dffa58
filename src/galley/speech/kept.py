"""A recording that is decoded once and then read any number of times, by channel or mixed."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import closing
from typing import Final, Self

import numpy as np

from galley.errors import EngineNotReady
from galley.speech.decoder import DecodedRecording
from galley.speech.features import SAMPLE_RATE
from galley.speech.mixing import mix
from galley.speech.sources import TWO, Samples

_HALVES: Final = np.full(TWO, 0.5, np.float32)
_BYTES: Final = np.dtype(np.float32).itemsize
_RETRY_SECONDS: Final = 30.0


class KeptRecording:
    """The samples of a recording in a temporary file without a name; memory does not grow with its length.

    The file takes 230 MB for an hour of each channel. It is in the folder of temporary files (``TMPDIR``)
    and is gone once it is closed or the process ends, however it ends.

    Attributes:
        channels: number of channels that the recording states.
        duration: the duration in seconds that it states; None if it states none.
        warnings: faults of the recording.
        samples: its length, in samples of each channel.
    """

    def __init__(self, recording: DecodedRecording) -> None:
        """Decode a recording to its end, and close it.

        Raises:
            AudioError: the recording cannot be decoded.
            EngineNotReady: there is no space for its samples.
        """
        with closing(recording):
            try:
                self._file = tempfile.TemporaryFile(prefix="galley-")  # noqa: SIM115  (closed by close)
            except OSError as error:
                raise _no_space(error) from error
            try:
                self._write(recording)
            except BaseException:
                self.close()
                raise
        self.channels, self.duration = recording.channels, recording.duration
        self.warnings = recording.warnings

    def _write(self, recording: DecodedRecording) -> None:
        self._width = TWO if recording.keeps_two else 1
        self.samples = 0
        try:
            for block in recording:
                self._file.write(block.data)
                self.samples += len(block)
            self._file.flush()
        except OSError as error:
            raise _no_space(error) from error

    def open(self, channel: int | None = None) -> "KeptAudio":
        """Return the audio of a channel, counted from 1, or of all of them, mixed."""
        return KeptAudio(self, channel)

    def read(self, start: int, channel: int | None) -> Samples:
        """Return up to a second of samples from ``start`` on, mono; none at the end."""
        step = self._width * _BYTES
        data = os.pread(self._file.fileno(), SAMPLE_RATE * step, start * step)
        block = np.frombuffer(data, np.float32)
        if self._width == 1:
            return block
        both = block.reshape(-1, TWO).T
        return mix(both, _HALVES) if channel is None else np.ascontiguousarray(both[channel - 1])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Delete the samples. Idempotent."""
        self._file.close()


class KeptAudio:
    """One reading of a kept recording; see :class:`galley.speech.decoder.Audio`."""

    def __init__(self, kept: KeptRecording, channel: int | None) -> None:
        """Begin at the start; called by :meth:`KeptRecording.open`."""
        self._kept, self._channel = kept, channel
        self._position = 0

    @property
    def duration(self) -> float | None:
        """The duration in seconds that the recording states."""
        return self._kept.duration

    @property
    def warnings(self) -> list[str]:
        """Warnings of the whole recording."""
        return self._kept.warnings

    @property
    def seconds(self) -> float:
        """Seconds of audio read so far."""
        return self._position / SAMPLE_RATE

    def __iter__(self) -> Iterator[Samples]:
        """Yield blocks of a second, mono float32 ``[samples]`` at 16 kHz."""
        while len(block := self._kept.read(self._position, self._channel)):
            self._position += len(block)
            yield block

    def close(self) -> None:
        """Do nothing: other readings may follow. Close the :class:`KeptRecording` instead."""


def _no_space(error: OSError) -> EngineNotReady:
    # On a full disk, tempfile finds no folder at all, and names those that it has tried.
    return EngineNotReady(
        f"cannot keep the samples of a recording in {tempfile.tempdir or 'a temporary file'}: "
        f"{error.strerror}; set TMPDIR to a folder with more space",
        retry_after=_RETRY_SECONDS,
    )
