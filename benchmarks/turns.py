"""Make recordings of whole turns with pauses in them, for the cut-offs of ``galley bench voice``.

    python -m benchmarks.turns DIR [--count 24] [--pause 0.8]
    galley bench voice DIR/*.wav --model chat --eagerness auto

The turns are held-out utterances of the speech model's recipe, spoken by espeak-ng over a telephone line.
Those in ``hesitant-*`` have a pause between two words of a sentence, where a caller thinks; those in
``fluent-*`` have none but the 0.4 s between their sentences. Each recording ends with its last word.
"""

import argparse
import wave
from pathlib import Path
from typing import Final

import numpy as np
import soxr

from benchmarks.spoken import Utterance, say
from galley.speech.features import SAMPLE_RATE
from recipes.speech.heldout import make
from recipes.speech.voices import Samples

_AFTER: Final = 0.03
"""Seconds of a word's sound after the end that the synthesizer states."""
_FADE: Final = 80
"""Samples over which sound fades at a cut."""


def hesitant(said: Utterance, pause: float, draw: np.random.Generator) -> Samples:
    """Return an utterance with a pause after one of the words that end no sentence."""
    ends = [word.end for word in said.words[:-1] if word.text[-1] not in ".?!,"]
    at = round((float(draw.choice(ends)) + _AFTER) * SAMPLE_RATE)
    before, after = said.samples[:at].copy(), said.samples[at:].copy()
    fade = np.linspace(1, 0, _FADE, dtype=np.float32)
    before[-_FADE:] *= fade
    after[:_FADE] *= fade[::-1]
    return np.concatenate([before, np.zeros(round(pause * SAMPLE_RATE), np.float32), after])


def main() -> None:
    """Write the recordings."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=24, help="turns of each kind")
    parser.add_argument("--pause", type=float, default=0.8, help="seconds of a pause")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    draw = np.random.default_rng(36)
    items = [item for pair in zip(make(1), make(2), strict=True) for item in pair]
    for number, item in enumerate(items[: given.count]):
        said = say(item)
        end = round((said.words[-1].end + _AFTER) * SAMPLE_RATE)
        said = Utterance(said.samples[:end], said.words)
        for kind, samples in (
            ("fluent", said.samples),
            ("hesitant", hesitant(said, given.pause, draw)),
        ):
            _write(given.folder / f"{kind}-{number:02d}.wav", samples)


def _write(path: Path, samples: Samples) -> None:
    at_24_khz = soxr.resample(samples, SAMPLE_RATE, 24_000)
    pcm = np.round(at_24_khz.clip(-1, 1) * 32_767).astype("<i2")
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(24_000)
        file.writeframes(pcm.tobytes())


if __name__ == "__main__":
    main()
