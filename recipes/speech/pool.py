"""The speech pool that training draws from: made once, kept on disk, determined by its seed.

A shard is a file of samples (8 kHz, one byte each by the mu-law, as telephones code them) and one
of the transcripts. Shards are mapped, so memory does not grow with the pool.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..assistant.wordings import TRAINING, Wordings
from .line import band
from .sentences import SpokenSource, fragment, sentence
from .spoken import letters, spoken
from .voices import RATE, Samples, Voice, draw, say

SHARD: Final = 500
"""Utterances in a shard."""
LONGEST: Final = 6.6
"""Seconds of speech, so that an input of 8 s fits it with its pauses."""
_LETTERS_A_WORD: Final = 4.7
"""espeak-ng speaks at least this many letters for each word counted in its speed."""
_PAUSE: Final = 0.4
_MU: Final = 255.0


class Said(msgspec.Struct, frozen=True):
    """One sentence of an utterance, and its start and end in seconds."""

    written: str
    spoken: str
    start: float
    end: float


class Utterance(msgspec.Struct, frozen=True):
    """One caller's utterance. `first` and `samples` locate it in its shard."""

    sentences: tuple[Said, ...]
    first: int = 0
    samples: int = 0

    @property
    def written(self) -> str:
        """Return the transcript."""
        return " ".join(said.written for said in self.sentences)

    @property
    def letters(self) -> str:
        """Return the encoder's target: lower-case words."""
        return letters(" ".join(said.spoken for said in self.sentences))

    @property
    def seconds(self) -> float:
        """Return the length of the speech in seconds."""
        return self.samples / RATE


def texts(
    source: SpokenSource, wordings: Wordings, speed: int, *, training: bool = True
) -> list[tuple[str, str]]:
    """Return one to four sentences, as written and as spoken, that fit in `LONGEST` seconds at a speed.

    In training some are garbled and some are excerpts of a sentence.
    """
    rng = source.rng
    if training and rng.random() < 0.15:
        cut = fragment(sentence(source, wordings), rng)
        return [(cut, spoken(cut, rng))]
    room = rng.triangular(0.8, LONGEST, 3.5)
    chosen: list[tuple[str, str]] = []
    while len(chosen) < 4 and room > 0:
        text = sentence(source, wordings, loose=training and rng.random() < 0.4)
        said = spoken(text, rng)
        seconds = len(letters(said)) / (_LETTERS_A_WORD * speed / 60) + _PAUSE
        if seconds < room or (seconds < LONGEST and not chosen):
            chosen.append((text, said))
        elif chosen:
            break
        room -= seconds if chosen else 0
    return chosen


def speak(
    sentences: Sequence[tuple[str, str]],
    voice: Voice,
    rng: random.Random,
    pauses: tuple[float, float] = (0.15, 0.6),
) -> tuple[Utterance, Samples]:
    """Synthesize sentences in one voice with pauses (seconds) between them, in the telephone band.

    Raises:
        SettingsError: as `voices.say`.
    """
    parts: list[Samples] = []
    said: list[Said] = []
    at = 0
    for written, text in sentences:
        if parts:
            pause = np.zeros(round(rng.uniform(*pauses) * RATE), np.float32)
            parts.append(pause)
            at += len(pause)
        speech = say(text, voice)
        said.append(Said(written, text, at / RATE, (at + len(speech)) / RATE))
        parts.append(speech)
        at += len(speech)
    return Utterance(tuple(said), samples=at), band(np.concatenate(parts))


def make_shard(seed: int, number: int) -> tuple[list[Utterance], NDArray[np.uint8]]:
    """Return a shard's utterances and all their samples; a function of its arguments alone."""
    rng = random.Random(f"{seed}:{number}")
    source = SpokenSource(rng, held_out=False)
    utterances: list[Utterance] = []
    coded: list[NDArray[np.uint8]] = []
    at = 0
    while len(utterances) < SHARD:
        voice = draw(rng, held_out=False)
        made, speech = speak(texts(source, TRAINING, voice.speed), voice, rng)
        if made.seconds > LONGEST:
            continue
        utterances.append(msgspec.structs.replace(made, first=at))
        coded.append(encode(speech))
        at += len(speech)
    return utterances, np.concatenate(coded)


class Pool:
    """The shards in a folder.

    Args:
        folder: where they are or will be.
        seed: determines texts and voices.
        shards: how many there should be.
    """

    def __init__(self, folder: Path, seed: int, shards: int) -> None:
        self.folder, self.seed, self.shards = folder, seed, shards
        self.utterances: list[list[Utterance]] = []
        self._samples: list[NDArray[np.uint8]] = []

    def fill(self, threads: int) -> Iterator[int]:
        """Make the missing shards; yield the number of each when it is ready.

        Raises:
            SettingsError: as `voices.say`.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(threads) as workers:
            yield from workers.map(self._make, range(self.shards))

    def open(self) -> None:
        """Read the transcripts, and map the samples."""
        decoder = msgspec.json.Decoder(list[Utterance])
        for number in range(self.shards):
            names, samples = self._paths(number)
            self.utterances.append(decoder.decode(names.read_bytes()))
            self._samples.append(np.memmap(samples, np.uint8, mode="r"))

    def speech(self, shard: int, place: int) -> Samples:
        """Return the samples of one utterance, float32 `[samples]`."""
        utterance = self.utterances[shard][place]
        return decode(self._samples[shard][utterance.first : utterance.first + utterance.samples])

    def _paths(self, number: int) -> tuple[Path, Path]:
        stem = f"{self.seed}-{number:05d}"
        return self.folder / f"{stem}.json", self.folder / f"{stem}.ulaw"

    def _make(self, number: int) -> int:
        if not self._paths(number)[0].exists():
            self.write(number, *make_shard(self.seed, number))
        return number

    def write(self, number: int, utterances: Sequence[Utterance], coded: NDArray[np.uint8]) -> None:
        """Save a shard; a killed write leaves none behind."""
        names, samples = self._paths(number)
        samples.write_bytes(coded.tobytes())
        part = names.with_suffix(".part")
        part.write_bytes(msgspec.json.encode(utterances))
        part.replace(names)


def encode(speech: Samples) -> NDArray[np.uint8]:
    """Encode samples in [-1, 1] as one byte each by the mu-law."""
    squeezed = np.sign(speech) * np.log1p(_MU * np.abs(speech)) / np.log1p(_MU)
    coded: NDArray[np.uint8] = np.round(np.clip(squeezed, -1, 1) * 127 + 128).astype(np.uint8)
    return coded


def decode(coded: NDArray[np.uint8]) -> Samples:
    """Invert `encode`."""
    return _LEVELS[coded]


_STEPS = (np.arange(256) - 128) / 127
_LEVELS: Samples = (np.sign(_STEPS) * np.expm1(np.abs(_STEPS) * np.log1p(_MU)) / _MU).astype(
    np.float32
)
