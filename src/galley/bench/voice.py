"""How soon a conversation over ``/v1/realtime`` answers: callers who speak a recording and wait for audio.

Audio is sent at the pace of speech. A turn's time begins when the recording's last sample has been sent;
silence follows until the answer's first audio.
"""

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from galley.errors import EngineError, RequestError

RATE: Final = 24_000
_BLOCK_SECONDS: Final = 0.02
_SILENCE: Final = bytes(2 * int(RATE * _BLOCK_SECONDS))

PARTS: Final = {
    "endpoint": "input_audio_buffer.speech_stopped",
    "transcript": "conversation.item.input_audio_transcription.completed",
    "first words": "response.output_audio_transcript.delta",
    "first audio": "response.output_audio.delta",
}
"""Part of a turn -> the event that ends it, in order; each begins with the end of the one before."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn: seconds of each of :data:`PARTS`, in order; they add up to the time to the first audio."""

    parts: tuple[float, ...]

    @property
    def total(self) -> float:
        """The seconds from the end of speech to the first audio."""
        return sum(self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What every caller does.

    Attributes:
        url: the server's, such as http://127.0.0.1:8000.
        model: name of the language model.
        key: API key; empty: none is sent.
        samples: the recording: 16-bit mono at :data:`RATE`.
        turns: how often it is said.
        patience: seconds to wait for an answer's audio.
        max_tokens: limit of an answer.
    """

    url: str
    model: str
    key: str
    samples: bytes
    turns: int
    patience: float = 60.0
    max_tokens: int = 60


def read_recording(path: Path) -> bytes:
    """Return a recording's samples. Raises RequestError if it cannot be read."""
    import numpy as np

    from galley.speech.audio import Recording

    samples = np.concatenate(list(Recording(path, sample_rate=RATE)))
    if not len(samples):
        raise RequestError(f"{path} has no audio")
    return np.round(samples.clip(-1, 1) * 32_767).astype("<i2").tobytes()


async def converse(call: Call, callers: int) -> list[Turn]:
    """Have some callers speak at the same time, and return all of their turns.

    Raises:
        EngineError: an answer did not come, or was an error.
        RequestError: the server cannot be reached.
    """
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_caller(call)) for _ in range(callers)]
    return [turn for task in tasks for turn in task.result()]


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value that a share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


async def _caller(call: Call) -> list[Turn]:
    async with _connected(call) as socket:
        session = {"type": "realtime", "max_output_tokens": call.max_tokens}
        await socket.send(json.dumps({"type": "session.update", "session": session}))
        return [await _turn(call, socket) for _ in range(call.turns)]


@asynccontextmanager
async def _connected(call: Call) -> AsyncIterator[Any]:
    from websockets.asyncio.client import connect
    from websockets.exceptions import WebSocketException

    url = f"{call.url.replace('http', 'ws', 1)}/v1/realtime?model={call.model}"
    headers = {"Authorization": f"Bearer {call.key}"} if call.key else {}
    try:
        socket = await connect(url, additional_headers=headers, max_size=2**24)
    except (OSError, WebSocketException) as error:
        raise RequestError(f"cannot connect to {url}: {error}") from error
    async with socket:
        yield socket


async def _turn(call: Call, socket: Any) -> Turn:
    """Say the recording, wait for the first audio, and then for the end of the response."""
    ended: asyncio.Future[float] = asyncio.get_running_loop().create_future()
    speaking = asyncio.create_task(_say(call.samples, socket, ended))
    seen: dict[str, float] = {}
    try:
        async with asyncio.timeout(len(call.samples) / 2 / RATE + call.patience):
            while "response.done" not in seen:
                event = json.loads(await socket.recv())
                kind = event["type"]
                if kind == "error":
                    raise EngineError(f"the server answered: {event['error']['message']}")
                if kind == "response.created" or kind in PARTS.values() or kind == "response.done":
                    # A pause within the recording ends a turn early: the last one counts.
                    again = kind in (PARTS["endpoint"], PARTS["transcript"])
                    seen[kind] = time.monotonic() if again else seen.get(kind, time.monotonic())
                if kind == "response.done" and PARTS["first audio"] not in seen:
                    if event["response"]["status"] != "cancelled":
                        raise EngineError("a response has no audio; does the server have a voice?")
                    seen = {}
                if kind == PARTS["first audio"]:
                    speaking.cancel()
    except TimeoutError:
        raise EngineError(
            f"no answer within {call.patience:g} s; is there speech in the recording?"
        ) from None
    finally:
        speaking.cancel()
        await asyncio.gather(speaking, return_exceptions=True)
    if not ended.done():
        raise EngineError(
            "the server answered before the recording ended: it has pauses; give a shorter one"
        )
    times = [ended.result(), *(seen.get(kind, 0.0) for kind in PARTS.values())]
    # Each is at least as late as the one before: speech may be found to end before it does.
    for index in range(1, len(times)):
        times[index] = max(times[index], times[index - 1])
    return Turn(tuple(late - early for early, late in pairwise(times)))


async def _say(samples: bytes, socket: Any, ended: "asyncio.Future[float]") -> None:
    """Send the recording at the pace of speech, and then silence."""
    began, sent = time.monotonic(), 0
    while True:
        block = samples[sent : sent + len(_SILENCE)] or _SILENCE
        sent += len(_SILENCE)
        audio = base64.b64encode(block).decode()
        await socket.send(json.dumps({"type": "input_audio_buffer.append", "audio": audio}))
        if sent >= len(samples) and not ended.done():
            ended.set_result(time.monotonic())
        due = began + sent / 2 / RATE
        await asyncio.sleep(max(0.0, due - time.monotonic()))
