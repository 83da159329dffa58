"""Record generated traffic, replay the record, and compare arrivals and prefix hits; search it for texts.

    python -m benchmarks.recorded_traffic [MODEL] [--seconds 180] [--rate 5] [--json FILE]
    python -m benchmarks.recorded_traffic --seconds 3600 --rate 0.25 --speed 20

The traffic has bursts (a Poisson process whose rate changes between calm and busy) and sessions. A turn
begins with all earlier ones of its session, behind one of a few system prompts. Recording and replaying
take as long as the traffic each. With ``--speed`` all its pauses are shorter: an hour at 0.25 requests a
second passes in three minutes at 5, which asks more of the replay's clock.

The replay is sent to a server that records, too. Arrivals are compared as the two servers recorded them, in
order of arrival, and as the client sent them.
"""

import argparse
import asyncio
import contextlib
import json
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from galley.bench.serve.client import Client
from galley.bench.serve.load import Run, open_loop
from galley.bench.serve.replay import recorded_share, replay
from galley.bench.serve.server import started
from galley.bench.serve.workload import PATHS, Prepared
from galley.machine import cpu_and_cores
from galley.settings.engine import EngineSettings
from galley.traffic.trace import Turn, read_trace

WORDS: Final = (
    *("harbor", "lantern", "meadow", "violet", "copper", "pebble", "thunder", "walnut", "velvet"),
    *("saddle", "orchard", "candle", "marble", "whisper", "compass", "anchor", "bramble", "cobweb"),
)
"""Of which all texts are made, and for which the record is searched."""
SYSTEM_PROMPTS: Final = 4
BUSY: Final = 6.0
"""Times as many requests a second in a burst as in a calm time."""
CALM_SECONDS, BUSY_SECONDS = 12.0, 3.0
TURNS: Final = 4.0
"""Turns of a session, in the mean; at most :data:`MOST_TURNS`."""
MOST_TURNS: Final = 8
PAUSE: Final = 2.0
"""Median seconds from an answer to the next turn."""


@dataclass(frozen=True)
class Asked:
    """A request of the generated traffic: when, after which other one, and its body."""

    due: float
    after: tuple[int, float] | None
    body: dict[str, Any]


def burst_times(random: np.random.Generator, rate: float, seconds: float) -> Iterator[float]:
    """Yield times of a process with ``rate`` events a second in the mean, in bursts."""
    share = BUSY_SECONDS / (CALM_SECONDS + BUSY_SECONDS)
    calm_rate = rate / (1 - share + share * BUSY)
    now, busy = 0.0, False
    while now < seconds:
        end = now + random.exponential(BUSY_SECONDS if busy else CALM_SECONDS)
        own_rate = calm_rate * (BUSY if busy else 1.0)
        time = now + random.exponential(1 / own_rate)
        while time < min(end, seconds):
            yield time
            time += random.exponential(1 / own_rate)
        now, busy = end, not busy


def text(random: np.random.Generator, words: int) -> str:
    """Return a text of this many words."""
    return " ".join(random.choice(WORDS, words))


def traffic(rate: float, seconds: float, seed: int = 0) -> list[Asked]:
    """Return requests in the order in which they are due."""
    random = np.random.default_rng(seed)
    systems = [text(random, 60) for _ in range(SYSTEM_PROMPTS)]
    planned: list[tuple[float, int, float, list[dict[str, str]]]] = []
    for session, begins in enumerate(burst_times(random, rate / TURNS, seconds)):
        messages = [{"role": "system", "content": systems[random.integers(SYSTEM_PROMPTS)]}]
        due, pause = begins, 0.0
        for _ in range(min(MOST_TURNS, random.geometric(1 / TURNS))):
            messages = [
                *messages,
                {"role": "user", "content": text(random, int(random.integers(6, 24)))},
            ]
            planned.append((due, session, pause, messages))
            # The model's answer is not known yet, so the next turn has another one.
            messages = [*messages, {"role": "assistant", "content": text(random, 12)}]
            pause = float(random.lognormal(np.log(PAUSE), 0.6))
            due += pause
    planned.sort(key=lambda one: one[0])
    place: dict[int, int] = {}
    asked = []
    for number, (due, session, pause, messages) in enumerate(planned):
        before = place.get(session)
        body = {
            "messages": messages,
            "max_tokens": int(np.clip(random.lognormal(3.2, 0.6), 4, 120)),
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        asked.append(Asked(due, None if before is None else (before, pause), body))
        place[session] = number
    return asked


def sped_up(asked: list[Asked], speed: float) -> list[Asked]:
    """Return the same requests, this many times as fast."""
    return [
        Asked(
            one.due / speed,
            None if one.after is None else (one.after[0], one.after[1] / speed),
            one.body,
        )
        for one in asked
    ]


def record(model: str, folder: Path, asked: list[Asked]) -> list[Turn]:
    """Serve the traffic, and return its record."""

    async def send(url: str) -> Run:
        requests = (
            Prepared(PATHS["chat"], json.dumps(one.body).encode(), "application/json", True)
            for one in asked
        )
        with contextlib.closing(Client(url)) as client:
            return await open_loop(
                client, requests, [one.due for one in asked], after=[one.after for one in asked]
            )

    with started("--record", str(folder), settings=EngineSettings(model=model)) as (url, _):
        run = asyncio.run(send(url))
    # An answer of special tokens alone has no text, and is recorded like any other.
    failed = [one.error for one in run.samples if one.error not in ("", None, "no text")]
    assert not failed, failed[:3]
    return read_trace(folder)


def replayed(model: str, folder: Path, turns: list[Turn]) -> tuple[list[Turn], Run]:
    """Replay a record, and return the record of that and what the client saw."""

    async def send(url: str) -> Run:
        with contextlib.closing(Client(url)) as client:
            _, _, run = await replay(
                client,
                turns,
                speed=1.0,
                model=None,
                seed=0,
                objective={},
                price_per_hour=None,
            )
            return run

    with started("--record", str(folder), settings=EngineSettings(model=model)) as (url, _):
        run = asyncio.run(send(url))
    return read_trace(folder), run


@dataclass(frozen=True)
class Found:
    """What was measured; times in milliseconds, shares of prompt tokens in percent.

    Attributes:
        arrivals_p50, arrivals_p99, arrivals_max: differences between the arrivals of the two records.
        sent_p50, sent_p99, sent_max: how late the client sent requests, those of sessions included.
        words_in_the_record: of the texts.
    """

    machine: str
    requests: int
    sessions: int
    busiest_second: int
    arrivals_p50: float
    arrivals_p99: float
    arrivals_max: float
    sent_p50: float
    sent_p99: float
    sent_max: float
    cached_when_recorded: float
    cached_when_replayed: float
    record_bytes: int
    words_in_the_record: list[str]


def compared(folder: Path, first: list[Turn], second: list[Turn], run: Run) -> Found:
    """Compare the two records."""
    arrivals = [np.array([turn.due for turn in turns]) for turns in (first, second)]
    # A record counts from its first arrival; the median difference is that of the two clocks.
    moved = arrivals[1] - arrivals[0]
    differences = 1e3 * np.abs(moved - np.median(moved))
    late = 1e3 * np.array([sample.started - sample.due for sample in run.samples])
    files = [path.read_text().lower() for path in folder.glob("*")]
    shares = [recorded_share(turns) or 0.0 for turns in (first, second)]
    return Found(
        machine=cpu_and_cores(),
        requests=len(first),
        sessions=len({turn.line.session_id for turn in first}),
        busiest_second=int(np.bincount(arrivals[0].astype(int)).max()),
        arrivals_p50=float(np.percentile(differences, 50)),
        arrivals_p99=float(np.percentile(differences, 99)),
        arrivals_max=float(differences.max()),
        sent_p50=float(np.percentile(late, 50)),
        sent_p99=float(np.percentile(late, 99)),
        sent_max=float(late.max()),
        cached_when_recorded=100 * shares[0],
        cached_when_replayed=100 * shares[1],
        record_bytes=sum(map(len, files)),
        words_in_the_record=[word for word in WORDS if any(word in file for file in files)],
    )


def main() -> None:
    """Record, replay, compare and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default="")
    parser.add_argument("--seconds", type=float, default=180.0)
    parser.add_argument("--rate", type=float, default=5.0, help="requests a second in the mean")
    parser.add_argument("--speed", type=float, default=1.0, help="times as fast as that")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    asked = sped_up(traffic(options.rate, options.seconds), options.speed)
    with tempfile.TemporaryDirectory() as at:
        folders = Path(at, "first"), Path(at, "second")
        first = record(options.model, folders[0], asked)
        second, run = replayed(options.model, folders[1], first)
        found = asdict(compared(folders[0], first, second, run))
    print(json.dumps(found, indent=2))
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
