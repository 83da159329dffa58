"""How well and how fast a model transcribes: word and character error rates, real-time factor."""

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
class Sample:
    """A recording and what is said in it."""

    audio: Path
    text: str


@dataclass(frozen=True)
class Heard:
    """What a model made of a sample: its text, and the seconds that the recording and the work took."""

    sample: Sample
    text: str
    audio_seconds: float
    seconds: float


@dataclass(frozen=True)
class Scores:
    """Of a set of samples.

    Attributes:
        wer, cer: word and character errors for each word or character that was said.
        audio_seconds: how long the recordings are.
        real_time_factor: seconds of work for each second of audio.
    """

    wer: float
    cer: float
    audio_seconds: float
    real_time_factor: float


def read_manifest(path: Path) -> list[Sample]:
    """A file of JSON lines: ``{"audio": "call.wav", "text": "what is said"}``.

    Paths are relative to the file.

    Raises:
        RequestError: it cannot be read, is empty, or a line is wrong; names the line.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"{path} cannot be read: {error}") from error
    samples = [_sample(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not any(plain_text(sample.text) for sample in samples):
        raise RequestError(f"{path} has no sample in which something is said")
    return samples


def _sample(path: Path, number: int, line: str) -> Sample:
    try:
        entry = json.loads(line)
        audio, text = entry["audio"], entry["text"]
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise RequestError(f"{path}, line {number}: needs audio and text ({error!r})") from error
    if not isinstance(audio, str) or not isinstance(text, str):
        raise RequestError(f"{path}, line {number}: audio and text must be strings")
    return Sample(path.parent / audio, text)


def transcribe_all(
    transcriber: Transcriber,
    samples: Sequence[Sample],
    options: TranscribeOptions,
    advance: Callable[[int], None],
) -> list[Heard]:
    """Transcribes one after another, and counts the seconds."""
    heard = []
    for sample in samples:
        began = time.monotonic()
        transcription = transcriber.transcribe(sample.audio, options)
        text = transcription.text()
        seconds = time.monotonic() - began
        heard.append(Heard(sample, text, transcription.info.duration, seconds))
        advance(1)
    return heard


def score(heard: Sequence[Heard]) -> Scores:
    """Error rates over all words, whatever their case and punctuation; an empty reference counts too."""
    said = [plain_text(one.sample.text) for one in heard]
    texts = [plain_text(one.text) for one in heard]
    audio_seconds = sum(one.audio_seconds for one in heard)
    return Scores(
        wer=jiwer.wer(said, texts),
        cer=jiwer.cer(said, texts),
        audio_seconds=audio_seconds,
        real_time_factor=sum(one.seconds for one in heard) / audio_seconds,
    )


def plain_text(text: str) -> str:
    """Words alone: no case, no punctuation, single spaces."""
    letters = "".join(
        " " if unicodedata.category(character)[0] in "PZC" else character
        for character in unicodedata.normalize("NFKC", text).casefold().replace("'", "")
    )
    return re.sub(r"\s+", " ", letters).strip()
