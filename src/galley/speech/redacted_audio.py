"""Recordings without the audio of redacted passages."""

import wave
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

import numpy as np

from galley.errors import RequestError
from galley.files import complete_or_absent
from galley.speech.audio import SAMPLE_RATE
from galley.speech.decoder import Audio
from galley.speech.non_speech import silenced
from galley.speech.redaction import Passage

_LEAST_SECONDS: Final = 0.02
"""A shorter passage cannot contain a word: its times are wrong."""


def write_redacted(recording: Audio, passages: Sequence[Passage], target: Path) -> None:
    """Write a recording as mono 16-bit WAV at 16 kHz, with silence in place of the passages.

    ``target`` appears only once it is complete.

    Args:
        recording: the recording's audio; closed afterwards.
        passages: what to leave out.
        target: the file to write.

    Raises:
        RequestError: a passage cannot be located in the audio. Nothing is written.
        AudioError: the recording cannot be decoded any further. Nothing is written.
    """
    with closing(recording), complete_or_absent(target) as partial:
        with wave.open(str(partial), "wb") as output:
            output.setnchannels(1)
            output.setsampwidth(2)
            output.setframerate(SAMPLE_RATE)
            position = 0
            for block in recording:
                clean = silenced(block, position, [(one.start, one.end) for one in passages])
                output.writeframes(np.clip(clean * 32_768, -32_768, 32_767).astype("<i2").tobytes())
                position += len(block)
        _check_located(passages, position / SAMPLE_RATE)


def _check_located(passages: Iterable[Passage], seconds: float) -> None:
    for passage in passages:
        if passage.end - passage.start < _LEAST_SECONDS or passage.start >= seconds:
            raise RequestError(
                f"a redacted passage ({passage.kind}) cannot be located in the audio: its times are "
                f"{passage.start:.2f} to {passage.end:.2f} s of {seconds:.2f} s. No audio is written"
            )
