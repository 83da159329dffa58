"""Measure a language model and a speech model in one server: each alone, and both under load.

    python -m benchmarks.together [--chat MODEL] [--speech MODEL] [--audio FILE] [--json FILE]
    python -m benchmarks.together --recordings 0 --live 4

Starts a real ``galley serve chat=... speech=...`` for each way of sharing the cores: ``turns`` (the
default of serve), ``kernel`` (``--no-take-turns``) and ``split`` (the same, with half of the cores for
each). Every round runs the streams alone, the transcriptions alone, then both. Clients are closed loops:
each sends the next request when it has its answer, so both engines always have work. With an even share of
the cores, each would take twice as long as alone. ``--live`` clients send audio in real time instead, and
wait for the text when they have sent all of it. Run it on an idle machine; GALLEY_* variables are those of
serve.
"""

import argparse
import asyncio
import base64
import json
import os
import random
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Final

import httpx
import numpy as np
import psutil
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from websockets.asyncio.client import connect

from benchmarks.serving import Server, completion, percentile, serving
from galley.formats.source import BUNDLED, BUNDLED_SPEECH
from galley.machine import cpu_and_cores
from galley.speech.audio import SAMPLE_RATE, Recording

AUDIO: Final = Path(__file__).parents[1] / "examples/call.opus"
SHARING: Final = ("turns", "kernel", "split")
WARM_UP_SECONDS: Final = 2.0
SPOKEN_SECONDS: Final = 4.0
"""Length of a live client's part."""
BLOCK_SECONDS: Final = 0.1


@dataclass(frozen=True)
class Load:
    """The clients' load.

    Attributes:
        streams, recordings, live: number of clients that chat, send recordings, and stream live audio.
        prompt, output: tokens of a chat.
        seconds: duration of each phase.
    """

    streams: int
    recordings: int
    live: int
    prompt: int
    output: int
    seconds: float
    audio: Path


@dataclass
class Phase:
    """Results over all rounds. Lists have an entry for each request, in seconds.

    Attributes:
        first: time to the first token.
        between: mean time between later tokens.
        finals: time from the end of a live client's speech to its full text.
        factors: seconds of waiting per second of a recording (the real-time factor).
        heard: seconds of audio transcribed.
        wall: duration of the phase in seconds.
        cores: CPU seconds of each engine process.
    """

    first: list[float] = field(default_factory=list)
    between: list[float] = field(default_factory=list)
    finals: list[float] = field(default_factory=list)
    factors: list[float] = field(default_factory=list)
    heard: float = 0.0
    wall: float = 0.0
    cores: dict[str, float] = field(default_factory=dict)


async def chat(client: httpx.AsyncClient, server: Server, load: Load, phase: Phase) -> None:
    """Send one request of random token ids, so that no prefix is ever cached."""
    prompt = [random.randrange(server.id_limit) for _ in range(load.prompt)]
    times = await completion(client, server, prompt, load.output)
    phase.first.append(times[0])
    phase.between.append((times[-1] - times[0]) / max(1, len(times) - 1))


async def transcribe(client: httpx.AsyncClient, server: Server, load: Load, phase: Phase) -> None:
    """Send one recording as a whole."""
    began = time.perf_counter()
    answer = await client.post(
        "/v1/audio/transcriptions",
        files={"file": (load.audio.name, load.audio.read_bytes())},
        data={"model": "speech", "language": "en", "response_format": "verbose_json"},
    )
    answer.raise_for_status()
    duration = answer.json()["duration"]
    phase.factors.append((time.perf_counter() - began) / duration)
    phase.heard += duration


@cache
def spoken(audio: Path) -> bytes:
    """Return a live client's part of a recording as 16-bit samples."""
    samples = np.concatenate(list(Recording(audio)))[: int(SPOKEN_SECONDS * SAMPLE_RATE)]
    return np.round(samples * 32_767).astype("<i2").tobytes()


async def speak(client: httpx.AsyncClient, server: Server, load: Load, phase: Phase) -> None:
    """Stream a part of the recording live; the client commits it at its end."""
    pcm = spoken(load.audio)
    source = {
        "format": {"type": "audio/pcm", "rate": SAMPLE_RATE},
        "transcription": {"language": "en"},
        "turn_detection": None,
    }
    url = server.url.replace("http", "ws", 1) + "/v1/realtime?intent=transcription&model=speech"
    async with connect(url) as socket:
        session = {"type": "transcription", "audio": {"input": source}}
        await socket.send(json.dumps({"type": "session.update", "session": session}))
        block = 2 * int(BLOCK_SECONDS * SAMPLE_RATE)
        began = time.perf_counter()
        for number, first in enumerate(range(0, len(pcm), block), start=1):
            audio = base64.b64encode(pcm[first : first + block]).decode()
            await asyncio.sleep(began + number * BLOCK_SECONDS - time.perf_counter())
            await socket.send(json.dumps({"type": "input_audio_buffer.append", "audio": audio}))
        await socket.send(json.dumps({"type": "input_audio_buffer.commit"}))
        ended = time.perf_counter()
        async for message in socket:
            event = json.loads(message)
            if event["type"] == "error":
                raise RuntimeError(event["error"]["message"])
            if event["type"].endswith("input_audio_transcription.completed"):
                phase.finals.append(time.perf_counter() - ended)
                return


Request = Callable[[httpx.AsyncClient, Server, Load, Phase], Awaitable[None]]


async def run_phase(server: Server, load: Load, phase: Phase) -> None:
    """Run all clients of the load for its time. Requests unanswered at its end do not count."""

    async def lane(client: httpx.AsyncClient, request: Request, into: Phase) -> None:
        while True:
            await request(client, server, load, into)

    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=server.url, timeout=600, limits=limits) as client:
        for seconds, into in ((WARM_UP_SECONDS, Phase()), (load.seconds, phase)):
            before, began = engine_seconds(server), time.perf_counter()
            lanes = [
                asyncio.create_task(lane(client, request, into))
                for request, count in (
                    (chat, load.streams),
                    (transcribe, load.recordings),
                    (speak, load.live),
                )
                for _ in range(count)
            ]
            ended, _ = await asyncio.wait(
                lanes, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION
            )
            for task in lanes:
                task.cancel()
            await asyncio.gather(*lanes, return_exceptions=True)
            for task in ended:
                task.result()
            into.wall += time.perf_counter() - began
            for name, spent in engine_seconds(server).items():
                into.cores[name] = into.cores.get(name, 0.0) + spent - before[name]


def engine_seconds(server: Server) -> dict[str, float]:
    """Return the CPU seconds of each model's engine process so far."""
    spent = {}
    for child in psutil.Process(server.pid).children():
        command = set(child.cmdline())
        for name in {"chat", "speech"} & command if "galley.service.worker" in command else ():
            times = child.cpu_times()
            spent[name] = times.user + times.system
    return spent


def measure(sharing: str, models: list[str], load: Load, rounds: int) -> dict[str, Phase]:
    """Run all phases with one way of sharing the cores."""
    flags = [] if sharing == "turns" else ["--no-take-turns"]
    if sharing == "split":
        cores = len(os.sched_getaffinity(0))
        models = [*models, f"chat.threads={max(1, cores // 2)}"]
        models.append(f"speech.threads={max(1, cores - cores // 2)}")
    loads = {
        "chat alone": replace(load, recordings=0, live=0),
        "speech alone": replace(load, streams=0),
        "together": load,
    }
    phases = {name: Phase() for name in loads}
    with serving(*models, *flags) as server, Progress() as progress:
        for _ in progress.track(range(rounds), description=sharing):
            for name, phase in phases.items():
                asyncio.run(run_phase(server, loads[name], phase))
    return phases


def summary(phase: Phase) -> dict[str, float]:
    """Return the figures of a phase, without those that do not apply to it."""
    figures = {}
    if phase.first:
        figures["ttft_p50_s"] = statistics.median(phase.first)
        figures["ttft_p95_s"] = percentile(phase.first, 95)
        figures["tpot_p95_s"] = percentile(phase.between, 95)
        figures["chats_per_s"] = len(phase.first) / phase.wall
    if phase.factors:
        figures["rtf_p50"] = statistics.median(phase.factors)
        figures["rtf_p95"] = percentile(phase.factors, 95)
        figures["audio_s_per_s"] = phase.heard / phase.wall
    if phase.finals:
        figures["final_p50_s"] = statistics.median(phase.finals)
        figures["final_p95_s"] = percentile(phase.finals, 95)
    total = sum(phase.cores.values()) or 1.0
    figures["chat_share"] = phase.cores.get("chat", 0.0) / total
    return figures


def report(results: dict[str, dict[str, dict[str, float]]]) -> None:
    """Print a table for each way of sharing; the last column is the cost of the other model's load."""
    console = Console()
    console.print(cpu_and_cores())
    for sharing, phases in results.items():
        table = Table(sharing, "alone", "together", "together / alone")
        together = phases["together"]
        for name, figure in together.items():
            alone = phases["chat alone"].get(name, phases["speech alone"].get(name))
            if name == "chat_share" or not alone:
                table.add_row(name, "", f"{figure:.3g}", "")
            else:
                table.add_row(name, f"{alone:.3g}", f"{figure:.3g}", f"{figure / alone:.2f}")
        console.print(table)


def main() -> None:
    """Measure and print every way of sharing."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.together",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--chat", default=BUNDLED)
    parser.add_argument("--speech", default=BUNDLED_SPEECH)
    parser.add_argument("--audio", type=Path, default=AUDIO)
    parser.add_argument("--sharing", nargs="+", choices=SHARING, default=SHARING)
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--recordings", type=int, default=2)
    parser.add_argument("--live", type=int, default=0)
    parser.add_argument("--prompt", type=int, default=256)
    parser.add_argument("--output", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="also write all figures to this file")
    arguments = parser.parse_args()
    load = Load(**{each.name: getattr(arguments, each.name) for each in fields(Load)})
    models = [f"chat={arguments.chat}", f"speech={arguments.speech}"]
    phases = {
        sharing: measure(sharing, models, load, arguments.rounds) for sharing in arguments.sharing
    }
    results = {
        sharing: {name: summary(phase) for name, phase in of.items()}
        for sharing, of in phases.items()
    }
    report(results)
    if arguments.json:
        figures = {"machine": cpu_and_cores(), "load": {**asdict(load), "audio": str(load.audio)}}
        arguments.json.write_text(json.dumps({**figures, "results": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
