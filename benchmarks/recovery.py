"""Measure how streams are affected by the death of an engine and by the reload of a model.

    python -m benchmarks.recovery [MODEL] [--weight-dtype int4] [--streams 8] [--kills 5] [--json FILE]

Starts a real ``galley serve`` with clients that send the next request when an answer is complete. After
``kill -9`` of the engine: the time from the signal to the next token of each stream. After SIGHUP to the
server with a changed config.json: the largest gap between two tokens of a stream until the old engine has
exited, compared with an equally long time before. No request may fail. ``python -m
benchmarks.peers.checkpoint`` makes a MODEL with 1.24 billion weights (``llama-1b``). Run it on an idle
machine.
"""

import argparse
import asyncio
import json
import os
import random
import shutil
import signal
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import httpx
import psutil
from rich.console import Console
from scripts.benchmarks_page import Figure

from benchmarks.faults.run import engine_of
from benchmarks.http_load import Answer, Call, Client
from benchmarks.results_file import machine_file, put
from benchmarks.serving import Server, percentile, serving
from galley.formats.source import resolve_model
from galley.machine import cpu_and_cores

PATH: Final = "/v1/completions"
PROMPT_TOKENS: Final = 64
SHORT_TOKENS: Final = 64
"""Tokens of an answer during a reload, so that requests start before, during and after it."""
RELOAD_SECONDS: Final = 300.0
BEFORE_SECONDS: Final = 10.0


@dataclass
class Stream:
    """The answers of one client, one after another."""

    calls: list[Call] = field(default_factory=list)

    @property
    def events(self) -> list[float]:
        """Return the arrival time of each token, over all answers."""
        return [at for call in self.calls for at in call.answer.events]

    def gaps(self, begin: float, end: float) -> list[tuple[float, float]]:
        """Return start and end of each gap between tokens that overlaps a time span."""
        return [(a, b) for a, b in pairwise(self.events) if b > begin and a < end]


class Streams:
    """Clients that always have a request in flight."""

    def __init__(self, server: Server, count: int, tokens: int) -> None:
        self.streams = [Stream() for _ in range(count)]
        self.failed: list[str] = []
        self._server = server
        self._tokens = tokens
        self._client = Client(server.url)
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> "Streams":
        self._tasks = [asyncio.create_task(self._run(s, n)) for n, s in enumerate(self.streams)]
        while not all(stream.events for stream in self.streams):
            self.check()
            await asyncio.sleep(0.05)
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._client.close()

    def check(self) -> None:
        """Raise RuntimeError if a request has failed."""
        if self.failed:
            raise RuntimeError(f"{len(self.failed)} requests failed, the first: {self.failed[0]}")

    async def _run(self, stream: Stream, number: int) -> None:
        source = random.Random(number)
        while True:
            body = {
                "model": self._server.model,
                "prompt": [source.randrange(self._server.id_limit) for _ in range(PROMPT_TOKENS)],
                "max_tokens": self._tokens,
                "ignore_eos": True,
                "stream": True,
                "temperature": 0,
            }
            call = await self._client.begin(PATH, body)
            stream.calls.append(call)
            answer = await call.wait()
            if not (answer.whole and answer.finished):
                self.failed.append(_described(answer))
                return


def _described(answer: Answer) -> str:
    return f"status {answer.status}, {len(answer.events)} events, {answer.body[-200:]!r}"


async def kills(server: Server, *, streams: int, count: int, every: float) -> list[float]:
    """Return the seconds from each of ``count`` engine deaths to the next token of each stream."""
    limit = await _context(server) - PROMPT_TOKENS - 1
    recovered: list[float] = []
    async with Streams(server, streams, limit) as running:
        for _ in range(count):
            await asyncio.sleep(every / 2)
            engine_of(server.pid).send_signal(signal.SIGKILL)
            killed = time.monotonic()
            await asyncio.sleep(every / 2)
            while any(stream.events[-1] < killed + every / 4 for stream in running.streams):
                running.check()
                await asyncio.sleep(0.1)
            # What the engine had sent before it died still arrives; the silence after that is the outage.
            spans = (stream.gaps(killed, time.monotonic()) for stream in running.streams)
            recovered += [max(span, key=lambda gap: gap[1] - gap[0])[1] - killed for span in spans]
        running.check()
    return recovered


async def reload(server: Server, folder: Path, *, streams: int) -> dict[str, float]:
    """Return the seconds of a reload under load, and the largest token gaps before and during it."""
    async with Streams(server, streams, SHORT_TOKENS) as running:
        await asyncio.sleep(BEFORE_SECONDS)
        old = engine_of(server.pid)
        began = time.monotonic()
        os.utime(folder / "config.json")
        psutil.Process(server.pid).send_signal(signal.SIGHUP)
        while old.is_running() and old.status() != psutil.STATUS_ZOMBIE:
            running.check()
            if time.monotonic() > began + RELOAD_SECONDS:
                raise TimeoutError(f"the old engine still runs after {RELOAD_SECONDS:.0f} s")
            await asyncio.sleep(0.05)
        seconds = time.monotonic() - began
        await asyncio.sleep(1.0)
        running.check()
        requests = sum(len(stream.calls) for stream in running.streams)
        before = _largest(running, began - min(BEFORE_SECONDS, seconds), began)
        during = _largest(running, began, time.monotonic())
    return {"seconds": seconds, "gap_before": before, "gap_during": during, "requests": requests}


@contextmanager
def changeable(model: str) -> Iterator[Path]:
    """Link or copy a model's files into a folder; config.json is always copied."""
    source = resolve_model(model)
    with tempfile.TemporaryDirectory() as new, tempfile.TemporaryDirectory() as cache:
        # Nobody can reuse weights packed for this temporary folder.
        os.environ["GALLEY_CACHE_DIR"] = cache
        for file in source.iterdir():
            if file.suffix == ".safetensors":
                with suppress(OSError):
                    os.link(file, Path(new, file.name))
                    continue
            shutil.copy2(file, new)
        yield Path(new)


def _largest(running: Streams, begin: float, end: float) -> float:
    return max(b - a for stream in running.streams for a, b in stream.gaps(begin, end))


async def _context(server: Server) -> int:
    async with httpx.AsyncClient(base_url=server.url) as http:
        body = {"model": server.model, "prompt": "a"}
        return int((await http.post("/tokenize", json=body)).json()["max_model_len"])


def figures(results: dict[str, Any], name: str, command: str) -> list[Figure]:
    """Return the figures for the results page."""
    today = date.today().isoformat()
    found = []
    if recovered := results["recovered_s"]:
        found.append(
            Figure(
                what=f"kill -9 of the engine, {name}: time to the next token",
                unit="ms",
                at=("P50", "all streams"),
                measured=(
                    round(1e3 * statistics.median(recovered)),
                    round(1e3 * max(recovered)),
                ),
                date=today,
                command=command,
                better="lower",
                remark=f"{results['streams']} streams, {results['kills']} kills, no request failed",
            )
        )
    if again := results["reload"]:
        found.append(
            Figure(
                what=f"reload under load, {name}: largest gap between two tokens",
                unit="ms",
                at=("before", "during"),
                measured=(round(1e3 * again["gap_before"]), round(1e3 * again["gap_during"])),
                date=today,
                command=command,
                better="lower",
                remark=(
                    f"{results['streams']} streams, {again['requests']} requests, none failed; the "
                    f"reload took {again['seconds']:.1f} s"
                ),
            )
        )
    return found


def main() -> None:
    """Measure, print, and write the figures if requested."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default="galley-demo")
    parser.add_argument("--name", default="bundled model", help="name of the model in the results")
    parser.add_argument("--weight-dtype", default="auto")
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--every", type=float, default=8.0, help="seconds between kills")
    parser.add_argument("--no-reload", action="store_true")
    parser.add_argument("--json", type=Path, help="also write all figures to this file")
    parser.add_argument(
        "--results", type=machine_file, help="also write the figures to this results file"
    )
    arguments = parser.parse_args()
    results: dict[str, Any] = {"machine": cpu_and_cores(), "recovered_s": [], "reload": None}
    results |= {"streams": arguments.streams, "kills": arguments.kills}
    with (
        changeable(arguments.model) as folder,
        serving(str(folder), "--weight-dtype", arguments.weight_dtype) as server,
    ):
        if arguments.kills:
            options = {"count": arguments.kills, "every": arguments.every}
            results["recovered_s"] = asyncio.run(
                kills(server, streams=arguments.streams, **options)
            )
        if not arguments.no_reload:
            results["reload"] = asyncio.run(reload(server, folder, streams=arguments.streams))
    report(results)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")
    if arguments.results:
        command = "python -m benchmarks.recovery"
        put(arguments.results, figures(results, arguments.name, command))


def report(results: dict[str, Any]) -> None:
    """Print one line for each figure."""
    console = Console()
    console.print(results["machine"])
    if recovered := results["recovered_s"]:
        p50, p90 = percentile(recovered, 50), percentile(recovered, 90)
        console.print(
            f"kill -9 to the next token: median {p50:.2f} s, P90 {p90:.2f} s, worst "
            f"{max(recovered):.2f} s ({results['kills']} kills, {results['streams']} streams)"
        )
    if again := results["reload"]:
        console.print(
            f"reload: {again['seconds']:.2f} s; largest gap between two tokens before "
            f"{1e3 * again['gap_before']:.0f} ms, during {1e3 * again['gap_during']:.0f} ms; "
            f"{again['requests']} requests, none failed"
        )


if __name__ == "__main__":
    main()
