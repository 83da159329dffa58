"""Clips of people's recordings with known words, in any order, with pauses and background sounds."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal, get_args

import numpy as np

from galley.speech.audio import SAMPLE_RATE, Recording, Samples
from tests import real

CLIPS: Final = (
    ("jfk.flac", 0.1, 10.8, real.JFK),
    ("jfk.flac", 0.1, 2.5, "And so my fellow Americans"),
    ("jfk.flac", 3.1, 4.6, "Ask not"),
    ("jfk.flac", 8.0, 10.7, "ask what you can do for your country"),
    ("trn03.wav", 5.4, 6.86, "What I'm having is"),
    ("trn03.wav", 10.95, 12.8, "not finding out why"),
    ("trn05.wav", 8.0, 8.5, "Okay"),
    (
        "read/austen-1.flac",
        0.0,
        7.1,
        "And Mr John Dashwood had then leisure to consider how much there might be prudently in his "
        "power to do for them",
    ),
    ("read/austen-2.flac", 0.0, 3.0, "He was not an ill disposed young man"),
    (
        "read/austen-3.flac",
        0.0,
        5.3,
        "unless to be rather cold hearted and rather selfish is to be ill disposed",
    ),
    (
        "read/austen-4.flac",
        0.0,
        6.1,
        "Had he married a more amiable woman he might have been made still more respectable than he was",
    ),
    ("read/austen-5.flac", 0.0, 3.3, "he might even have been made amiable himself"),
    (
        "read/report.flac",
        0.0,
        7.7,
        "unless a system is established for the frequent formal review of activities thereunder in this "
        "regard",
    ),
)
"""File, seconds, and text."""

_READ: Final = Path(__file__).parent / "speech" / "data"

Condition = Literal["plain", "silence", "noise", "music", "overlap"]
CONDITIONS: Final[tuple[Condition, ...]] = get_args(Condition)

_PAUSES: Final = (0.1, 2.0)
_LONG_PAUSES: Final = (2.0, 20.0)
_PEAK: Final = 0.5
_BELOW: Final = 10 ** (-15 / 20)
"""Level of the background relative to the speech: -15 dB."""


def clips() -> Iterator[tuple[Samples, list[str]]]:
    """Yield the samples of each clip, mono at 16 kHz, and the words spoken in them."""
    for name, start, end, text in CLIPS:
        whole = _recording(name)
        yield whole[round(start * SAMPLE_RATE) : round(end * SAMPLE_RATE)], real.words(text)


def shuffled(
    seed: int, seconds: float, condition: Condition = "plain"
) -> tuple[Samples, list[str]]:
    """Return mono samples at 16 kHz, and the words spoken in them.

    Args:
        seed: determines the order and the pauses.
        seconds: length, which the last clip may exceed.
        condition: "silence": long pauses; "noise": white noise throughout; "music": chords; "overlap":
            other people talk in the background.
    """
    chance = random.Random(seed)
    recordings = {name: _recording(name) for name, *_ in CLIPS}
    parts: list[Samples] = []
    said: list[str] = []
    length = 0
    while length < seconds * SAMPLE_RATE:
        name, start, end, text = chance.choice(CLIPS)
        clip = recordings[name][round(start * SAMPLE_RATE) : round(end * SAMPLE_RATE)]
        pause = chance.uniform(*(_LONG_PAUSES if condition == "silence" else _PAUSES))
        parts += [
            clip * np.float32(_PEAK / np.abs(clip).max()),
            np.zeros(round(pause * SAMPLE_RATE), np.float32),
        ]
        length += len(parts[-1]) + len(parts[-2])
        said += real.words(text)
    speech = np.concatenate(parts)
    if condition in ("plain", "silence"):
        return speech, said
    under = _under(condition, len(speech), seed)
    level = _BELOW * np.sqrt(np.square(speech).mean() / np.square(under).mean())
    return np.clip(speech + under * np.float32(level), -1.0, 1.0), said


def _recording(name: str) -> Samples:
    path = _READ / name
    return np.concatenate(list(Recording(path))) if path.exists() else real.recording(name)


def _under(condition: Condition, length: int, seed: int) -> Samples:
    if condition == "noise":
        return np.random.default_rng(seed).normal(size=length).astype(np.float32)
    if condition == "overlap":
        return np.resize(real.recording("trn04.wav"), length)
    chance = random.Random(seed)
    second = np.arange(SAMPLE_RATE) / SAMPLE_RATE
    bars = []
    for _ in range(-(-length // SAMPLE_RATE)):
        root = 220.0 * 2 ** (chance.choice((0, 2, 5, 7, 9)) / 12)
        chord = sum(np.sin(2 * np.pi * root * ratio * second) for ratio in (1, 5 / 4, 3 / 2, 2))
        bars.append(chord * np.exp(-2 * second))
    return np.concatenate(bars)[:length].astype(np.float32)
