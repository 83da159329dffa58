"""Measure the cost of HTTP: streams through ``galley serve``, and the same engine in this process.

    python -m benchmarks.http_cost [MODEL] [--weight-dtype int4] [--batch 1,8,32] [--rounds 3]
        [--results benchmarks/results/FILE] [--profile FOLDER]

Both decode the same prompts, greedily, with the same number of threads and no prefix cache. Figures are
tokens per second while all sequences decode. The two are measured alternately, and the server is stopped
(SIGSTOP) while the engine in this process runs, so that it uses no CPU time or memory bandwidth.
``--profile`` writes py-spy profiles of the server's and the engine's process (``pip install py-spy``). Run
it on an idle machine.
"""

import argparse
import asyncio
import contextlib
import os
import signal
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Final

import httpx
import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table
from scripts.benchmarks_page import Figure

from benchmarks.http_load import Client
from benchmarks.profiles import sampled
from benchmarks.results_file import machine_file, put
from benchmarks.serving import Server, serving
from galley.bench.engine import EngineBench
from galley.settings.engine import EngineSettings

PROMPT_TOKENS: Final = 64
TOKENS: Final = 96
"""Tokens decoded by each stream; the first and last eighth are not counted."""
PROFILE_SECONDS: Final = 20


def prompts(count: int, id_limit: int, seed: int) -> list[list[int]]:
    """Return random prompts."""
    drawn = np.random.default_rng(seed).integers(id_limit, size=(count, PROMPT_TOKENS))
    return [[int(token) for token in row] for row in drawn]


def in_process(bench: EngineBench, texts: list[list[int]]) -> float:
    """Return tokens per second of the engine alone."""
    steps = bench.decode(texts, TOKENS)
    counted = steps[TOKENS // 8 : -TOKENS // 8]
    return len(texts) * len(counted) / sum(step.seconds for step in counted)


async def through_http(server: Server, texts: list[list[int]]) -> float:
    """Return tokens per second over HTTP while all streams are decoding."""
    client = Client(server.url)

    async def stream(prompt: list[int]) -> list[float]:
        body = {
            "model": server.model,
            "prompt": prompt,
            "max_tokens": TOKENS,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
        }
        call = await client.begin("/v1/completions", body)
        answer = await call.wait()
        if not (answer.whole and answer.finished):
            raise RuntimeError(f"status {answer.status}: {answer.body[-300:]!r}")
        return answer.events

    streams = await asyncio.gather(*map(stream, texts))
    client.close()
    begin = max(events[len(events) // 8] for events in streams)
    end = min(events[-1 - len(events) // 8] for events in streams)
    # An event may carry several tokens, so each event counts as its stream's mean.
    came = (TOKENS / len(events) * sum(begin < at <= end for at in events) for events in streams)
    return sum(came) / (end - begin)


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Stop all processes of a server inside the block."""
    group = [pid, *children(pid)]
    for process in group:
        os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        for process in reversed(group):
            os.kill(process, signal.SIGCONT)


def children(pid: int) -> list[int]:
    """Return the child processes of ``pid``, recursively."""
    own = [
        int(child)
        for thread in Path(f"/proc/{pid}/task").iterdir()
        for child in (thread / "children").read_text().split()
    ]
    return own + [further for child in own for further in children(child)]


def profiled(server: Server, count: int, folder: Path) -> None:
    """Sample every process of the server while ``count`` streams run."""
    pids = [server.pid, *children(server.pid)]
    with sampled(pids, folder, f"{count}-streams", PROFILE_SECONDS):
        end = time.monotonic() + PROFILE_SECONDS
        while time.monotonic() < end:
            asyncio.run(through_http(server, prompts(count, server.id_limit, 0)))


def main() -> None:
    """Measure, print, and write the figures if requested."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default="galley-demo")
    parser.add_argument("--name", default="bundled model", help="name of the model in the results")
    parser.add_argument("--weight-dtype", default="auto")
    parser.add_argument("--batch", default="1,8,32")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--results", type=machine_file, help="also write the figures to this results file"
    )
    parser.add_argument("--profile", type=Path, help="write profiles of the server to this folder")
    options = parser.parse_args()
    batches = [int(part) for part in options.batch.split(",")]
    settings = EngineSettings(
        model=options.model, weight_dtype=options.weight_dtype, kv_cache_tokens=16384
    )
    flags = (
        "--weight-dtype",
        options.weight_dtype,
        "--no-prefix-cache",
        "--kv-cache-tokens",
        "16384",
    )
    plain = (*flags, "--speculation", "off")
    speeds: dict[int, list[tuple[float, float]]] = {count: [] for count in batches}
    with serving(options.model, *plain) as server:
        with stopped(server.pid):
            bench = EngineBench(settings)
        for number in track(range(options.rounds + 1), "rounds"):
            for count in batches:
                texts = prompts(count, server.id_limit, number)
                with stopped(server.pid):
                    before = in_process(bench, texts)
                served = asyncio.run(through_http(server, texts))
                with stopped(server.pid):
                    after = in_process(bench, texts)
                if number:  # the first round is a warm-up
                    alone = (before + after) / 2
                    speeds[count].append((served, alone))
        report(options, speeds)
        if options.profile:
            for count in batches:
                profiled(server, count, options.profile)
        httpx.get(f"{server.url}/health").raise_for_status()


def report(
    options: argparse.Namespace, speeds: Mapping[int, Sequence[tuple[float, float]]]
) -> None:
    """Print the tokens per second of each round over HTTP and in process; write them if requested."""
    batches = list(speeds)
    ratios = {count: [served / alone for served, alone in speeds[count]] for count in batches}
    table = Table("streams", "in process", "through HTTP", "ratio, median", "least", "most")
    for count in batches:
        served, alone = (statistics.median(side) for side in zip(*speeds[count], strict=True))
        of = ratios[count]
        table.add_row(
            str(count),
            f"{alone:.1f} tokens/s",
            f"{served:.1f} tokens/s",
            f"{statistics.median(of):.3f}",
            f"{min(of):.3f}",
            f"{max(of):.3f}",
        )
    Console().print(table)
    if options.results:
        spread = "; ".join(f"{min(ratios[n]):.2f} to {max(ratios[n]):.2f}" for n in batches)
        figure = Figure(
            what=f"{options.name}: tokens/s through HTTP",
            unit="% of the engine's in process",
            at=tuple(f"{count} streams" for count in batches),
            measured=tuple(round(100 * statistics.median(ratios[count]), 1) for count in batches),
            target=(97.0,),
            date=date.today().isoformat(),
            command="python -m benchmarks.http_cost",
            remark=f"{options.rounds} alternating rounds, ratios {spread}",
        )
        put(options.results, [figure])


if __name__ == "__main__":
    main()
