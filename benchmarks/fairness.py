"""Measure how tenants share an engine, and how a heavy tenant affects a light one.

    python -m benchmarks.fairness [MODEL] [--seconds 30] [--json FILE] [--results benchmarks/results/FILE]

Starts a real ``galley serve`` with a key file. In the first part tenants of weight 1, 2 and 4 always have
more requests than the engine can run: the figure is each one's share of the tokens, compared with its
weight. Then a light tenant keeps two requests in flight: the figure is its time to first token, alone and
while a heavy tenant of the same weight has 1,000 requests in flight. Run it on an idle machine.
"""

import argparse
import asyncio
import hashlib
import json
import random
import secrets
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Final

import httpx
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from scripts.benchmarks_page import Figure

from benchmarks.http_load import Call, Client
from benchmarks.results_file import machine_file, put
from benchmarks.serving import Server, percentile
from galley.bench.serve.server import started
from galley.machine import cpu_and_cores

PATH: Final = "/v1/completions"
WEIGHTS: Final = {"one": 1, "two": 2, "four": 4}
LIGHT, HEAVY = "light", "heavy"
BACKLOG: Final = 64
"""Running and waiting requests of each weighted tenant."""
RUNNING: Final = 16
LIGHT_REQUESTS, HEAVY_REQUESTS = 2, 1000
PROMPT_TOKENS: Final = 64
OUTPUT_TOKENS: Final = 64
WARM_UP_SECONDS: Final = 5.0


@dataclass(frozen=True)
class Tenant:
    """A tenant's name and API key."""

    name: str
    key: str
    weight: float


class Load:
    """A closed loop that keeps a fixed number of one tenant's requests in flight."""

    def __init__(self, server: Server, tenant: Tenant, count: int) -> None:
        self.calls: list[Call] = []
        self._server = server
        self._source = random.Random(tenant.name)
        self._client = Client(server.url, {"Authorization": f"Bearer {tenant.key}"})
        self._tasks = [asyncio.create_task(self._run()) for _ in range(count)]

    async def stop(self) -> None:
        """Cancel unfinished requests; raise RuntimeError if a request has failed."""
        ended = [task.exception() for task in self._tasks if task.done()]
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._client.close()
        if failed := [error for error in ended if error]:
            raise failed[0]

    def first_tokens(self, begin: float) -> list[float]:
        """Return seconds to the first token of each request sent after ``begin`` that has one."""
        answers = [call.answer for call in self.calls]
        return [a.events[0] - a.sent for a in answers if a.sent >= begin and a.events]

    async def _run(self) -> None:
        while True:
            ids = [self._source.randrange(self._server.id_limit) for _ in range(PROMPT_TOKENS)]
            body = {
                "model": self._server.model,
                "prompt": ids,
                "max_tokens": OUTPUT_TOKENS,
                "ignore_eos": True,
                "temperature": 0,
                "stream": True,
            }
            call = await self._client.begin(PATH, body)
            self.calls.append(call)
            answer = await call.wait()
            if not (answer.whole and answer.finished):
                raise RuntimeError(f"status {answer.status}: {answer.body[-300:]!r}")


def generated(server: Server, tenants: Sequence[Tenant]) -> dict[str, float]:
    """Return the tokens generated so far for each tenant, as counted by the server."""
    headers = {"Authorization": f"Bearer {tenants[0].key}"}
    page = httpx.get(f"{server.url}/metrics", headers=headers).text
    counted = {tenant.name: 0.0 for tenant in tenants}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name == "galley_tenant_tokens_total" and sample.labels["kind"] == "generated":
                counted[sample.labels["tenant"]] = sample.value
    return counted


async def shares(server: Server, tenants: list[Tenant], seconds: float) -> dict[str, float]:
    """Measure each tenant's share of the generated tokens while all are backlogged."""
    loads = {tenant.name: Load(server, tenant, BACKLOG) for tenant in tenants}
    await asyncio.sleep(WARM_UP_SECONDS)
    before = generated(server, tenants)
    await asyncio.sleep(seconds)
    after = generated(server, tenants)
    for load in loads.values():
        await load.stop()
    tokens = {name: after[name] - before[name] for name in loads}
    return {name: count / sum(tokens.values()) for name, count in tokens.items()}


async def first_tokens(
    server: Server, light: Tenant, heavy: Tenant | None, seconds: float
) -> list[float]:
    """Measure the light tenant's time to first token, while a heavy tenant runs if there is one."""
    contention = Load(server, heavy, HEAVY_REQUESTS) if heavy else None
    await asyncio.sleep(WARM_UP_SECONDS if heavy else 0.0)
    load = Load(server, light, LIGHT_REQUESTS)
    begin = time.monotonic()
    await asyncio.sleep(seconds)
    found = load.first_tokens(begin)
    await load.stop()
    if contention:
        await contention.stop()
    return found


async def measure(server: Server, tenants: Mapping[str, Tenant], seconds: float) -> dict[str, Any]:
    """Measure all figures."""
    weighted = [tenants[name] for name in WEIGHTS]
    got = await shares(server, weighted, seconds)
    alone = await first_tokens(server, tenants[LIGHT], None, seconds)
    contended = await first_tokens(server, tenants[LIGHT], tenants[HEAVY], seconds)
    return {
        "shares": got,
        "owed": {name: weight / sum(WEIGHTS.values()) for name, weight in WEIGHTS.items()},
        "ttft_alone_s": {p: percentile(alone, p) for p in (50, 99)},
        "ttft_contended_s": {p: percentile(contended, p) for p in (50, 99)},
        "requests": [len(alone), len(contended)],
    }


@contextmanager
def key_file(tenants: Mapping[str, Tenant]) -> Iterator[str]:
    """Write a key file for ``--api-key-file``."""
    lines = ["tenants:"]
    for tenant in tenants.values():
        hashed = hashlib.sha256(tenant.key.encode()).hexdigest()
        lines += [f"  - name: {tenant.name}", f'    key_sha256: "{hashed}"']
        lines += [f"    weight: {tenant.weight:g}"]
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write("\n".join(lines) + "\n")
        file.flush()
        yield file.name


@contextmanager
def serving(model: str, tenants: Mapping[str, Tenant]) -> Iterator[Server]:
    """Start a server with these tenants and a queue large enough for all of their requests."""
    room = ("--max-running", str(RUNNING), "--max-queue", str(2 * HEAVY_REQUESTS))
    with key_file(tenants) as file, started(model, "--api-key-file", file, *room) as (url, pid):
        headers = {"Authorization": f"Bearer {tenants[LIGHT].key}"}
        with httpx.Client(base_url=url, headers=headers) as http:
            name = http.get("/v1/models").json()["data"][0]["id"]
            reply = http.post("/tokenize", json={"model": name, "prompt": "a"})
        yield Server(url, name, max(reply.json()["tokens"]) + 1, 0.0, pid)


def figures(results: dict[str, Any], command: str) -> list[Figure]:
    """Return the figures for the results page."""
    today = date.today().isoformat()
    percents = {name: 100 * results["shares"][name] for name in WEIGHTS}
    owed = ", ".join(f"{100 * share:.1f}" for share in results["owed"].values())
    alone, contended = (
        tuple(float(f"{1e3 * results[name][p]:.3g}") for p in (50, 99))
        for name in ("ttft_alone_s", "ttft_contended_s")
    )
    return [
        Figure(
            what="Tenants: share of the tokens under contention",
            unit="%",
            at=tuple(f"weight {weight}" for weight in WEIGHTS.values()),
            measured=tuple(float(f"{percents[name]:.3g}") for name in WEIGHTS),
            date=today,
            command=command,
            remark=f"by weight: {owed}; {BACKLOG} requests of each at any time, {RUNNING} slots",
        ),
        Figure(
            what=f"Tenants: time to first token with {HEAVY_REQUESTS:,} requests of another tenant",
            unit="ms",
            at=("P50", "P99"),
            measured=contended,
            before=alone,
            date=today,
            command=command,
            better="lower",
            remark=f"{LIGHT_REQUESTS} requests at a time; before: alone on the server",
        ),
    ]


def main() -> None:
    """Measure, print, and write the figures if requested."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default="galley-demo")
    parser.add_argument(
        "--seconds", type=float, default=30.0, help="duration of each of the three parts"
    )
    parser.add_argument("--json", type=Path, help="also write all figures to this file")
    parser.add_argument(
        "--results", type=machine_file, help="also write the figures to this results file"
    )
    arguments = parser.parse_args()
    weights = {**WEIGHTS, LIGHT: 1, HEAVY: 1}
    tenants = {name: Tenant(name, secrets.token_hex(16), w) for name, w in weights.items()}
    with serving(arguments.model, tenants) as server:
        measured = asyncio.run(measure(server, tenants, arguments.seconds))
    results = {"machine": cpu_and_cores(), **measured}
    report(results)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")
    if arguments.results:
        put(arguments.results, figures(results, "python -m benchmarks.fairness"))


def report(results: dict[str, Any]) -> None:
    """Print one line for each figure."""
    console = Console(width=120)
    console.print(results["machine"])
    for name, weight in WEIGHTS.items():
        got, owed = results["shares"][name], results["owed"][name]
        console.print(f"weight {weight}: {got:.1%} of the tokens, {owed:.1%} by weight")
    for name, what in (("ttft_alone_s", "alone"), ("ttft_contended_s", "with a heavy tenant")):
        p50, p99 = (1e3 * results[name][p] for p in (50, 99))
        console.print(
            f"light tenant {what}: time to first token P50 {p50:.0f} ms, P99 {p99:.0f} ms"
        )


if __name__ == "__main__":
    main()
