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

_LOST_SECONDS = 1.0


def killed_writer(path: Path, first: int) -> dict[int, float]:
    """Run a writer and kill it; return number -> seconds from when an entry was stored to the kill.

    They are negative for what was stored between the reading of the clock and the kill.
    """
    command = [sys.executable, "-m", "tests.cache.writer", str(path), str(first)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(_LOST_SECONDS + random.random())
    killed = time.time()
    process.kill()
    text, _ = process.communicate()
    whole = [line.split() for line in text.splitlines() if len(line.split()) == 2]
    return {int(number): killed - float(at) for number, at in whole[:-1]}


def test_no_wrong_answer_and_at_most_the_last_second_lost(tmp_path: Path) -> None:
    path = tmp_path / "answers.sqlite"
    bounds = Bounds(bytes=1 << 30, entries=10**6, seconds=3600)
    handed_over: dict[int, float] = {}

    async def check() -> None:
        store = SqliteStore(path, bounds)
        found = dict(
            zip(
                handed_over,
                await store.get([entry(number).key for number in handed_over]),
                strict=True,
            )
        )
        for number, age in handed_over.items():
            kept = found[number]
            if kept is None:
                assert age <= _LOST_SECONDS, number
            else:
                assert kept.body == entry(number, size=2000).body
        await store.close()

    for kill in range(50 if THOROUGH else 4):
        handed_over |= killed_writer(path, 1_000_000 * kill)
        asyncio.run(check())
    assert len(handed_over) > 100
