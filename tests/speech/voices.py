"""Conversations of two people who read aloud, and who speaks when in them."""

from pathlib import Path
from typing import Final

import numpy as np

from galley.speech.audio import SAMPLE_RATE, Recording, Samples

READ: Final = Path(__file__).parent / "data" / "read"

ORDER: Final = ("austen-2", "report", "austen-5", "report", "austen-1")
"""Files, which are two people's: one reads the novel, the other the report."""
_PAUSE: Final = SAMPLE_RATE // 2


def conversation() -> tuple[Samples, list[tuple[str, float, float]]]:
    """Return mono samples at 16 kHz, and the turns: (speaker, start, end) in seconds."""
    parts: list[Samples] = []
    turns: list[tuple[str, float, float]] = []
    length = 0
    for name in ORDER:
        samples = np.concatenate(list(Recording(READ / f"{name}.flac")))[: 4 * SAMPLE_RATE]
        samples = samples * np.float32(0.5 / np.abs(samples).max())
        turns.append(
            (name.split("-")[0], length / SAMPLE_RATE, (length + len(samples)) / SAMPLE_RATE)
        )
        parts += [samples, np.zeros(_PAUSE, np.float32)]
        length += len(samples) + _PAUSE
    return np.concatenate(parts), turns


def speaker_at(turns: list[tuple[str, float, float]], seconds: float) -> str | None:
    """Return who speaks at a time; None during a pause."""
    return next((who for who, start, end in turns if start <= seconds < end), None)
