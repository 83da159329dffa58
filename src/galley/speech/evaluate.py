"""Accuracy and speed of a model's transcription: word and character error rates, real-time factor."""

import json
import re
import time
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import jiwer

from galley.errors import RequestError
from galley.speech.options import TranscribeOptions
from galley.speech.transcribe import Transcriber


@dataclass(frozen=True)
class ManifestEntry:
    """A recording and its reference transcript."""

    audio: Path
    text: str


@dataclass(frozen=True)
class Transcribed:
    """A model's transcript of a manifest entry.

    Attributes:
        audio_seconds: length of the recording, in seconds.
        seconds: seconds that the transcription took.
    """

    entry: ManifestEntry
    text: str
    audio_seconds: float
    seconds: float


@dataclass(frozen=True)
class Scores:
    """Error rates and speed over a manifest.

    Attributes:
        wer, cer: word and character error rate: errors per word or character of the references.
        audio_seconds: total length of the recordings, in seconds.
        real_time_factor: seconds of transcription per second of audio.
    """

    wer: float
    cer: float
    audio_seconds: float
    real_time_factor: float


def read_manifest(path: Path) -> list[ManifestEntry]:
    """Read the entries of a JSON Lines file: ``{"audio": "call.wav", "text": "what is said"}``.

    Paths of recordings are relative to the manifest.

    Raises:
        RequestError: the manifest cannot be read, has no text, or has an invalid line; the message gives
            the line's number.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"cannot read {path}: {error}") from error
    entries = [_entry(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not any(plain_text(entry.text) for entry in entries):
        raise RequestError(f"{path} has no entry with words in its text")
    return entries


def _entry(path: Path, number: int, line: str) -> ManifestEntry:
    try:
        entry = json.loads(line)
        audio, text = entry["audio"], entry["text"]
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise RequestError(f"{path}, line {number}: needs audio and text ({error!r})") from error
    if not isinstance(audio, str) or not isinstance(text, str):
        raise RequestError(f"{path}, line {number}: audio and text must be strings")
    return ManifestEntry(path.parent / audio, text)


def transcribe_all(
    transcriber: Transcriber,
    entries: Sequence[ManifestEntry],
    options: TranscribeOptions,
    advance: Callable[[int], None],
) -> list[Transcribed]:
    """Transcribe and time one recording after another; call ``advance(1)`` after each."""
    transcripts = []
    for entry in entries:
        began = time.monotonic()
        transcription = transcriber.transcribe(entry.audio, options)
        text = transcription.text()
        seconds = time.monotonic() - began
        transcripts.append(Transcribed(entry, text, transcription.info.duration, seconds))
        advance(1)
    return transcripts


def score(transcripts: Sequence[Transcribed]) -> Scores:
    """Compute error rates, ignoring case and punctuation; text for an empty reference counts as errors."""
    texts = [one.entry.text for one in transcripts], [one.text for one in transcripts]
    references, hypotheses = (list(map(plain_text, side)) for side in texts)
    audio_seconds = sum(one.audio_seconds for one in transcripts)
    return Scores(
        wer=word_error_rate(*texts),
        cer=jiwer.cer(references, hypotheses),
        audio_seconds=audio_seconds,
        real_time_factor=sum(one.seconds for one in transcripts) / audio_seconds,
    )


def word_error_rate(references: Sequence[str], hypotheses: Sequence[str]) -> float:
    """Return the errors per word of the references, ignoring case and punctuation."""
    return jiwer.wer(list(map(plain_text, references)), list(map(plain_text, hypotheses)))


def plain_text(text: str) -> str:
    """Return the words alone, without case and punctuation, separated by single spaces."""
    letters = "".join(
        " " if unicodedata.category(character)[0] in "PZC" else character
        for character in unicodedata.normalize("NFKC", text).casefold().replace("'", "")
    )
    return re.sub(r"\s+", " ", letters).strip()
