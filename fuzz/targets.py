"""The fuzz targets: each module of this package with a function ``fuzz(data: bytes) -> None``.

``fuzz`` returns for bytes that are accepted or refused with a :class:`galley.errors.GalleyError`; any other
exception is a finding. A module may have ``TOKENS``, the words that libFuzzer puts into its inputs, and
``mutate(data: bytes, source: random.Random) -> bytes | None``, a structure-aware mutation;
None leaves the mutation to libFuzzer.
"""

import importlib
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

FOLDER: Final = Path(__file__).parent
CORPUS: Final = FOLDER / "corpus"
NAMES: Final = tuple(
    sorted(
        file.stem
        for file in FOLDER.glob("*.py")
        if file.stem not in ("__init__", "__main__", "targets")
    )
)


class Target(NamedTuple):
    """One parser of untrusted bytes, as described by its module."""

    fuzz: Callable[[bytes], None]
    tokens: tuple[str, ...]
    mutate: Callable[[bytes, random.Random], bytes | None]


def load(name: str) -> Target:
    """Return the target of the module ``name``."""
    module = importlib.import_module(f"fuzz.{name}")
    return Target(module.fuzz, getattr(module, "TOKENS", ()), getattr(module, "mutate", _nothing))


def corpus(name: str) -> Iterator[Path]:
    """Yield the committed inputs of a target, in the order of their names."""
    yield from sorted(path for path in (CORPUS / name).iterdir() if path.is_file())


def _nothing(data: bytes, source: random.Random) -> None:
    del data, source
