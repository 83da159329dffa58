"""Measure the delay from the end of a spoken word to its final text, over several WebSocket streams.

    python -m benchmarks.live MODEL --streams 4 --minutes 2 --json FILE

Starts ``galley serve MODEL`` and sends it held-out utterances of the speech model's recipe in real time,
20 ms per message, different ones on each stream. espeak-ng synthesizes them and reports when each word
ends. A word's delay is the time from there to the arrival of the delta that completes it; words missing
from the transcript are not counted. Run it on an idle machine. Needs espeak-ng.
"""

import argparse
import asyncio
import base64
import difflib
import json
import os
import re
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import psutil
from websockets.asyncio.client import ClientConnection, connect

from benchmarks.spoken import Utterance, Word, say
from galley.bench.serve.server import started
from galley.speech.merge import plain
from recipes.speech.heldout import SETS, read

RATE: Final = 16_000
BLOCK: Final = RATE // 50
GAP: Final = 0.6
"""Seconds of silence between two utterances."""
_TEXT: Final = "conversation.item.input_audio_transcription."


@dataclass
class Heard:
    """The result of one stream: its final characters with the time each arrived, in seconds."""

    text: str = ""
    arrived: list[float] = field(default_factory=list)
    contradictions: int = 0
    """Turns whose transcript differed from their concatenated deltas."""


@dataclass(frozen=True)
class Report:
    """Word delays in seconds; ``found`` is the share of words that the transcripts contain."""

    streams: int
    seconds: float
    words: int
    found: float
    median: float
    p95: float
    contradictions: int
    memory_mb: tuple[float, ...]
    """Memory of server and engine together, sampled evenly from start to end."""


def main() -> None:
    """Prepare, play, report."""
    arguments = _arguments()
    streams = _streams(arguments.streams, 60 * arguments.minutes)
    options = ("--threads", str(arguments.threads), "--weight-dtype", arguments.weight_dtype)
    with started(arguments.model, *options) as (url, pid):
        heard, memory = asyncio.run(_play(url, streams, arguments.interim, pid))
    delays = [
        delay
        for (_, words), one in zip(streams, heard, strict=True)
        for delay in _delays(words, one)
    ]
    count = sum(len(words) for _, words in streams)
    report = Report(
        streams=len(streams),
        seconds=max(len(samples) for samples, _ in streams) / RATE,
        words=count,
        found=round(len(delays) / count, 3),
        median=round(statistics.median(delays), 3),
        p95=round(float(np.percentile(delays, 95)), 3),
        contradictions=sum(one.contradictions for one in heard),
        memory_mb=tuple(round(sample / 2**20, 1) for sample in memory),
    )
    print(json.dumps(asdict(report), indent=2))
    if arguments.json:
        arguments.json.write_text(json.dumps(asdict(report), indent=2) + "\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.live",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", help="folder or hub id of a speech model")
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--minutes", type=float, default=2.0, help="length of each stream")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--weight-dtype", default="auto")
    parser.add_argument("--interim", action="store_true", help="also request interim text")
    parser.add_argument("--json", type=Path, help="also write all figures to this file")
    return parser.parse_args()


def _streams(count: int, seconds: float) -> list[tuple[np.ndarray[Any, Any], list[Word]]]:
    """Return each stream's samples and words: consecutive utterances, none shared by two streams."""
    items = [item for number in SETS for item in read(number)]
    places = [items[number::count] for number in range(count)]
    return [_joined((say(item) for item in mine), seconds) for mine in places]


def _joined(
    utterances: Iterator[Utterance], seconds: float
) -> tuple[np.ndarray[Any, Any], list[Word]]:
    parts: list[np.ndarray[Any, Any]] = []
    words: list[Word] = []
    at = 0
    for utterance in utterances:
        if at > seconds * RATE:
            break
        words += [Word(word.text, at / RATE + word.end) for word in utterance.words]
        parts += [utterance.samples, np.zeros(round(GAP * RATE), np.float32)]
        at += len(parts[-2]) + len(parts[-1])
    parts.append(np.zeros(2 * RATE, np.float32))  # wait for the last words to become final
    return np.concatenate(parts), words


async def _play(
    url: str,
    streams: Sequence[tuple[np.ndarray[Any, Any], list[Word]]],
    interim: bool,
    pid: int,
) -> tuple[list[Heard], list[int]]:
    """Run all streams at once; return their transcripts and samples of the memory in bytes."""
    memory: list[int] = []

    async def sample() -> None:
        while True:
            family = [psutil.Process(pid)]
            family += family[0].children(recursive=True)
            memory.append(sum(one.memory_info().rss for one in family))
            await asyncio.sleep(max(1.0, len(streams[0][0]) / RATE / 10))

    sampling = asyncio.create_task(sample())
    try:
        heard = await asyncio.gather(*(_stream(url, samples, interim) for samples, _ in streams))
    finally:
        sampling.cancel()
    return heard, memory


async def _stream(server: str, samples: np.ndarray[Any, Any], interim: bool) -> Heard:
    url = server.replace("http", "ws", 1) + "/v1/realtime?intent=transcription"
    async with connect(url, max_size=None) as socket:
        source = {
            "format": {"type": "audio/pcm", "rate": RATE},
            "transcription": {"language": "en"},
        }
        session: dict[str, Any] = {"type": "transcription", "audio": {"input": source}}
        if interim:
            session["include"] = ["item.input_audio_transcription.interim"]
        await socket.send(json.dumps({"type": "session.update", "session": session}))
        # The first message waits while the server loads what the first stream needs.
        while json.loads(await socket.recv())["type"] != "session.updated":
            pass
        began = time.monotonic()
        listening = asyncio.create_task(_listen(socket, began))
        pcm = np.round(np.clip(samples, -1, 1) * 32_767).astype("<i2")
        for first in range(0, len(pcm), BLOCK):
            # A block can be sent once its last sample has been spoken.
            await asyncio.sleep(began + (first + BLOCK) / RATE - time.monotonic())
            audio = base64.b64encode(pcm[first : first + BLOCK].tobytes()).decode()
            await socket.send(json.dumps({"type": "input_audio_buffer.append", "audio": audio}))
        await asyncio.sleep(2)
        await socket.close()
        return await listening


async def _listen(socket: ClientConnection, began: float) -> Heard:
    heard = Heard()
    turns: dict[str, str] = {}
    async for message in socket:
        now = time.monotonic() - began
        event = json.loads(message)
        if event["type"] == f"{_TEXT}delta":
            text = event["delta"]
            turns[event["item_id"]] = turns.get(event["item_id"], "") + text
        elif event["type"] == f"{_TEXT}completed":
            heard.contradictions += turns.get(event["item_id"], "") != event["transcript"]
            text = " "
        elif event["type"] in ("error", f"{_TEXT}failed"):
            raise RuntimeError(f"the server sent an error: {event}")
        else:
            continue
        heard.text += text
        heard.arrived += [now] * len(text)
    return heard


def _delays(words: Sequence[Word], heard: Heard) -> Iterator[float]:
    """Yield the delays of the words that the transcript contains, in its order."""
    found = list(re.finditer(r"\S+", heard.text))
    matcher = difflib.SequenceMatcher(
        None,
        [plain(word.text) for word in words],
        [plain(match[0]) for match in found],
        autojunk=False,
    )
    for first, start, size in matcher.get_matching_blocks():
        for n in range(size):
            match = found[start + n]
            yield max(heard.arrived[match.start() : match.end()]) - words[first + n].end


if __name__ == "__main__":
    main()
