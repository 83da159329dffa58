"""A process that stores entries until it is killed, and reports each one it has handed over."""

import asyncio
import sys
import time
from pathlib import Path

from galley.cache.sqlite_store import SqliteStore
from galley.cache.store import Bounds
from tests.cache.entries import entry


async def main(path: Path, first: int) -> None:
    store = SqliteStore(path, Bounds(bytes=1 << 30, entries=10**6, seconds=3600))
    number = first
    while True:
        await store.put(entry(number, size=2000, seconds=3600))
        print(number, time.time(), flush=True)
        number += 1
        await asyncio.sleep(0.001)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
