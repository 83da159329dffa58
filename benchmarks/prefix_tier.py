"""Measure a session after a restart: its prefix read from disk, and computed again.

    python -m benchmarks.prefix_tier [MODEL] [--tokens 30000] [--json FILE]

Starts a real ``galley serve`` with ``prefix_cache_dir``, sends one long prompt, and restarts the server.
The figures are the times to first token of the next turn: in the restarted server, in one without the
folder, and with the prefix in memory. All answers must be equal. By default the model is a random one of
two layers with a context of 32,768 tokens; speed does not depend on its values. Run it on an idle machine.
"""

import argparse
import asyncio
import json
import random
import tempfile
from pathlib import Path
from typing import Any, Final

import httpx
from rich.console import Console
from rich.table import Table

from benchmarks.peers.checkpoint import COMMON, SHAPES, write_checkpoint
from benchmarks.serving import Server, completion, serving
from galley.machine import cpu_and_cores

TURN_TOKENS: Final = 50
"""Tokens of the new turn."""


def flags_of(tokens: int, folder: Path | None) -> list[str]:
    """Return the flags of a server that holds the session in memory."""
    tier = [] if folder is None else ["--prefix-cache-dir", str(folder)]
    return ["--kv-cache-tokens", str(tokens + 4096), "--speculation", "off", *tier]


async def turn(server: Server, prompt: list[int]) -> tuple[float, str, int]:
    """Return the seconds to the first token of an answer, its text, and the cached prompt tokens."""
    body = {"model": server.model, "prompt": prompt, "max_tokens": 16, "temperature": 0}
    async with httpx.AsyncClient(base_url=server.url, timeout=3600) as client:
        first = (await completion(client, server, prompt, 1))[0]
        answer = (await client.post("/v1/completions", json=body)).raise_for_status().json()
        metrics = (await client.get("/metrics")).text
    read = [
        float(line.split()[-1])
        for line in metrics.splitlines()
        if line.startswith("galley_prefix_disk_hit_tokens_total")
    ]
    return first, str(answer["choices"][0]["text"]), int(sum(read))


def measure(model: str, tokens: int, folder: Path) -> dict[str, Any]:
    """Return the figures of one session."""
    draw = random.Random(0)
    with serving(model, *flags_of(tokens, folder)) as server:
        session = [draw.randrange(server.id_limit) for _ in range(tokens)]
        more = [*session, *(draw.randrange(server.id_limit) for _ in range(TURN_TOKENS))]
        first, _, _ = asyncio.run(turn(server, session))
        memory, expected, _ = asyncio.run(turn(server, more))
    with serving(model, *flags_of(tokens, folder)) as server:
        resumed, text, read = asyncio.run(turn(server, more))
    assert text == expected, "the text differs from that before the restart"
    with serving(model, *flags_of(tokens, None)) as server:
        computed, text, _ = asyncio.run(turn(server, more))
    assert text == expected, "the text differs from that without the folder"
    return {
        "tokens": tokens,
        "first_ttft_s": first,
        "memory_ttft_s": memory,
        "resumed_ttft_s": resumed,
        "computed_ttft_s": computed,
        "read_tokens": read,
        "folder_bytes": sum(file.stat().st_size for file in folder.rglob("*.kv")),
    }


def main() -> None:
    """Measure a session and print its figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default="")
    parser.add_argument("--tokens", type=int, default=30_000)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        model = arguments.model
        if not model:
            model = str(Path(scratch) / "two-layers")
            shape = COMMON | SHAPES["tiny"] | {"max_position_embeddings": 32_768}
            write_checkpoint(Path(model), shape)
        figures = measure(model, arguments.tokens, Path(scratch) / "blocks")
    table = Table(
        "time to first token", "seconds", title=f"{cpu_and_cores()}: {figures['tokens']} tokens"
    )
    for name in ("first", "computed", "resumed", "memory"):
        table.add_row(name, f"{figures[f'{name}_ttft_s']:.3f}")
    console = Console()
    console.print(table)
    console.print(f"{figures['read_tokens']} tokens read of {figures['folder_bytes']:,} bytes")
    if arguments.json:
        arguments.json.write_text(
            json.dumps({"machine": cpu_and_cores(), **figures}, indent=2) + "\n"
        )


if __name__ == "__main__":
    main()
