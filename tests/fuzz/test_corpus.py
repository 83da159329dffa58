"""Each fuzz target on its committed corpus and on seeded mutations of it, without atheris."""

import random
from pathlib import Path

import pytest

from fuzz import targets

MUTANTS = 40
"""Mutations of each file of a corpus."""


@pytest.mark.parametrize(
    ("name", "path"),
    [(name, path) for name in targets.NAMES for path in targets.corpus(name)],
    ids=lambda value: value.name if isinstance(value, Path) else str(value),
)
def test_a_corpus_has_no_findings(name: str, path: Path) -> None:
    target = targets.load(name)
    data = path.read_bytes()
    target.fuzz(data)
    for seed in range(MUTANTS):
        source = random.Random(seed)
        mutated = target.mutate(data, source) if seed % 2 else None
        mutated = mutated or mutant(data, source)
        try:
            target.fuzz(mutated)
        except Exception as error:
            error.add_note(f"input: {mutated[:2000]!r}")
            raise


def mutant(data: bytes, source: random.Random) -> bytes:
    """Cut out, double or overwrite up to four pieces of ``data``."""
    changed = bytearray(data)
    for _ in range(source.randrange(1, 5)):
        begin = source.randrange(len(changed) + 1)
        end = min(len(changed), begin + source.randrange(1, 9))
        piece = bytes(changed[begin:end])
        changed[begin:end] = source.choice((b"", piece * 2, source.randbytes(len(piece))))
    return bytes(changed)


def test_an_unexpected_exception_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from fuzz import requests

    def fails(_: bytes) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(requests, "READERS", (fails,))
    with pytest.raises(ZeroDivisionError):
        targets.load("requests").fuzz(b"0{}")
