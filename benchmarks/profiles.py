"""Profile a server's processes under load with py-spy (``pip install py-spy``).

    python -m benchmarks.profiles galley-demo-speech --streams 4
    python -m benchmarks.profiles MODEL --streams 8 --flags "--weight-dtype int4"

Starts ``galley serve MODEL`` and keeps ``--streams`` requests in flight: recordings of the speech recipe's
held-out utterances, or chat. Prints the CPU time of each process as a share of wall time, and the samples
of its busy threads by Galley module. ``--folder`` keeps the samples, one file per process, in the format
that flame graphs are drawn from.
"""

import argparse
import asyncio
import contextlib
import io
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import wave
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx
import numpy as np
import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.spoken import say
from galley.bench.serve.server import started
from recipes.speech.heldout import SETS, read
from recipes.speech.voices import RATE, Samples

SECONDS: Final = 20
_MODULE: Final = re.compile(r"\((?:.*/)?galley/([\w/]+)\.py:")


@dataclass(frozen=True)
class ProcessProfile:
    """One process: CPU time per second of wall time, and samples by module."""

    command: str
    cores: float
    modules: Counter[str]


@contextlib.contextmanager
def sampled(pids: list[int], folder: Path, name: str, seconds: int) -> Iterator[None]:
    """Write ``{name}-{pid}.txt`` for each process over the next ``seconds``; return when all have ended."""
    folder.mkdir(parents=True, exist_ok=True)
    program = shutil.which("py-spy") or str(Path(sys.executable).with_name("py-spy"))
    record = f"{program} record --threads --native --format raw --duration {seconds}".split()
    spies = [
        subprocess.Popen(
            [*record, "--pid", str(pid), "--output", str(folder / f"{name}-{pid}.txt")]
        )
        for pid in pids
    ]
    yield
    for spy in spies:
        spy.wait()


def modules(samples: Path) -> Counter[str]:
    """Count samples by the innermost Galley module on the stack, from py-spy's raw format."""
    counts: Counter[str] = Counter()
    for line in samples.read_text().splitlines():
        stack, _, count = line.rpartition(" ")
        found = _MODULE.findall(stack)
        counts[found[-1] if found else "no module of Galley"] += int(count)
    return counts


def main() -> None:
    """Serve, generate load, sample, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--flags", default="", help="more flags of galley serve, as one string")
    parser.add_argument("--folder", type=Path, help="keep the samples in this folder")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as scratch,
        started(options.model, *shlex.split(options.flags)) as (url, pid),
    ):
        profiles = _profile(url, pid, options.streams, options.folder or Path(scratch))
    _print(profiles)


def _profile(url: str, pid: int, streams: int, folder: Path) -> list[ProcessProfile]:
    server = psutil.Process(pid)
    processes = [server, *server.children(recursive=True)]
    name = f"{streams}-streams"

    async def loaded() -> list[float]:
        async with _load(url, streams):
            await asyncio.sleep(2)
            began = time.monotonic()
            before = [_busy(process) for process in processes]
            with sampled([process.pid for process in processes], folder, name, SECONDS):
                await asyncio.sleep(SECONDS)
                wall = time.monotonic() - began
                return [(_busy(p) - b) / wall for p, b in zip(processes, before, strict=True)]

    cores = asyncio.run(loaded())
    return [
        ProcessProfile(_role(process), share, modules(folder / f"{name}-{process.pid}.txt"))
        for process, share in zip(processes, cores, strict=True)
    ]


@contextlib.asynccontextmanager
async def _load(url: str, streams: int) -> AsyncIterator[None]:
    """Keep ``streams`` requests running, each followed by another."""
    async with httpx.AsyncClient(base_url=url, timeout=600) as client:
        model = (await client.get("/v1/models")).json()["data"][0]
        recordings = _recordings() if "transcribe" in model["tasks"] else []

        async def ask(number: int) -> httpx.Response:
            if recordings:
                file = ("speech.wav", recordings[number % len(recordings)], "audio/wav")
                form = {"model": model["id"]}
                return await client.post(
                    "/v1/audio/transcriptions", data=form, files={"file": file}
                )
            body = {
                "model": model["id"],
                "messages": [{"role": "user", "content": f"What is {number}?"}],
                "max_tokens": 128,
                "ignore_eos": True,
                "stream": True,
            }
            return await client.post("/v1/chat/completions", json=body)

        async def stream(number: int) -> None:
            while True:
                (await ask(number)).raise_for_status()
                number += streams

        tasks = [asyncio.create_task(stream(number)) for number in range(streams)]
        yield
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        for error in ended:
            if isinstance(error, Exception):
                raise error


def _recordings() -> list[bytes]:
    """Return WAV files of the held-out utterances, each at least half a minute long."""
    files = []
    samples: list[Samples] = []
    for item in (item for number in SETS for item in read(number)):
        samples.append(say(item).samples)
        if sum(map(len, samples)) > 30 * RATE:
            files.append(_wav(np.concatenate(samples)))
            samples = []
        if len(files) == 16:
            break
    return files


def _wav(samples: Samples) -> bytes:
    target = io.BytesIO()
    with wave.open(target, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes((32767 * samples.clip(-1, 1)).astype("<i2").tobytes())
    return target.getvalue()


def _busy(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _role(process: psutil.Process) -> str:
    words = [word for word in process.cmdline() if word.startswith(("galley", "serve"))]
    return words[0].removeprefix("galley.") if words else str(process.name())


def _print(profiles: list[ProcessProfile]) -> None:
    table = Table("process", "cores", "module", "share of samples")
    for profile in profiles:
        total = sum(profile.modules.values()) or 1
        for row, (module, count) in enumerate(profile.modules.most_common(8)):
            first = (profile.command, f"{profile.cores:.2f}") if row == 0 else ("", "")
            table.add_row(*first, module, f"{100 * count / total:.1f} %")
    Console().print(table)


if __name__ == "__main__":
    main()
