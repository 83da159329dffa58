"""Test a server with ten thousand idle connections and a thousand streams, half of them cut at random.

    python -m benchmarks.faults.connections [MODEL] --idle 10000 --streams 1000 --seconds 600 --json FILE

Starts a real ``galley serve``. Idle connections that the server closes are reopened, so their number stays
constant. At the end every KV block must be free or cached, the server's memory must have grown by less than
2 % since the warm-up, and every stream that was not cut must be complete. Otherwise the exit status is 1.
"""

import argparse
import asyncio
import json
import random
import resource
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path
from typing import Any, Final

import httpx
import psutil
from scripts.benchmarks_page import Figure

from benchmarks.faults.clients import connect
from benchmarks.faults.run import (
    MOST_GROWTH,
    before_and_after,
    kv_blocks,
    leaked_blocks,
    watch_memory,
)
from benchmarks.http_load import Client
from galley.bench.serve.server import started
from galley.machine import cpu_and_cores

PATH: Final = "/v1/completions"
TOKENS: Final = 32
CUT_SHARE: Final = 0.5
LONGEST_CUT: Final = 20.0
"""Seconds within which a stream is cut: while it waits, during its prompt, or in the middle of its text."""
_AT_ONCE: Final = 100
_SPARE_FILES: Final = 1000


@dataclass
class Result:
    """The results of a run.

    Attributes:
        idle: the lowest number of open idle connections once all had been opened.
        reopened: number of idle connections that the server closed.
        health_s: the slowest response of ``/health``, in seconds.
        memory: bytes used by the server process, after the warm-up and at the end.
    """

    complete: int = 0
    cut: int = 0
    failed: list[str] = field(default_factory=list)
    idle: int = 0
    reopened: int = 0
    health_s: float = 0.0
    leaked_blocks: int = 0
    memory: tuple[float, float] = (0.0, 0.0)

    @property
    def memory_growth(self) -> float:
        """Return the growth as a share of the memory after the warm-up."""
        before, after = self.memory
        return after / before - 1


class _Idle(asyncio.Protocol):
    """A connection on which nothing is ever sent."""

    def __init__(self, lost: "asyncio.Queue[_Idle]") -> None:
        self._lost = lost
        self.transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost.put_nowait(self)


class _IdleConnections:
    """Keeps a fixed number of idle connections open."""

    def __init__(self, url: str, count: int, result: Result) -> None:
        place = httpx.URL(url)
        assert place.port
        self._place = (place.host, place.port)
        self._count = count
        self._result = result
        self._open: set[_Idle] = set()
        self._lost: asyncio.Queue[_Idle] = asyncio.Queue()

    async def open(self) -> None:
        """Open all connections."""
        while (missing := self._count - len(self._open)) > 0:
            await asyncio.gather(*(self._one() for _ in range(min(missing, _AT_ONCE))))
        self._result.idle = len(self._open)

    async def keep(self) -> None:
        """Reopen connections that the server closes, until cancelled."""
        while True:
            self._open.discard(await self._lost.get())
            self._result.reopened += 1
            self._result.idle = min(self._result.idle, len(self._open))
            await self._one()

    def close(self) -> None:
        """Close all connections."""
        for connection in self._open:
            if isinstance(connection.transport, asyncio.Transport):
                connection.transport.abort()

    async def _one(self) -> None:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(lambda: _Idle(self._lost), *self._place)
        self._open.add(connection)


async def run(
    url: str, pid: int, *, idle: int, streams: int, seconds: float, warm_up: float, seed: int
) -> Result:
    """Hold the connections and run the streams for ``seconds``."""
    result = Result()
    async with connect(url) as http:
        model = (await http.get("/v1/models")).json()["data"][0]["id"]
        blocks = sum((await kv_blocks(http)).values())
        connections = _IdleConnections(url, idle, result)
        await connections.open()
        began = time.monotonic()
        memory: list[tuple[float, float]] = []
        background = [
            asyncio.create_task(connections.keep()),
            asyncio.create_task(watch_memory(psutil.Process(pid), began, memory)),
            asyncio.create_task(_probe(http, result)),
        ]
        client = Client(url)
        lanes = (
            _stream(client, model, random.Random(f"{seed} {number}"), result, began + seconds)
            for number in range(streams)
        )
        try:
            await asyncio.gather(*lanes)
        finally:
            for task in background:
                task.cancel()
            await asyncio.gather(*background, return_exceptions=True)
            connections.close()
            client.close()
        result.memory = before_and_after(memory, warm_up, seconds)
        result.leaked_blocks = await leaked_blocks(http, blocks)
    return result


async def _stream(
    client: Client, model: str, source: random.Random, result: Result, until: float
) -> None:
    """Run one stream after another; about half of them are cut."""
    while time.monotonic() < until:
        body = {
            "model": model,
            "prompt": [source.randrange(6, 256) for _ in range(source.randrange(1, 200))],
            "max_tokens": TOKENS,
            "ignore_eos": True,
            "stream": True,
        }
        call = await client.begin(PATH, body)
        if source.random() < CUT_SHARE:
            loop = asyncio.get_running_loop()
            hanging_up = loop.call_later(source.uniform(0, LONGEST_CUT), call.hang_up)
            answer = await call.wait()
            hanging_up.cancel()
            result.cut += not answer.whole
            result.complete += answer.whole
        else:
            answer = await call.wait()
            if answer.whole and answer.finished:
                result.complete += 1
            else:
                result.failed.append(f"{answer.status}: {answer.body[:200]!r}")


async def _probe(http: httpx.AsyncClient, result: Result) -> None:
    while True:
        began = time.monotonic()
        (await http.get("/health")).raise_for_status()
        result.health_s = max(result.health_s, time.monotonic() - began)
        await asyncio.sleep(1.0)


def allow_open_files(connections: int) -> bool:
    """Raise the limit of open files for this process and its server; return False if not allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # A server reserves a file descriptor for each connection, since any of them may upload a file.
    wanted = 2 * connections + _SPARE_FILES
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return True
    most = hard if hard == resource.RLIM_INFINITY else max(hard, wanted)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
    except (ValueError, OSError):  # only root may raise the hard limit
        return False
    return True


def table(result: Result, options: Mapping[str, Any], command: str) -> list[Figure]:
    """Return the figures for the results page."""
    today = date.today().isoformat()
    what = (
        f"{options['idle']:,} idle connections, {options['streams']:,} streams, "
        f"{options['seconds']:g} s"
    )
    counts = {
        "complete": result.complete,
        "cut by clients": result.cut,
        "failed": len(result.failed),
        "KV blocks leaked": result.leaked_blocks,
    }
    return [
        Figure(
            what=what,
            unit="count",
            at=tuple(counts),
            measured=tuple(counts.values()),
            date=today,
            command=command,
            remark=f"longest answer to /health {result.health_s:.2g} s",
        ),
        Figure(
            what=f"{what}: growth of the server's memory",
            unit="%",
            at=("",),
            measured=(float(f"{100 * result.memory_growth:.2g}"),),
            date=today,
            command=command,
            target=(100 * MOST_GROWTH,),
            better="lower",
            remark=f"from {result.memory[0] / 1e6:.1f} MB after the warm-up",
        ),
    ]


def main() -> None:
    """Run, print the report, and exit with 1 if a guarantee was broken."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default="galley-demo")
    parser.add_argument("--idle", type=int, default=10_000)
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--warm-up",
        type=float,
        default=60.0,
        help="seconds before the first memory sample that counts",
    )
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--results", type=Path, help="also write the figures to this results file")
    arguments = parser.parse_args()
    options = {name: getattr(arguments, name) for name in ("idle", "streams", "seconds", "seed")}
    if not allow_open_files(arguments.idle + arguments.streams):
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        fit = (hard - _SPARE_FILES) // 2 - arguments.streams
        sys.exit(
            f"with {hard} open files (ulimit -Hn) at most --idle {fit} fit; raise the limit or lower --idle"
        )
    # The server inherits the limit and needs as many descriptors.
    with started(arguments.model, "--max-queue", str(arguments.streams)) as (url, pid):
        warm_up = min(arguments.warm_up, arguments.seconds / 4)
        result = asyncio.run(run(url, pid, warm_up=warm_up, **options))
    report: dict[str, Any] = {"machine": cpu_and_cores(), **options, **asdict(result)}
    report |= {"memory_growth": round(result.memory_growth, 4), "failed": result.failed[:20]}
    print(json.dumps(report, indent=2))
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")
    sys.exit(bool(result.failed or result.leaked_blocks) or result.memory_growth >= MOST_GROWTH)


if __name__ == "__main__":
    main()
