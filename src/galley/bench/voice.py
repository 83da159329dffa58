"""How soon a conversation over ``/v1/realtime`` answers: callers who speak recordings and wait for audio.

Audio is sent at the pace of speech. A turn's time begins when the recording's last sample has been sent;
silence follows until the answer's first audio. Each recording is one turn: what the server takes for its
end before that is a cut-off.
"""

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from galley.errors import EngineError, RequestError

RATE: Final = 24_000
_BLOCK_SECONDS: Final = 0.02
_LISTENS: Final = 0.7
"""Seconds of an answer that a caller hears before interrupting it."""
_SILENCE: Final = bytes(2 * int(RATE * _BLOCK_SECONDS))

PARTS: Final = {
    "transcript": "transcript_ms",
    "endpoint": "endpoint_ms",
    "first words": "first_words_ms",
    "first audio made": "first_audio_ms",
}
"""Stage of an answer -> the field of the event :data:`_TIMING` with its time.

All times are from the end of speech, as the server found it: the parts overlap.
"""

_TIMING: Final = "response.timing"
_TRUNCATED: Final = "conversation.item.truncated"
_STOPPED: Final = "input_audio_buffer.speech_stopped"
_AUDIO: Final = "response.output_audio.delta"


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn.

    Attributes:
        recording: index of the recording.
        cut_offs: how often the server ended the turn before the recording's end.
        total: seconds from the end of speech to the first audio; None: the turn was cut off, and nothing
            answered its rest.
        parts: seconds from the end of speech until each of :data:`PARTS` was ready; None: unknown.
        silence: seconds of silence before the turn was to end, as the language model judged it; None: it
            was not judged.
        interruption: seconds from the beginning of speech until the answer before was stopped, if it was
            still being heard.
    """

    recording: int
    cut_offs: int
    total: float | None
    parts: tuple[float | None, ...]
    silence: float | None
    interruption: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """The behavior of every caller.

    Attributes:
        url: the server's, such as http://127.0.0.1:8000.
        model: name of the language model.
        key: API key; empty: none is sent.
        recordings: what is said, in turn: 16-bit mono at :data:`RATE`.
        turns: how many turns each caller has.
        detection: ``turn_detection`` of the session.
        interrupts: whether a turn begins during the previous answer.
        timeout: seconds to wait for an answer's audio.
        max_tokens: limit of an answer.
    """

    url: str
    model: str
    key: str
    recordings: Sequence[bytes]
    turns: int
    detection: dict[str, Any]
    interrupts: bool = False
    timeout: float = 60.0
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
        tasks = [group.create_task(_caller(call, number)) for number in range(callers)]
    return [turn for task in tasks for turn in task.result()]


async def _caller(call: Call, first: int) -> list[Turn]:
    async with _connected(call) as socket:
        session = {
            "type": "realtime",
            "max_output_tokens": call.max_tokens,
            "include": [_TIMING],
            "audio": {"input": {"turn_detection": call.detection}},
        }
        await socket.send(json.dumps({"type": "session.update", "session": session}))
        chosen = [(first + turn) % len(call.recordings) for turn in range(call.turns)]
        return [await _turn(call, recording, socket) for recording in chosen]


@asynccontextmanager
async def _connected(call: Call) -> AsyncIterator[Any]:
    from websockets.asyncio.client import connect
    from websockets.exceptions import ConnectionClosed, WebSocketException

    query = urlencode({"model": call.model})
    url = f"{call.url.replace('http', 'ws', 1)}/v1/realtime?{query}"
    headers = {"Authorization": f"Bearer {call.key}"} if call.key else {}
    try:
        socket = await connect(url, additional_headers=headers, max_size=2**24)
    except (OSError, WebSocketException) as error:
        raise RequestError(f"cannot connect to {url}: {error}") from error
    async with socket:
        try:
            yield socket
        except ConnectionClosed as error:
            raise EngineError(f"the server ended the conversation: {error}") from error


async def _turn(call: Call, recording: int, socket: Any) -> Turn:
    """Say a recording, wait for the first audio after its end, and then for the end of the response."""
    samples = call.recordings[recording]
    ended: asyncio.Future[float] = asyncio.get_running_loop().create_future()
    speaking = asyncio.create_task(_say(samples, socket, ended))
    turn = _TurnEvents(recording, ended, time.monotonic() + _lead(samples))
    try:
        async with asyncio.timeout(len(samples) / 2 / RATE + call.timeout):
            while not turn.take(json.loads(await socket.recv()), time.monotonic()):
                if turn.first_audio is not None:
                    speaking.cancel()
                if call.interrupts and turn.timed:
                    await asyncio.sleep(_LISTENS)
                    break
    except TimeoutError:
        if not turn.cut_offs:
            raise EngineError(
                f"no answer within {call.timeout:g} s; is there speech in the recording?"
            ) from None
    finally:
        speaking.cancel()
        await asyncio.gather(speaking, return_exceptions=True)
    return turn.turn()


class _TurnEvents:
    """The events of one turn."""

    def __init__(self, recording: int, ended: "asyncio.Future[float]", begins: float) -> None:
        """Begin a turn.

        Args:
            recording: its index.
            ended: when the recording has been sent.
            begins: when its first sound is sent.
        """
        self._recording, self._ended, self._begins = recording, ended, begins
        self._interruption: float | None = None
        self.cut_offs = 0
        self._parts: tuple[float | None, ...] = (None,) * len(PARTS)
        self._silence: float | None = None
        self.first_audio: float | None = None
        self.timed = False

    def take(self, event: dict[str, Any], now: float) -> bool:
        """Take an event; return whether the turn is over.

        Raises:
            EngineError: it is an error, or a response without audio.
        """
        kind = event["type"]
        if kind == "error":
            raise EngineError(f"the server answered: {event['error']['message']}")
        if kind == _TRUNCATED and self._interruption is None:
            self._interruption = max(0.0, now - self._begins)
        if not self._ended.done():
            self.cut_offs += kind == _STOPPED
            return False
        if kind == _AUDIO:
            self.first_audio = self.first_audio or now
        elif kind == _TIMING:
            self.timed = True
            self._parts = tuple(_seconds(event[name]) for name in PARTS.values())
            self._silence = _seconds(event["silence_ms"])
        elif kind == "response.done" and event["response"]["status"] != "cancelled":
            if event["response"]["status"] == "failed":
                error = event["response"]["status_details"]["error"]
                raise EngineError(f"a response failed: {error['message']}")
            if self.first_audio is None and not self.cut_offs:
                raise EngineError("a response has no audio; does the server have a voice?")
            return self.first_audio is not None
        return False

    def turn(self) -> Turn:
        """Return the turn, which is over."""
        total = None
        if self.first_audio is not None:
            total = max(0.0, self.first_audio - self._ended.result())
        parts, silence = self._parts, self._silence
        return Turn(self._recording, self.cut_offs, total, parts, silence, self._interruption)


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


def _lead(samples: bytes) -> float:
    """Return the seconds before a recording's first sound, 40 dB below its loudest."""
    import numpy as np

    loudness = np.abs(np.frombuffer(samples, "<i2").astype(np.int32))
    return int(np.argmax(loudness > loudness.max() / 100)) / RATE


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
