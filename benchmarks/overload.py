"""Measure goodput and refusals from half the sustainable request rate to four times that rate.

    python -m benchmarks.overload [MODEL] [--seconds 20] [--json FILE] [--results benchmarks/results/FILE]
        [--factors 4,4,4,4,4,4] [--engine-policies other,batch,nice10]

Starts a real ``galley serve``. The sustainable rate is the throughput of a closed loop of clients. After
that requests arrive by a Poisson process at multiples of it, whether or not earlier ones have finished.
Each request states in ``x-request-timeout`` how long its client waits; goodput counts the requests
completed within that time.

The time to first token is counted from the scheduled arrival, the time of a refusal from the actual
sending. The difference, the client's lag behind its schedule, is reported as well. So are, from the kernel,
the shares of the time in which the server's main thread ran, and in which it could have run but waited for
a processor. ``--engine-policies`` gives the engine's threads these scheduling policies in turns, one for
each point. Run it on an idle machine.
"""

import argparse
import asyncio
import gc
import itertools
import json
import os
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any, Final

import psutil
from rich.console import Console
from rich.table import Table
from scripts.benchmarks_page import Figure

from benchmarks.http_load import Answer, Client
from benchmarks.results_file import machine_file, put
from benchmarks.serving import Server, percentile, serving
from galley.machine import cpu_and_cores
from galley.service.worker import NICENESS

PATH: Final = "/v1/completions"
FACTORS: Final = (0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0)
PROMPT_TOKENS: Final = 64
OUTPUT_TOKENS: Final = 64
REFUSED: Final = (429, 503)
EXPIRED: Final = 504
REFUSAL_SECONDS: Final = 0.05
KEPT_SHARE: Final = 0.9
"""Share of the best goodput that must remain at twice the sustainable rate."""


@dataclass(frozen=True)
class Point:
    """The results at one rate. Rates are requests per second, times seconds; None: not measured.

    Attributes:
        offered: rate of arrivals.
        goodput: rate of requests completed within their deadline.
        late: share of arrivals completed too late, or given up at their deadline.
        refused: share answered with 429 or 503.
        broken: arrivals with any other outcome.
        refusal_p50, refusal_p99: time from sending to the complete refusal.
        fresh_refusal_p50: the same, of requests that had to open a connection.
        ttft_p50, ttft_p99: time to the first token of accepted requests.
        lag_p99: how late the client sent requests relative to its schedule.
        server_ran, server_waited: shares of the time in which the server's main thread ran, and waited for
            a processor.
        policy: scheduling policy of the engine's threads.
    """

    factor: float
    offered: float
    goodput: float
    late: float
    refused: float
    broken: int
    refusal_p50: float | None
    refusal_p99: float | None
    ttft_p50: float | None
    ttft_p99: float | None
    lag_p99: float
    fresh_refusal_p50: float | None = None
    server_ran: float = 0.0
    server_waited: float = 0.0
    policy: str = "other"


class Load:
    """Generates requests of one shape: random token ids, so that no prefix is ever cached."""

    def __init__(self, server: Server, seed: int) -> None:
        self._server = server
        self._source = random.Random(seed)
        self._client = Client(server.url)

    async def ask(self, deadline: float | None) -> Answer:
        """Send one streamed request."""
        ids = [self._source.randrange(self._server.id_limit) for _ in range(PROMPT_TOKENS)]
        body = {
            "model": self._server.model,
            "prompt": ids,
            "max_tokens": OUTPUT_TOKENS,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
        }
        headers = {} if deadline is None else {"x_request_timeout": f"{deadline:g}"}
        return await self._client.post(PATH, body, **headers)

    async def closed_loop(self, clients: int, seconds: float) -> tuple[float, float]:
        """Return completed requests per second of a closed loop of clients, and their median latency."""
        latencies: list[float] = []
        began = time.monotonic()

        async def client() -> None:
            while time.monotonic() < began + seconds:
                answer = await self.ask(None)
                if not answer.finished:
                    raise RuntimeError(f"{answer.status}: {answer.body[:200]!r}")
                if answer.ended < began + seconds:
                    latencies.append(answer.ended - answer.sent)

        await asyncio.gather(*(client() for _ in range(clients)))
        return len(latencies) / seconds, statistics.median(latencies)

    async def open_loop(self, factor: float, rate: float, seconds: float, deadline: float) -> Point:
        """Send Poisson arrivals at ``rate`` per second for ``seconds``; each waits for its deadline."""
        due: list[float] = []
        at = time.monotonic() + 0.1
        while (at := at + self._source.expovariate(rate)) < time.monotonic() + 0.1 + seconds:
            due.append(at)
        tasks = []
        for moment in due:
            await asyncio.sleep(max(0.0, moment - time.monotonic()))
            tasks.append(asyncio.create_task(self.ask(deadline)))
        answers = await asyncio.gather(*tasks)
        return _point(factor, seconds, deadline, list(zip(due, answers, strict=True)))


def _point(
    factor: float, seconds: float, deadline: float, answers: list[tuple[float, Answer]]
) -> Point:
    good = late = broken = 0
    refusals, fresh, firsts = [], [], []
    for due, answer in answers:
        if answer.finished and answer.whole:
            good += answer.ended - due <= deadline
            late += answer.ended - due > deadline
            firsts.append(answer.events[0] - due)
        elif answer.whole and answer.status in REFUSED:
            refusals.append(answer.ended - answer.sent)
            if answer.opened:
                fresh.append(refusals[-1])
        elif answer.events or answer.status == EXPIRED:
            late += 1
        else:
            broken += 1
    return Point(
        factor=factor,
        offered=len(answers) / seconds,
        goodput=good / seconds,
        late=late / len(answers),
        refused=len(refusals) / len(answers),
        broken=broken,
        refusal_p50=percentile(refusals, 50) if refusals else None,
        refusal_p99=percentile(refusals, 99) if refusals else None,
        fresh_refusal_p50=percentile(fresh, 50) if fresh else None,
        ttft_p50=percentile(firsts, 50) if firsts else None,
        ttft_p99=percentile(firsts, 99) if firsts else None,
        lag_p99=percentile([answer.sent - due for due, answer in answers], 99),
    )


async def measure(
    server: Server,
    *,
    clients: int,
    seconds: float,
    deadline: float,
    seed: int,
    factors: Sequence[float] = FACTORS,
    policies: Sequence[str] = ("other",),
) -> dict[str, Any]:
    """Measure the sustainable rate and a point for each factor.

    If ``deadline`` is 0, use twice the latency of a saturated server.
    """
    load = Load(server, seed)
    await load.closed_loop(clients, seconds / 4)
    rate, latency = await load.closed_loop(clients, seconds)
    deadline = deadline or 2 * latency
    points = []
    for factor, policy in zip(factors, itertools.cycle(policies), strict=False):
        if len(policies) > 1 or policy != "other":
            set_policy(server.pid, policy)
        gc.collect()
        gc.disable()  # a pause of the client would look like a pause of the server
        before, began = scheduled(server.pid), time.monotonic()
        point = await load.open_loop(factor, factor * rate, seconds, deadline)
        took, after = time.monotonic() - began, scheduled(server.pid)
        gc.enable()
        ran, waited = ((b - a) / took for a, b in zip(before, after, strict=True))
        points.append(replace(point, server_ran=ran, server_waited=waited, policy=policy))
        await asyncio.sleep(1.0)
    return {"sustainable": rate, "deadline_s": deadline, "points": [asdict(p) for p in points]}


def scheduled(pid: int) -> tuple[float, float]:
    """Return the seconds in which a process's main thread has run, and waited for a processor."""
    ran, waited, _ = Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()
    return int(ran) / 1e9, int(waited) / 1e9


def set_policy(server: int, policy: str) -> None:
    """Give all threads of a server's engines a scheduling policy: other, batch, or such as nice10."""
    niceness = int(policy.removeprefix("nice")) if policy.startswith("nice") else NICENESS
    number = os.SCHED_BATCH if policy == "batch" else os.SCHED_OTHER
    for process in psutil.Process(server).children(recursive=True):
        if "galley.service.worker" in " ".join(process.cmdline()):
            for thread in process.threads():
                os.sched_setscheduler(thread.id, number, os.sched_param(0))
                os.setpriority(os.PRIO_PROCESS, thread.id, niceness)


def figures(results: dict[str, Any], command: str) -> list[Figure]:
    """Return the figures for the results page."""
    points = [Point(**point) for point in results["points"]]
    at = tuple(f"{point.factor:g}x" for point in points)
    best = max(point.goodput for point in points)
    twice = next(point.goodput for point in points if point.factor == 2)
    remark = (
        f"sustainable: {results['sustainable']:.3g} requests/s of {PROMPT_TOKENS} + {OUTPUT_TOKENS} "
        f"tokens; deadline {results['deadline_s']:.2g} s; client's lag P99 "
        f"{1e3 * max(point.lag_p99 for point in points):.2g} ms"
    )
    today = date.today().isoformat()

    def figure(what: str, unit: str, values: list[float | None], **more: Any) -> Figure:
        return Figure(
            what=f"Overload: {what}",
            unit=unit,
            measured=tuple(None if v is None else float(f"{v:.3g}") for v in values),
            date=today,
            command=command,
            **({"at": at} | more),
        )

    def milliseconds(name: str) -> list[float | None]:
        values = [getattr(point, name) for point in points]
        return [None if value is None else 1e3 * value for value in values]

    return [
        figure("goodput", "requests/s", [p.goodput for p in points], remark=remark),
        figure(
            "goodput at twice the sustainable rate, share of the maximum",
            "%",
            [100 * twice / best],
            at=("",),
            target=(100 * KEPT_SHARE,),
        ),
        figure("refused", "%", [100 * p.refused for p in points], better="lower"),
        figure(
            "accepted, but late or abandoned", "%", [100 * p.late for p in points], better="lower"
        ),
        figure("time to refusal, P50", "ms", milliseconds("refusal_p50"), better="lower"),
        figure(
            "time to refusal, P99",
            "ms",
            milliseconds("refusal_p99"),
            target=(1e3 * REFUSAL_SECONDS,),
            better="lower",
        ),
        figure("time to first token, P50", "ms", milliseconds("ttft_p50"), better="lower"),
        figure("time to first token, P99", "ms", milliseconds("ttft_p99"), better="lower"),
    ]


def main() -> None:
    """Measure, print, and write the figures if requested."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default="galley-demo")
    parser.add_argument("--weight-dtype", default="auto")
    parser.add_argument("--seconds", type=float, default=20.0, help="duration at each rate")
    parser.add_argument(
        "--clients", type=int, default=64, help="number of clients in the closed loop"
    )
    parser.add_argument(
        "--deadline",
        type=float,
        default=0.0,
        help="seconds; 0: twice the latency of the saturated server",
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--factors", default=",".join(map(str, FACTORS)))
    parser.add_argument(
        "--engine-policies",
        default="other",
        help="other, batch, nice10, ...: several take turns, one for each point",
    )
    parser.add_argument("--json", type=Path, help="also write all figures to this file")
    parser.add_argument(
        "--results", type=machine_file, help="also write the figures to this results file"
    )
    arguments = parser.parse_args()
    with serving(arguments.model, "--weight-dtype", arguments.weight_dtype) as server:
        options = {
            name: getattr(arguments, name) for name in ("clients", "seconds", "deadline", "seed")
        }
        options["factors"] = [float(factor) for factor in arguments.factors.split(",")]
        options["policies"] = arguments.engine_policies.split(",")
        results = {"machine": cpu_and_cores(), **asyncio.run(measure(server, **options))}
    report(results)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")
    if arguments.results:
        put(arguments.results, figures(results, "python -m benchmarks.overload"))


def report(results: dict[str, Any]) -> None:
    """Print a table and whether the guarantee holds."""
    console = Console(width=160)
    console.print(f"{results['machine']}; sustainable: {results['sustainable']:.2f} requests/s")
    table = Table(*(name.replace("_", " ") for name in results["points"][0]))
    for point in results["points"]:
        table.add_row(*(_shown(value) for value in point.values()))
    console.print(table)
    best = max(point["goodput"] for point in results["points"])
    for twice in (point["goodput"] for point in results["points"] if point["factor"] == 2):
        console.print(f"goodput at twice the sustainable rate: {twice / best:.0%} of the maximum")


def _shown(value: float | str | None) -> str:
    """Return a value of the table."""
    if value is None:
        return "-"
    return value if isinstance(value, str) else f"{value:.4g}"


if __name__ == "__main__":
    main()
