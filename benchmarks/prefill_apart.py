"""Measure texts that are continued while long prompts arrive: prefill apart, and chunked prefill.

    python -m benchmarks.prefill_apart [MODEL] [--prompt 3000] [--rounds 6] [--json FILE]

Both run on the same cores: one engine with all of them, which divides long prompts into chunks; and a
``galley replica`` with role prefill and a server with role decode, with half of the cores each. The load
is the same: texts that go on, and a long prompt from time to time, each with its own tokens. The figures
are the times to first token of the long prompts, and the times between two tokens of the texts. All
answers must be equal. By default the model is a random one in the shape of llama-1b with four layers;
speed does not depend on its values. Run it on an idle machine.
"""

import argparse
import asyncio
import json
import random
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import httpx
from rich.console import Console
from rich.table import Table

from benchmarks.peers.checkpoint import COMMON, SHAPES, write_checkpoint
from benchmarks.serving import Server, percentile, serving
from galley.machine import available_cores, cpu_and_cores

STREAMS: Final = 4
"""Texts that go on."""

ANSWER: Final = 16
"""Tokens of the answer to a long prompt."""

PAUSE_SECONDS: Final = 1.0
"""From the end of one long prompt's answer to the next."""


@dataclass
class Figures:
    """What was measured, in seconds."""

    ttft: list[float] = field(default_factory=list)
    between: list[float] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    def summary(self) -> dict[str, float]:
        """Return the figures to compare."""
        return {
            "ttft_p50_s": statistics.median(self.ttft),
            "ttft_max_s": max(self.ttft),
            "between_p50_s": statistics.median(self.between),
            "between_p95_s": percentile(self.between, 95),
            "between_p99_s": percentile(self.between, 99),
            "between_max_s": max(self.between),
            "tokens": len(self.between),
        }


async def text(
    client: httpx.AsyncClient, server: Server, prompt: list[int], tokens: int, seed: int
) -> tuple[list[float], list[str]]:
    """Return when each piece of a text arrived, and the pieces."""
    body = {
        "model": server.model,
        "prompt": prompt,
        "max_tokens": tokens,
        "ignore_eos": True,
        "seed": seed,
        "temperature": 1.0,
        "stream": True,
        "logprobs": 0,
    }
    times, pieces = [time.perf_counter()], []
    async with client.stream("POST", "/v1/completions", json=body) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if '"token_logprobs"' in line:
                times.append(time.perf_counter())
                choice = json.loads(line.removeprefix("data: "))["choices"][0]
                pieces.append("".join(choice["logprobs"]["tokens"]))
    return times, pieces


async def load(server: Server, prompt_tokens: int, rounds: int) -> Figures:
    """Return the figures of one load."""
    draw = random.Random(0)
    figures = Figures()
    stopped = asyncio.Event()
    pairs: list[tuple[float, float]] = []

    def ids(count: int) -> list[int]:
        return [draw.randrange(server.id_limit) for _ in range(count)]

    async def going_on(client: httpx.AsyncClient, number: int, begin: list[int]) -> None:
        while not stopped.is_set():
            times, _ = await text(client, server, begin, 256, number)
            pairs.extend(pairwise(times[1:]))

    async with httpx.AsyncClient(base_url=server.url, timeout=3600) as client:
        await text(client, server, ids(prompt_tokens), 1, 0)  # the first one warms up
        texts = [asyncio.create_task(going_on(client, n, ids(32))) for n in range(STREAMS)]
        for number in range(rounds):
            await asyncio.sleep(PAUSE_SECONDS)
            times, pieces = await text(client, server, ids(prompt_tokens), ANSWER, number)
            figures.ttft.append(times[1] - times[0])
            figures.texts.append("".join(pieces))
        ended = time.perf_counter()
        stopped.set()
        await asyncio.gather(*texts)
    figures.between = [b - a for a, b in pairs if b <= ended]
    return figures


@contextmanager
def prefill_replica(model: str, token: Path, *flags: str) -> Iterator[str]:
    """Start a replica that computes prompts, and yield its address."""
    command = [sys.executable, "-m", "galley", "replica", model, "--role", "prefill", "--port", "0"]
    process = subprocess.Popen(
        [*command, "--cluster-token-file", str(token), *flags],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if "ready for servers at " in line:
                yield line.rpartition(" ")[2].strip()
                break
        else:
            raise SystemExit("the replica did not start")
    finally:
        process.terminate()
        process.wait()


def measure(model: str, prompt_tokens: int, rounds: int, scratch: Path) -> dict[str, Any]:
    """Return the figures of both ways."""
    cores = available_cores()
    half = str(max(1, cores // 2))
    common = ["--kv-cache-tokens", str(STREAMS * 1024 + 4 * prompt_tokens), "--speculation", "off"]
    with serving(model, *common, "--threads", str(cores)) as server:
        chunked = asyncio.run(load(server, prompt_tokens, rounds))
    token = scratch / "token"
    token.write_text(secrets.token_hex(32))
    with prefill_replica(model, token, *common, "--threads", half) as address:
        roles = ["--role", "decode", "--prefill-replica", address]
        with serving(
            model, *common, "--threads", half, *roles, "--cluster-token-file", str(token)
        ) as server:
            apart = asyncio.run(load(server, prompt_tokens, rounds))
            metrics = httpx.get(f"{server.url}/metrics").text
    assert apart.texts == chunked.texts, "texts differ"
    fetched = [
        float(line.split()[-1])
        for line in metrics.splitlines()
        if line.startswith("galley_kv_transfer_hit_tokens_total")
    ]
    return {
        "prompt_tokens": prompt_tokens,
        "chunked": chunked.summary(),
        "apart": apart.summary(),
        "fetched_tokens": int(sum(fetched)),
    }


def main() -> None:
    """Measure both ways and print their figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default="")
    parser.add_argument("--prompt", type=int, default=3000, help="tokens of a long prompt")
    parser.add_argument("--rounds", type=int, default=6, help="number of long prompts")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        scratch, model = Path(folder), arguments.model
        if not model:
            model = str(scratch / "four-layers")
            write_checkpoint(Path(model), COMMON | SHAPES["llama-1b"] | {"num_hidden_layers": 4})
        figures = measure(model, arguments.prompt, arguments.rounds, scratch)
    table = Table("", "chunked prefill", "prefill apart", title=cpu_and_cores())
    for name in figures["chunked"]:
        table.add_row(name, f"{figures['chunked'][name]:.4g}", f"{figures['apart'][name]:.4g}")
    console = Console()
    console.print(table)
    console.print(f"{figures['fetched_tokens']} tokens fetched; all answers are equal")
    if arguments.json:
        arguments.json.write_text(
            json.dumps({"machine": cpu_and_cores(), **figures}, indent=2) + "\n"
        )


if __name__ == "__main__":
    main()
