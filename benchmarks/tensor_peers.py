"""Measure tensor models in Galley and in other Python servers, in turns, with the same clients.

    python -m benchmarks.tensor_peers [--home build/tensor-peers] [--seconds 3] [--clients 1,16,64]
        [--servers galley,mlserver,litserve,bento,ray_serve] [--json FILE] [--results FILE]

Models: 100 boosted trees on 30 features, an encoder of MiniLM's shape on 32 tokens, and a classifier of
images with 5 MB of weights. Each server runs them in one thread each, with its own batching, and is
installed in an environment of its own in HOME by the first run. A client is a closed loop; a request has
one row. For each server, model and number of clients: requests per second, latency (P50, P99), and the CPU
seconds of all of the server's processes for each request. Then Galley gets requests of 32 rows, in turns
with a session of the library alone in this process. ``--check`` compares each server's answers with the
library's. Run it on an idle machine: the first run installs for minutes, further ones take about five.
"""

import argparse
import asyncio
import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import psutil
from rich.console import Console
from rich.progress import track
from rich.table import Table
from scripts.benchmarks_page import Figure

from benchmarks.http_load import Client
from benchmarks.peers.install import ROOT, install, log_file, python_of
from benchmarks.peers.protocol import Peer
from benchmarks.results_file import machine_file, put
from benchmarks.serving import percentile
from benchmarks.tensor_servers.files import write_models
from benchmarks.tensor_servers.requests import (
    BINARY,
    MODELS,
    Request,
    alone,
    inputs,
    protocol_request,
    request_for,
)
from galley.bench.serve.server import started
from galley.machine import cpu_and_cores, cpu_seconds

PEERS: Final = ("mlserver", "litserve", "bento", "ray_serve")
SERVERS: Final = ("galley", *PEERS)
LIMIT: Final = 0.005
"""Seconds within which 99 of 100 requests are to be answered."""
ROWS: Final = 32
START_SECONDS: Final = 120.0


@dataclass(frozen=True)
class Load:
    """The result of a number of clients. Times are in seconds; ``cpu`` is that of a request."""

    server: str
    model: str
    clients: int
    requests: int
    rate: float
    p50: float
    p99: float
    cpu: float
    failed: int


def free_port() -> int:
    """Return a port that nothing uses."""
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])


@contextmanager
def serving(server: str, folder: Path, home: Path) -> Iterator[tuple[str, int]]:
    """Start a server; yield its URL and process id once it answers for all models."""
    if server == "galley":
        files = [f"trees={folder}/trees.json", f"text={folder}/text.onnx"]
        flags = ("--threads", "1", "--max-body-bytes", str(2**25))
        with started(*files, f"image={folder}/image.onnx", *flags) as running:
            yield running
        return
    peer = Peer(server, {}, load=lambda *_: None)
    install(peer, home)
    port = free_port()
    command = [python_of(peer, home), "-m", f"benchmarks.tensor_servers.{server}", folder, port]
    environ = os.environ | {
        "OMP_NUM_THREADS": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "BENTOML_DO_NOT_TRACK": "1",
        "PATH": f"{python_of(peer, home).parent}:{os.environ['PATH']}",
    }
    with log_file(peer, home).open("ab") as log:
        process = subprocess.Popen(
            list(map(str, command)), cwd=ROOT, env=environ, stdout=log, stderr=log
        )
    url = f"http://127.0.0.1:{port}"
    try:
        asyncio.run(_wait(url, server, process))
        yield url, process.pid
    finally:
        _end(process)


async def _wait(url: str, server: str, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + START_SECONDS
    for model in MODELS:
        client, request = Client(url), request_for(server, model)
        while True:
            try:
                answer = await client.post(request.path, request.body, **request.headers)
            except OSError:
                answer = None
            if answer is not None and answer.status == 200:
                break
            if process.poll() is not None or time.monotonic() > deadline:
                said = answer.body[:300] if answer else "no answer"
                raise RuntimeError(f"{server} does not serve {model}: {said!r}")
            await asyncio.sleep(0.2)
        client.close()


def _end(process: "subprocess.Popen[bytes]") -> None:
    running = process.poll() is None
    family = psutil.Process(process.pid).children(recursive=True) if running else []
    process.terminate()
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        process.kill()
    for child in family:
        if child.is_running():
            child.kill()


async def closed_loops(
    url: str, request: Request, clients: int, seconds: float
) -> tuple[list[float], int, float]:
    """Return the latencies, the number of failures and the duration of this many closed loops."""
    client = Client(url)
    latencies: list[float] = []
    failed = 0
    began = time.monotonic()
    end = began + seconds

    async def loop() -> None:
        nonlocal failed
        while time.monotonic() < end:
            answer = await client.post(request.path, request.body, **request.headers)
            if answer.status == 200 and answer.whole:
                latencies.append(answer.ended - answer.sent)
            else:
                failed += 1

    await asyncio.gather(*(loop() for _ in range(clients)))
    client.close()
    return latencies, failed, time.monotonic() - began


def loaded(server: str, model: str, clients: int, seconds: float, running: tuple[str, int]) -> Load:
    """Measure one load, after a fifth of it as a warm-up."""
    url, pid = running
    request = request_for(server, model)
    asyncio.run(closed_loops(url, request, clients, seconds / 5))
    before = cpu_seconds(pid)
    latencies, failed, taken = asyncio.run(closed_loops(url, request, clients, seconds))
    used = cpu_seconds(pid) - before
    count = len(latencies)
    if not count:
        raise RuntimeError(f"{server} answered none of {failed} requests for {model}")
    return Load(
        server,
        model,
        clients,
        count,
        count / taken,
        percentile(latencies, 50),
        percentile(latencies, 99),
        used / count,
        failed,
    )


class Share(NamedTuple):
    """Batches of 32 rows: rows per second, and CPU seconds of a row, of the library alone and of Galley."""

    library: float
    galley: float
    library_cpu: float
    galley_cpu: float


def batches(
    folder: Path, model: str, seconds: float, running: tuple[str, int], turns: int = 3
) -> Share:
    """Measure requests of 32 rows, in turns with the library alone in this process."""
    array = inputs(model, ROWS)
    run, request = alone(folder, model), protocol_request(model, array, binary=True)
    library: list[tuple[float, float]] = []
    ours: list[tuple[float, float]] = []
    for _ in range(turns):
        began, used, rows = time.monotonic(), time.process_time(), 0
        while time.monotonic() < began + seconds / turns:
            run(array)
            rows += ROWS
        taken, used = time.monotonic() - began, time.process_time() - used
        library.append((rows / taken, used / rows))
        before = cpu_seconds(running[1])
        answered, _, taken = asyncio.run(closed_loops(running[0], request, 4, seconds / turns))
        rows = max(1, len(answered)) * ROWS
        ours.append((rows / taken, (cpu_seconds(running[1]) - before) / rows))
    (fast, least), (galley, cpu) = (
        (max(rate for rate, _ in one), min(used for _, used in one)) for one in (library, ours)
    )
    return Share(fast, galley, least, cpu)


def check(server: str, folder: Path, running: tuple[str, int]) -> None:
    """Assert that a server's answers are the library's."""
    for model in MODELS:
        request, expected = request_for(server, model), alone(folder, model)(inputs(model)).ravel()
        answer = asyncio.run(_one(running[0], request))
        size = answer.headers.get(BINARY.lower())
        if size is not None and server == "galley":
            found = np.frombuffer(answer.body[int(size) :], np.float32)
        else:
            parsed = json.loads(answer.body[: int(size)] if size else answer.body)
            value = parsed
            if isinstance(parsed, dict):
                value = parsed["outputs"][0]["data"] if "outputs" in parsed else parsed["y"]
            found = np.array(value, np.float32).ravel()
        np.testing.assert_allclose(
            found, expected, rtol=2e-3, atol=1e-4, err_msg=f"{server} {model}"
        )


async def _one(url: str, request: Request) -> Any:
    client = Client(url)
    try:
        return await client.post(request.path, request.body, **request.headers)
    finally:
        client.close()


def within_limit(loads: Sequence[Load], server: str, model: str) -> float:
    """Return the highest rate at which 99 of 100 requests were answered in time; 0 if none were."""
    own = [one for one in loads if (one.server, one.model) == (server, model)]
    return max((one.rate for one in own if one.p99 < LIMIT and not one.failed), default=0.0)


def main() -> None:
    """Measure, print, and write the figures if requested."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--home", type=Path, default=ROOT / "build/tensor-peers")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each load")
    parser.add_argument("--clients", default="1,16,64")
    parser.add_argument("--servers", default=",".join(SERVERS))
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--check", action="store_true", help="compare the answers first")
    parser.add_argument("--json", type=Path, help="also write all loads to this file")
    parser.add_argument("--results", type=machine_file, help="also write to this results file")
    options = parser.parse_args()
    folder = (options.home / "models").resolve()
    write_models(folder)
    console = Console()
    console.print(cpu_and_cores())
    loads: list[Load] = []
    bare: dict[str, Share] = {}
    models = options.models.split(",")
    for server in options.servers.split(","):
        with serving(server, folder, options.home) as running:
            if options.check:
                check(server, folder, running)
            work = [(model, int(n)) for model in models for n in options.clients.split(",")]
            for model, clients in track(work, server):
                loads.append(loaded(server, model, clients, options.seconds, running))
            if server == "galley":
                for model in models:
                    bare[model] = batches(folder, model, 2 * options.seconds, running)
    report(console, loads, bare)
    if options.json:
        found = {"loads": [asdict(one) for one in loads], "batches_of_32": bare}
        options.json.write_text(json.dumps(found, indent=2) + "\n")
    if options.results:
        put(options.results, figures(loads, bare))


def report(console: Console, loads: Sequence[Load], bare: Mapping[str, Share]) -> None:
    """Print the tables."""
    table = Table("model", "clients", "server", "requests/s", "P50", "P99", "CPU/request", "failed")
    for one in sorted(loads, key=lambda load: (MODELS.index(load.model), load.clients)):
        table.add_row(
            one.model,
            str(one.clients),
            one.server,
            f"{one.rate:.0f}",
            f"{one.p50 * 1e3:.1f} ms",
            f"{one.p99 * 1e3:.1f} ms",
            f"{one.cpu * 1e6:.0f} us",
            str(one.failed),
        )
    console.print(table)
    table = Table("model", "library, rows/s", "Galley, rows/s", "share", "CPU of a row, both")
    for model, share in bare.items():
        table.add_row(
            model,
            f"{share.library:.0f}",
            f"{share.galley:.0f}",
            f"{share.galley / share.library:.0%}",
            f"{share.library_cpu * 1e6:.0f} us, {share.galley_cpu * 1e6:.0f} us",
        )
    console.print(f"requests of {ROWS} rows, 4 clients:", table)


def figures(loads: Sequence[Load], bare: Mapping[str, Share]) -> list[Figure]:
    """Return the figures for benchmarks/results."""
    common: dict[str, Any] = {
        "date": date.today().isoformat(),
        "command": "python -m benchmarks.tensor_peers",
    }
    servers = tuple(dict.fromkeys(one.server for one in loads))
    made = []
    for model in dict.fromkeys(one.model for one in loads):
        made.append(
            Figure(
                what=f"{model}: requests per second with P99 below 5 ms, by server",
                unit="requests/s",
                at=servers,
                measured=tuple(round(within_limit(loads, server, model)) for server in servers),
                **common,
            )
        )
        for clients in sorted({one.clients for one in loads}):
            own = {s.server: s for s in loads if (s.model, s.clients) == (model, clients)}
            made.append(
                Figure(
                    what=f"{model}: requests per second of {clients} clients, by server",
                    unit="requests/s",
                    at=servers,
                    measured=tuple(round(own[server].rate) for server in servers),
                    **common,
                )
            )
    if bare:
        made.append(
            Figure(
                what="Galley's share of the library alone, requests of 32 rows",
                unit="%",
                at=tuple(bare),
                measured=tuple(round(100 * one.galley / one.library) for one in bare.values()),
                **common,
            )
        )
    return made


if __name__ == "__main__":
    main()
