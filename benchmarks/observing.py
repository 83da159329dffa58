"""Measure the cost of metrics and receipts, and of traces: three servers under the same load in turns.

    python -m benchmarks.observing [MODEL] [--rounds N]

One server measures, counts and sends a span for each request, one sends no spans, and one does none of
this: it is the same code with everything that counts or measures replaced by functions that do nothing. Run
it on an idle machine: on a busy one, not even CPU time shows a difference of 1 %.
"""

import argparse
import asyncio
import http.server
import os
import random
import statistics
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import psutil
from rich.progress import track

from benchmarks.http_load import Client
from benchmarks.serving import Server, serving

STREAMS = 32
TOKENS = 256

BARE = """
import sys

BLANK = True

def nothing(*_, **__):
    pass

def blank(kind, *names):
    for name in names:
        setattr(kind, name, nothing if BLANK else getattr(kind, name))

if "galley.service.worker" in sys.orig_argv:
    from galley.engine.step_meter import StepMeter
    blank(StepMeter, "awake", "begin", "assembled", "executed", "end")
elif "serve" in sys.orig_argv:
    import prometheus_client
    from galley.gateway.receipt import Receipt
    from galley.observe.engines import EngineTotals
    from galley.observe.metrics import Metrics, ModelMetrics
    from galley.observe.tally import Sum, Tally
    from galley.observe.tenants import TenantMetrics
    blank(prometheus_client.Counter, "inc")
    blank(prometheus_client.Gauge, "inc", "dec", "set")
    blank(Receipt, "add")
    blank(Sum, "inc")
    blank(Tally, "observe")
    blank(EngineTotals, "observe")
    blank(TenantMetrics, "answered", "begun", "ended", "limited")
    blank(Metrics, "request_answered")
    blank(ModelMetrics, "phase_ended", "step_ended", "prompts_taken", "prefixes_reused", "first_token")
    blank(ModelMetrics, "sequence_finished", "sequence_timed", "request_timed")
"""
"""``sitecustomize`` of the bare server and its engine.

The other server has it with ``BLANK = False``: imports in another order change a server's cost, too.
"""


class _Sink(http.server.BaseHTTPRequestHandler):
    """A collector that accepts spans and discards them."""

    def do_POST(self) -> None:
        """Read one batch."""
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Suppress the access log."""


def collector() -> str:
    """Start a server; return its URL."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Sink)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"


class Pace(NamedTuple):
    """Tokens per second of wall time, and per second of the server's CPU time."""

    by_clock: float
    by_cpu: float


async def pace(server: Server, answers: int) -> Pace:
    """Run :data:`STREAMS` streams of consecutive answers, each of :data:`TOKENS` tokens."""
    client = Client(server.url)
    drawn = random.Random(0)

    async def stream() -> None:
        for _ in range(answers):
            prompt = [drawn.randrange(server.id_limit) for _ in range(16)]
            body = {
                "model": server.model,
                "prompt": prompt,
                "max_tokens": TOKENS,
                "min_tokens": TOKENS,
                "logprobs": 0,
                "stream": True,
            }
            answer = await (await client.begin("/v1/completions", body)).wait()
            assert answer.whole

    cpu, began = cpu_seconds(server.pid), time.monotonic()
    await asyncio.gather(*(stream() for _ in range(STREAMS)))
    seconds, cpu = time.monotonic() - began, cpu_seconds(server.pid) - cpu
    client.close()
    tokens = STREAMS * answers * TOKENS
    return Pace(tokens / seconds, tokens / cpu)


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a server's processes so far."""
    server = psutil.Process(pid)
    times = [process.cpu_times() for process in (server, *server.children(recursive=True))]
    return float(sum(used.user + used.system for used in times))


def customize(stack: ExitStack, code: str) -> None:
    """Have the processes that are started from now on run this code before their own."""
    folder = stack.enter_context(tempfile.TemporaryDirectory())
    Path(folder, "sitecustomize.py").write_text(code)
    os.environ["PYTHONPATH"] = folder


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default="galley-demo")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument(
        "--answers", type=int, default=4, help="number of answers of each stream in each run"
    )
    options = parser.parse_args()
    with ExitStack() as stack:
        arguments = (options.model, "--threads", "1", "--max-queue", "64")
        customize(stack, BARE.replace("BLANK = True", "BLANK = False"))
        priced = (*arguments, "--price-per-hour", "1")
        traced = stack.enter_context(serving(*priced, "--otlp-endpoint", collector()))
        counted = stack.enter_context(serving(*priced))
        customize(stack, BARE)
        bare = stack.enter_context(serving(*arguments))
        servers = [traced, counted, bare]
        rounds: list[list[Pace]] = []
        for server in servers:
            asyncio.run(pace(server, 1))
        for number in track(range(options.rounds), "rounds"):
            first = number % len(servers)
            order = [*servers[first:], *servers[:first]]
            paces = {server.url: asyncio.run(pace(server, options.answers)) for server in order}
            rounds.append([paces[server.url] for server in servers])
    for which, (one, other) in (
        ("metrics and receipts", (1, 2)),
        ("traces", (0, 1)),
        ("all of them", (0, 2)),
    ):
        for what, index in (("second", 0), ("second of CPU time", 1)):
            ratios = [paces[one][index] / paces[other][index] for paces in rounds]
            low, middle, high = statistics.quantiles(ratios, n=4)
            print(
                f"with {which}: {100 * middle:.2f} % of the tokens a {what} without, median of "
                f"{len(ratios)} rounds (quartiles {100 * low:.2f} to {100 * high:.2f} %)"
            )


if __name__ == "__main__":
    main()
