"""Each alert fires in a run that provokes it, and none in a healthy one: a real server and Prometheus.

The rules are deploy's own with durations of seconds (:data:`tests.observe.prometheus.FASTER`).
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.observe.prometheus import RULES, Prometheus, faster, needed
from tests.server.containers import memory_limit
from tests.server.serving import Server, until

pytestmark = [
    pytest.mark.xdist_group("observe_alerts"),
    pytest.mark.skipif(
        "GALLEY_TEST_ALERTS" not in os.environ,
        reason="takes two minutes of a quiet machine: GALLEY_TEST_ALERTS=1 runs it",
    ),
]

MEMORY = 3 * 2**30
TOLD = (
    "up",
    "scrape_duration_seconds",
    "galley:refusals:ratio_rate5m",
    "galley:time_to_first_token_seconds:p99_5m",
    "quantile_over_time(0.5, galley:time_to_first_token_seconds:p99_5m[40s] offset 8s)",
    "galley:request_duration_seconds:p99_5m",
    "quantile_over_time(0.5, galley:request_duration_seconds:p99_5m[40s] offset 8s)",
    "galley:saturated_tokens:rate5m",
    "ALERTS_FOR_STATE",
)
"""Series that are reported when an alert does not fire."""

BODY = {"prompt": "the cat sat", "max_tokens": 200, "min_tokens": 200}


@contextlib.contextmanager
def load(server: Server, lanes: int, *, timeout: str = "60", **body: Any) -> Iterator[None]:
    """Send requests on several lanes, one after another on each."""

    async def lane(client: httpx.AsyncClient) -> None:
        while True:
            with contextlib.suppress(httpx.HTTPError):
                answer = await client.post(
                    "/v1/completions", json=BODY | body, headers={"x-request-timeout": timeout}
                )
                if answer.status_code in (429, 503):
                    await asyncio.sleep(0.5)

    async def run() -> None:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=server.url, timeout=120, limits=limits) as client:
            tasks = [asyncio.create_task(lane(client)) for _ in range(lanes)]
            while not stop.is_set():
                await asyncio.sleep(0.05)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    stop = threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@contextlib.contextmanager
def half_speed(engine: psutil.Process) -> Iterator[None]:
    """Stop the engine's process half of the time, as if a neighbor used its cores."""

    def run() -> None:
        while not stop.is_set():
            engine.suspend()
            time.sleep(0.05)
            engine.resume()
            time.sleep(0.05)

    stop = threading.Event()
    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def fires(prometheus: Prometheus, *names: str) -> None:
    """Wait until all of them fire."""
    try:
        until(lambda: set(names) <= prometheus.firing(), 60)
    except AssertionError:
        known = {name: [sample["value"][1] for sample in prometheus.query(name)] for name in TOLD}
        pytest.fail(f"{set(names) - prometheus.firing()} should fire, and do not: {known}")


def calm(prometheus: Prometheus) -> None:
    """Wait until nothing fires."""
    until(lambda: not prometheus.firing(), 60)


def test_each_alert_fires_when_it_is_provoked(model: Path, tmp_path: Path) -> None:
    needed("prometheus")
    with (
        memory_limit(MEMORY) as confine,
        Server(
            model,
            tmp_path / "log",
            threads=1,
            kv_cache_tokens=65536,
            max_running=4,
            max_queue=64,
            stall_seconds=1,
        ) as server,
        Prometheus(tmp_path, server.port, faster(RULES.read_text())) as prometheus,
    ):
        confine(server.process.pid)
        [engine] = server.children()
        # Three times the slots: some wait even when all running requests end together.
        with load(server, 12):
            time.sleep(30)
            # All baselines exist, and nothing has fired.
            assert prometheus.query("galley:saturated_tokens:rate5m offset 8s")
            assert not prometheus.query('last_over_time(ALERTS{alertstate="firing"}[25s])')
            with half_speed(engine):
                fires(prometheus, "GalleyThroughput", "GalleyThroughputReduced")
        calm(prometheus)
        with load(server, 80):
            fires(prometheus, "GalleyLatency", "GalleyLatencyRaised", "GalleyRefusals")
        calm(prometheus)
        with load(server, 2, timeout="0.05", max_tokens=9000, min_tokens=9000):
            fires(prometheus, "GalleyErrorRate", "GalleyErrorRateRaised")
        calm(prometheus)
        with load(server, 2, max_tokens=9000, min_tokens=9000):
            until(lambda: server.metrics()["galley_requests_running"] == 2)
            engine.suspend()
            fires(prometheus, "GalleyNoResponses", "GalleyNotReady")
            engine.send_signal(signal.SIGKILL)
            fires(prometheus, "GalleyRestarts")
        calm(prometheus)
        with ballast(prometheus, confine):
            fires(prometheus, "GalleyMemory", "GalleyMemoryRaised")
        server.kill()
        fires(prometheus, "GalleyDown")


@contextlib.contextmanager
def ballast(prometheus: Prometheus, confine: Any) -> Iterator[None]:
    """A process next to the server, in the same container, that uses nearly all remaining memory."""
    [sample] = prometheus.query("galley:memory:used_ratio")
    wanted = int((0.965 - float(sample["value"][1])) * MEMORY)
    code = f"import sys; sys.stdin.read(1); b = b'x' * {wanted}; sys.stdin.read(1)"
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    assert process.stdin is not None
    try:
        confine(process.pid)
        process.stdin.write(b"x")
        process.stdin.flush()
        yield
    finally:
        process.kill()
        process.wait()
