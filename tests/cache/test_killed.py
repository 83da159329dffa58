"""A server killed while writing: no wrong entry is ever found, and few are lost."""

import asyncio
import random
import subprocess
import sys
import time
from pathlib import Path

from galley.cache.sqlite_store import SqliteStore
from galley.cache.store import Bounds
from tests.cache.entries import entry
from tests.thorough import THOROUGH

_RUN_SECONDS = 1.0
_LOST_SECONDS = 1.0 if THOROUGH else 1.8
"""Time before a kill whose entries may be lost. Next to other tests, the writing thread may wait."""


def killed_writer(path: Path, first: int) -> tuple[dict[int, float], float]:
    """Run a writer and kill it; return number -> Unix time of what it had stored, and the time of death."""
    command = [sys.executable, "-m", "tests.cache.writer", str(path), str(first)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(_RUN_SECONDS + random.random())
    killed = time.time()
    process.kill()
    text, _ = process.communicate()
    whole = [line.split() for line in text.splitlines() if len(line.split()) == 2]
    return {int(number): float(at) for number, at in whole[:-1]}, killed


def test_no_wrong_answer_and_at_most_the_last_second_lost(tmp_path: Path) -> None:
    path = tmp_path / "answers.sqlite"
    bounds = Bounds(bytes=1 << 30, entries=10**6, seconds=3600)
    handed_over: dict[int, float] = {}
    ends: list[float] = []

    async def check() -> None:
        store = SqliteStore(path, bounds)
        found = dict(
            zip(
                handed_over,
                await store.get([entry(number).key for number in handed_over]),
                strict=True,
            )
        )
        for number, at in handed_over.items():
            kept = found[number]
            if kept is None:
                assert any(end - _LOST_SECONDS <= at <= end for end in ends), number
            else:
                assert kept.body == entry(number, size=2000).body
        await store.close()

    for kill in range(50 if THOROUGH else 4):
        some, end = killed_writer(path, 1_000_000 * kill)
        handed_over |= some
        ends.append(end)
        asyncio.run(check())
    assert len(handed_over) > 100
