"""What metrics, receipts and traces cost: paired runs of a server with all of them and one with none.

``python -m benchmarks.observing [MODEL] [--pairs N]``; on an idle machine. Both servers run all the time,
and the load goes to one after the other. The bare server is the same code with everything that counts or
measures replaced by functions that do nothing; the other one sends a span of each request, too.
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

from rich.progress import track

from benchmarks.http_load import Answer, Client
from benchmarks.serving import Server, serving

STREAMS = 32
TOKENS = 256
WARM_UP_SECONDS = 1.0

BARE = """
import sys

def nothing(*_, **__):
    pass

def blank(kind, *names):
    for name in names:
        setattr(kind, name, nothing)

if "galley.service.worker" in sys.orig_argv:
    from galley.engine.step_meter import StepMeter
    blank(StepMeter, "awake", "begin", "assembled", "executed", "end")
elif "serve" in sys.orig_argv:
    import prometheus_client
    from galley.gateway.receipt import Receipt
    from galley.observe.engines import EngineTotals
    from galley.observe.metrics import Metrics, ModelMetrics
    from galley.observe.tally import Tally
    from galley.observe.tenants import TenantMetrics
    blank(prometheus_client.Counter, "inc")
    blank(prometheus_client.Gauge, "inc", "dec", "set")
    blank(Receipt, "add")
    blank(Tally, "observe")
    blank(EngineTotals, "observe")
    blank(TenantMetrics, "answered", "begun", "ended", "limited")
    blank(Metrics, "request_answered")
    blank(ModelMetrics, "phase_ended", "step_ended", "prompts_taken", "prefixes_reused", "first_token")
    blank(ModelMetrics, "sequence_finished", "sequence_timed", "request_timed")
"""
"""``sitecustomize`` of the bare server and its engine."""


class _Sink(http.server.BaseHTTPRequestHandler):
    """A collector that takes spans and forgets them."""

    def do_POST(self) -> None:
        """Read one batch."""
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing."""


def collector() -> str:
    """Start one; its URL."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Sink)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"


async def tokens_per_second(server: Server, seconds: float) -> float:
    """Of :data:`STREAMS` streams that begin again as they end."""
    client = Client(server.url)
    drawn = random.Random(0)
    answers: list[Answer] = []

    async def stream() -> None:
        while True:
            prompt = [drawn.randrange(server.id_limit) for _ in range(16)]
            body = {
                "model": server.model,
                "prompt": prompt,
                "max_tokens": TOKENS,
                "min_tokens": TOKENS,
                "logprobs": 0,
                "stream": True,
            }
            call = await client.begin("/v1/completions", body)
            answers.append(call.answer)
            await call.wait()

    streams = [asyncio.create_task(stream()) for _ in range(STREAMS)]
    began = time.monotonic() + WARM_UP_SECONDS
    await asyncio.sleep(WARM_UP_SECONDS + seconds)
    ended = time.monotonic()
    for task in streams:
        task.cancel()
    await asyncio.gather(*streams, return_exceptions=True)
    client.close()
    times = (at for answer in answers for at in answer.events)
    return sum(began <= at <= ended for at in times) / (ended - began)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="galley-demo")
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=5.0)
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        Path(folder, "sitecustomize.py").write_text(BARE)
        arguments = (options.model, "--threads", "1", "--max-queue", "64")
        full = stack.enter_context(
            serving(*arguments, "--price-per-hour", "1", "--otlp-endpoint", collector())
        )
        os.environ["PYTHONPATH"] = folder
        bare = stack.enter_context(serving(*arguments))
        ratios = []
        for number in track(range(options.pairs), "pairs"):
            order = [full, bare] if number % 2 else [bare, full]
            speeds = {s.url: asyncio.run(tokens_per_second(s, options.seconds)) for s in order}
            ratios.append(speeds[full.url] / speeds[bare.url])
        middle = statistics.median(ratios)
        spread = statistics.quantiles(ratios, n=4)
        print(
            f"with metrics, receipts and traces: {100 * middle:.2f} % of the tokens/s without, median of "
            f"{len(ratios)} pairs (quartiles {100 * spread[0]:.2f} to {100 * spread[2]:.2f} %)"
        )


if __name__ == "__main__":
    main()
