"""Measure start-up and the prefix cache of a real ``galley serve`` over HTTP.

    python benchmarks/serving.py [MODEL] [--json FILE]

MODEL and GALLEY_* variables are those of ``galley serve``. Run it on an idle machine.
"""

import argparse
import asyncio
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.progress import track
from rich.table import Table

from galley.bench.serve.server import started
from galley.machine import cpu_and_cores

PREFIX_TOKENS = 1500
TAIL_TOKENS = 20


@dataclass(frozen=True)
class Server:
    """A ready server: its URL, the name of its first model, and its start-up time in seconds."""

    url: str
    model: str
    id_limit: int
    """Upper limit of ids from which prompts are drawn; all lower ids are tokens."""
    ready_seconds: float
    pid: int


@contextmanager
def serving(*arguments: str) -> Iterator[Server]:
    """Start ``galley serve`` with a language model and ``arguments``."""
    began = time.perf_counter()
    with started(*arguments) as (url, pid):
        ready = time.perf_counter() - began
        name = httpx.get(f"{url}/v1/models").json()["data"][0]["id"]
        ids = httpx.post(f"{url}/tokenize", json={"model": name, "prompt": "a"}).json()["tokens"]
        yield Server(url, name, max(ids) + 1, ready, pid)


def help_seconds(runs: int = 10) -> list[float]:
    """Return the wall time of ``galley --help`` as a process."""
    times = []
    for _ in track(range(runs + 1), "galley --help"):
        began = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "galley", "--help"], stdout=subprocess.DEVNULL, check=True
        )
        times.append(time.perf_counter() - began)
    return times[1:]


async def completion(
    client: httpx.AsyncClient, server: Server, prompt: list[int], tokens: int
) -> list[float]:
    """Return the seconds from the request to each chunk that carries a token."""
    body = {
        "model": server.model,
        "prompt": prompt,
        "max_tokens": tokens,
        "min_tokens": tokens,
        "temperature": 0,
        "stream": True,
        "logprobs": 0,
    }
    began = time.perf_counter()
    async with client.stream("POST", "/v1/completions", json=body) as response:
        response.raise_for_status()
        times = [
            time.perf_counter() - began
            async for line in response.aiter_lines()
            if '"token_logprobs"' in line
        ]
    assert len(times) >= tokens, (len(times), tokens)
    return times


async def prefix_cache(server: Server, rounds: int = 5) -> dict[str, float]:
    """Return the TTFT of a request with a new prefix, and of the next one with the same prefix."""
    random_ids = random.Random(0)
    cold, warm = [], []

    def ids(count: int) -> list[int]:
        return [random_ids.randrange(server.id_limit) for _ in range(count)]

    async with httpx.AsyncClient(base_url=server.url, timeout=300) as client:
        for _ in track(range(rounds), "prefix cache"):
            prefix = ids(PREFIX_TOKENS)
            cold.append((await completion(client, server, prefix + ids(TAIL_TOKENS), 1))[0])
            warm.append((await completion(client, server, prefix + ids(TAIL_TOKENS), 1))[0])
    first, second = statistics.median(cold), statistics.median(warm)
    return {"first_ttft_s": first, "second_ttft_s": second, "ratio": first / second}


def percentile(values: list[float], percent: int) -> float:
    """Return the smallest value that at least ``percent`` % of the values do not exceed."""
    ordered = sorted(values)
    return ordered[-(-len(ordered) * percent // 100) - 1]


def main() -> None:
    """Measure everything and print it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default="")
    parser.add_argument("--json", type=Path, help="also write all figures to this file")
    arguments = parser.parse_args()
    model = [arguments.model] if arguments.model else []
    results: dict[str, Any] = {
        "machine": cpu_and_cores(),
        "help_s": statistics.median(help_seconds()),
    }
    starts = []
    for _ in track(range(3), "start-up"):
        with serving(*model) as server:
            starts.append(server.ready_seconds)
    results["ready_s"] = statistics.median(starts)
    with serving(*model) as server:
        results["prefix_cache"] = asyncio.run(prefix_cache(server))
    report(results)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


def report(results: dict[str, Any]) -> None:
    """Print a table."""
    console = Console()
    console.print(results["machine"])
    single = Table("measure", "figure")
    single.add_row("galley --help", f"{results['help_s']:.2f} s")
    single.add_row("galley serve, ready", f"{results['ready_s']:.2f} s")
    cache = results["prefix_cache"]
    single.add_row(f"TTFT, {PREFIX_TOKENS} tokens, new", f"{cache['first_ttft_s'] * 1e3:.0f} ms")
    single.add_row(
        f"TTFT, {PREFIX_TOKENS} tokens, cached", f"{cache['second_ttft_s'] * 1e3:.0f} ms"
    )
    single.add_row("ratio", f"{cache['ratio']:.1f}")
    console.print(single)


if __name__ == "__main__":
    main()
