"""A fault run: clients, faults, and the memory and KV blocks in use afterwards."""

import asyncio
import contextlib
import signal
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import httpx
import psutil
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.faults.clients import Record, connect, known, run_clients
from benchmarks.faults.schedule import Fault, faults, prompts

PROMPTS: Final = 40
LONGEST: Final = 200
"""Tokens of an answer."""
LONGEST_PAUSE: Final = 40.0
"""Seconds; longer than a server waits for a client that takes nothing."""
MOST_GROWTH: Final = 0.02
"""Of a server's memory after the warm-up."""
SAMPLES: Final = 40
SETTLE_SECONDS: Final = 20.0
"""Within them a server without requests has no used blocks."""


@dataclass
class Result:
    """The figures of one run.

    Attributes:
        injected: number of faults by kind, those of clients included.
        memory: bytes used by the server process: (after the warm-up, at the end), each a median.
        samples: evenly spaced samples of the same, from the start to the end of the load.
        leaked_blocks: used KV blocks when no request is left, plus blocks in no state at all.
    """

    seed: int
    seconds: float
    clients: int
    injected: Counter[str] = field(default_factory=Counter)
    record: Record = field(default_factory=Record)
    memory: tuple[float, float] = (0.0, 0.0)
    samples: list[float] = field(default_factory=list)
    leaked_blocks: int = 0
    restarts: int = 0

    @property
    def memory_growth(self) -> float:
        """Return the growth as a share of the memory after the warm-up."""
        before, after = self.memory
        return after / before - 1

    def shown(self) -> dict[str, Any]:
        """Return the figures as JSON."""
        return {
            "seed": self.seed,
            "seconds": self.seconds,
            "clients": self.clients,
            "faults": dict(self.injected),
            "requests": self.record.requests,
            "outcomes": dict(self.record.outcomes),
            "lost": self.record.lost,
            "resumed": self.record.resumed,
            "compared": self.record.compared,
            "restarts": self.restarts,
            "leaked_blocks": self.leaked_blocks,
            "memory_mb": [round(size / 1e6, 1) for size in self.memory],
            "memory_over_time_mb": [round(size / 1e6, 1) for size in self.samples],
            "memory_growth": round(self.memory_growth, 4),
        }


async def run(
    url: str,
    pid: int,
    *,
    seed: int,
    seconds: float,
    clients: int,
    warm_up: float,
    texts: int = PROMPTS,
) -> Result:
    """Inject the seed's faults into the engine of the server with the process id ``pid``.

    ``texts``: how many prompts there are, whose texts are taken before.
    """
    result = Result(seed, seconds, clients)
    async with connect(url) as http:
        model = (await http.get("/v1/models")).json()["data"][0]["id"]
        truths = await known(url, model, prompts(seed, texts, LONGEST))
        blocks = sum((await kv_blocks(http)).values())
        began = time.monotonic()
        record = result.record
        load = run_clients(
            url,
            truths,
            record,
            seed=seed,
            count=clients,
            until=began + seconds,
            longest_pause=min(LONGEST_PAUSE, seconds / 10),
        )
        memory: list[tuple[float, float]] = []
        watching = asyncio.create_task(watch_memory(psutil.Process(pid), began, memory))
        injecting = asyncio.create_task(_inject(pid, faults(seed, seconds), began, result))
        try:
            await load
            await injecting
        finally:
            watching.cancel()
            injecting.cancel()
        result.injected["disconnect"] = record.outcomes["gave up"]
        result.injected["slow reader"] = record.slow
        result.injected["bad request"] = record.outcomes["refused as bad"]
        result.memory = before_and_after(memory, warm_up, seconds)
        result.samples = [size for _, size in memory[:: max(1, len(memory) // SAMPLES)]]
        result.leaked_blocks = await leaked_blocks(http, blocks)
        result.restarts = int(await metric(http, "galley_engine_restarts_total"))
    return result


async def kv_blocks(http: httpx.AsyncClient) -> dict[str, int]:
    """KV blocks by state."""
    page = (await http.get("/metrics")).text
    return {
        sample.labels["state"]: int(sample.value)
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == "galley_kv_blocks"
    }


async def metric(http: httpx.AsyncClient, name: str) -> float:
    """A sample's value, summed over all labels."""
    page = (await http.get("/metrics")).text
    families = text_string_to_metric_families(page)
    return sum(s.value for family in families for s in family.samples if s.name == name)


def engine_of(pid: int) -> psutil.Process:
    """The engine process of a server with one model. Raises NoSuchProcess if there is none."""
    for child in psutil.Process(pid).children():
        with contextlib.suppress(psutil.NoSuchProcess):
            alive = child.status() != psutil.STATUS_ZOMBIE
            if alive and "galley.service.worker" in child.cmdline():
                return child
    raise psutil.NoSuchProcess(pid, msg="it has no engine at the moment")


async def _inject(pid: int, schedule: Sequence[Fault], began: float, result: Result) -> None:
    for fault in schedule:
        await asyncio.sleep(began + fault.at - time.monotonic())
        # None, gone between the two, killed by a watchdog while it is stopped: each is a fault, too.
        with contextlib.suppress(psutil.NoSuchProcess):
            engine = engine_of(pid)
            if fault.kind == "kill":
                engine.send_signal(signal.SIGKILL)
                result.record.kills.append(time.monotonic())
            else:
                engine.send_signal(signal.SIGSTOP)
                await asyncio.sleep(fault.seconds)
                engine.send_signal(signal.SIGCONT)
        result.injected[fault.kind] += 1


async def watch_memory(
    server: psutil.Process, began: float, memory: list[tuple[float, float]]
) -> None:
    """Append (seconds since ``began``, bytes of the server process) four times a second, without end."""
    while True:
        memory.append((time.monotonic() - began, server.memory_info().rss))
        await asyncio.sleep(0.25)


def before_and_after(
    memory: Sequence[tuple[float, float]], warm_up: float, seconds: float
) -> tuple[float, float]:
    """Medians of a tenth of the time, after the warm-up and at the end of the load."""
    tenth = seconds / 10
    before = [size for at, size in memory if warm_up <= at < warm_up + tenth]
    after = [size for at, size in memory if seconds - tenth <= at < seconds]
    return statistics.median(before), statistics.median(after)


async def leaked_blocks(http: httpx.AsyncClient, total: int) -> int:
    """Blocks that are used, or in no state, when the server has had time to settle without requests."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while True:
        blocks = await kv_blocks(http)
        leaked = blocks["used"] + abs(total - sum(blocks.values()))
        if not leaked or time.monotonic() > deadline:
            return leaked
        await asyncio.sleep(0.2)
