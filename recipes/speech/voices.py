"""Callers' voices: espeak-ng, called as a process, text in and samples out.

It is not a Python package: `apt-get install espeak-ng`. The bundled model was trained with version 1.51.
"""

from __future__ import annotations

import random
import subprocess
from dataclasses import dataclass
from typing import Final

import numpy as np
import soxr
from numpy.typing import NDArray

from galley.errors import SettingsError

from ..assistant.vocabulary import is_held_out

Samples = NDArray[np.float32]

RATE: Final = 8_000
"""Hz, of a telephone line."""

ACCENTS: Final = (
    "en-gb", "en-us", "en-gb-scotland", "en-gb-x-rp", "en-gb-x-gbclan", "en-gb-x-gbcwmd", "en-029",
    "en-us-nyc",
)  # fmt: skip

# The human-sounding variants of espeak-ng, one of each family.
_VARIANTS: Final = (
    "m1", "m2", "m3", "m4", "m5", "m6", "m7", "m8", "f1", "f2", "f3", "f4", "f5", "Alex", "Alicia",
    "Andrea", "Andy", "Annie", "Denis", "Diogo", "Gene", "Henrique", "Hugo", "Jacky", "Lee", "Marco",
    "Mario", "Michael", "Mike", "Mr", "Nguyen", "adam", "anika", "antonio", "aunty", "belinda",
    "benjamin", "boris", "david", "ed", "edward", "gustave", "iven", "john", "kaukovalta", "linda",
    "marcelo", "max", "michel", "miguel", "norbert", "pablo", "paul", "pedro", "quincy", "rob",
    "robert", "sandro", "shelby", "steph", "travis", "victor", "zac", "grandma", "grandpa", "klatt",
    "klatt4",
)  # fmt: skip

TRAINING_VARIANTS: Final = tuple(name for name in _VARIANTS if not is_held_out(name))
HELD_OUT_VARIANTS: Final = tuple(name for name in _VARIANTS if is_held_out(name))
"""Voices that training never hears, by the checksum of their names."""

_ESPEAK_RATE: Final = 22_050
_HEADER_BYTES: Final = 44
_AUDIBLE: Final = 0.01
"""Of the loudest sample: what is below it at both ends is cut."""


@dataclass(frozen=True, slots=True)
class Voice:
    """A speaker. `variant` is the timbre, `speed` in words per minute, `pitch` 0 to 99."""

    accent: str
    variant: str
    speed: int
    pitch: int


def draw(rng: random.Random, *, held_out: bool) -> Voice:
    """Return a voice from one side of the hold-out split."""
    variants = HELD_OUT_VARIANTS if held_out else TRAINING_VARIANTS
    return Voice(
        rng.choice(ACCENTS), rng.choice(variants), rng.randint(135, 200), rng.randint(25, 75)
    )


def say(text: str, voice: Voice) -> Samples:
    """Synthesize speech without surrounding silence: float32 `[samples]` at `RATE`, peak 0.7.

    Raises:
        SettingsError: espeak-ng is missing, or does not know the voice.
    """
    command = ["espeak-ng", "-v", f"{voice.accent}+{voice.variant}", "-s", str(voice.speed)]
    command += ["-p", str(voice.pitch), "--stdin", "--stdout"]
    try:
        made = subprocess.run(command, input=text.encode(), capture_output=True, check=True)
    except FileNotFoundError as error:
        raise SettingsError(
            "speech for training is made by espeak-ng, which is not installed: "
            "apt-get install espeak-ng (Debian, Ubuntu), brew install espeak-ng (macOS)"
        ) from error
    except subprocess.CalledProcessError as error:
        reason = error.stderr.decode(errors="replace").strip()
        raise SettingsError(f"espeak-ng cannot speak as {voice}: {reason}") from error
    # A stream's header cannot state the length, so it is skipped without parsing.
    wide = np.frombuffer(made.stdout[_HEADER_BYTES:], "<i2").astype(np.float32)
    loudest = np.abs(wide).max(initial=0.0)
    if loudest == 0:
        raise SettingsError(f"espeak-ng says nothing for {text!r} as {voice}")
    audible = np.flatnonzero(np.abs(wide) > _AUDIBLE * loudest)
    wide = wide[audible[0] : audible[-1] + 1] * (0.7 / loudest)
    narrow: Samples = soxr.resample(wide, _ESPEAK_RATE, RATE)
    return narrow
