"""Measure what a refusal costs the server: CPU time of its main thread, of a full queue and of a deadline.

    python -m benchmarks.refusal_cost [--requests 4800] [--connections 8] [--profile FOLDER]

The engine is busy with a few long texts that nobody reads, so the server has nearly nothing else to do.
Other load on the machine changes CPU time less than elapsed time, and can only add to it, so compare the
least of the windows. ``--profile`` writes py-spy profiles of the server's process (``pip install py-spy``).
"""

import argparse
import asyncio
import contextlib
import statistics
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.http_load import Call, Client
from benchmarks.profiles import sampled
from benchmarks.serving import Server, serving

PATH: Final = "/v1/completions"
PROMPT: Final = list(range(100, 164))
RUNNING: Final = 2
WINDOWS: Final = 12
PROFILE_SECONDS: Final = 12


@dataclass(frozen=True)
class Cost:
    """The CPU time of a refusal in each window, in microseconds, sorted; and the statuses of all."""

    micros: list[float]
    statuses: dict[int, int]


def body(server: Server, tokens: int) -> dict[str, Any]:
    """Return a request for this many tokens."""
    return {
        "model": server.model,
        "prompt": PROMPT,
        "max_tokens": tokens,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
    }


async def fill(server: Server, client: Client, count: int) -> list[Call]:
    """Begin this many texts that fill the context."""
    calls = [await client.begin(PATH, body(server, 1900)) for _ in range(count)]
    while not all(call.answer.events for call in calls[:RUNNING]):  # noqa: ASYNC110 (they set no event)
        await asyncio.sleep(0.05)
    return calls


async def refuse(
    server: Server, requests: int, connections: int, headers: dict[str, str]
) -> Counter[int]:
    """Send requests on several connections; return how many had each status."""
    statuses: Counter[int] = Counter()

    async def connection(count: int) -> None:
        client = Client(server.url)
        for _ in range(count):
            statuses[(await client.post(PATH, body(server, 64), **headers)).status] += 1
        client.close()

    await asyncio.gather(*(connection(requests // connections) for _ in range(connections)))
    return statuses


async def measure(
    server: Server, requests: int, connections: int, *, waiting: int, headers: dict[str, str]
) -> Cost:
    """Return the cost of a refusal while ``RUNNING`` texts run and ``waiting`` wait."""
    client = Client(server.url)
    calls = await fill(server, client, RUNNING + waiting)
    await refuse(server, requests // 8, connections, headers)
    micros, total = [], Counter[int]()
    for _ in range(WINDOWS):
        before = _thread_ns(server.pid)
        statuses = await refuse(server, requests // WINDOWS, connections, headers)
        micros.append((_thread_ns(server.pid) - before) / 1000 / statuses.total())
        total += statuses
    for call in calls:
        call.hang_up()
    return Cost(sorted(micros), dict(total))


def _thread_ns(pid: int) -> int:
    """Return the nanoseconds for which a process's main thread has run (Linux)."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=4800)
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--profile", type=Path, help="folder for profiles of the server")
    given = parser.parse_args()
    flags = ("--threads", "1", "--max-running", str(RUNNING))
    cases: dict[str, tuple[tuple[str, ...], int, dict[str, str]]] = {
        "full queue": (("--max-queue", "2"), 2, {}),
        "deadline": (("--max-queue", "64"), 32, {"x_request_timeout": "0.2"}),
    }
    for name, (more, waiting, headers) in cases.items():
        with contextlib.ExitStack() as stack:
            server = stack.enter_context(serving("galley-demo", *flags, *more))
            if given.profile:
                label = name.replace(" ", "-")
                stack.enter_context(sampled([server.pid], given.profile, label, PROFILE_SECONDS))
            run = measure(
                server, given.requests, given.connections, waiting=waiting, headers=headers
            )
            cost = asyncio.run(run)
            least, median = cost.micros[0], statistics.median(cost.micros)
            print(
                f"{name}: {least:.0f} us of CPU per refusal, median of {WINDOWS} windows {median:.0f}; "
                f"statuses {cost.statuses}"
            )


if __name__ == "__main__":
    main()
