"""Engines in the test's own process, and an event loop whose clock jumps over every wait."""

import asyncio
import selectors
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from galley.service.frames import Abort, FromEngine, Leaving, Ready, Step, Submit, ToEngine
from galley.types import EngineRequest, Output, Tokens
from galley.types.engine_stats import EngineStats
from galley.types.model_info import ModelInfo, TextInfo, TransferInfo
from tests.payloads import generated


def info(version: str) -> ModelInfo:
    """Return the description of a model; replicas with another ``version`` may not continue its texts."""
    text = TextInfo(vocab_size=1000, max_model_len=4096, kv_cache_tokens=4096)
    return ModelInfo(
        name="m", path="/m", family="toy", tasks=("generate",), executor=version, text=text
    )


def token_at(request: EngineRequest, position: int, version: str) -> int:
    """Return a token of the text that a version of the model writes: by seed and position alone."""
    payload = generated(request)
    seed = payload.sampling.seed or 0
    return hash((tuple(payload.prompt), seed, position, version)) % 997


class ToyEngine:
    """An engine that writes one token for each of its requests in a step; a link to itself."""

    def __init__(self, version: str, seats: int) -> None:
        self.version = version
        self.requests: dict[str, tuple[EngineRequest, list[int]]] = {}
        self.frames_sent = 0
        self.ended = False
        self._status = 0
        self._frames: asyncio.Queue[FromEngine | None] = asyncio.Queue()
        self.transfers: TransferInfo | None = None
        self.release = ""
        self._seats = seats

    pid = None

    def send(self, frame: ToEngine) -> None:
        self.frames_sent += 1
        if isinstance(frame, Submit):
            assert frame.request.id not in self.requests, "it has the request already"
            written = list(generated(frame.request).output)
            self.requests[frame.request.id] = (frame.request, written)
        elif isinstance(frame, Abort):
            for request_id in frame.request_ids:
                self.requests.pop(request_id, None)

    def step(self) -> None:
        outputs = []
        for request_id, (request, written) in list(self.requests.items()):
            token = token_at(request, len(written), self.version)
            written.append(token)
            ends = len(written) == generated(request).sampling.max_tokens
            if ends:
                del self.requests[request_id]
            outputs.append(
                Output(
                    request_id=request_id,
                    result=Tokens(tokens=[token]),
                    finish_reason="length" if ends else None,
                )
            )
        stats = EngineStats(running=len(self.requests))
        self._frames.put_nowait(Step(outputs, stats, self.frames_sent))

    async def frames(self) -> AsyncIterator[list[FromEngine]]:
        about = msgspec.structs.replace(info(self.version), transfers=self.transfers)
        yield [Ready(about, EngineStats(), self._seats, release=self.release)]
        while (frame := await self._frames.get()) is not None:
            yield [frame]

    def leave(self) -> None:
        """Say that it is about to end, as a replica elsewhere does when it is stopped."""
        self._frames.put_nowait(Leaving())

    def end(self, status: int) -> None:
        """End with what was written but not delivered, as a process does."""
        if not self.ended:
            self.ended, self._status = True, status
            self._frames.put_nowait(None)

    def kill(self) -> None:
        self.end(-9)

    async def close(self) -> int:
        self.end(0)
        return self._status


class Stillborn(ToyEngine):
    """An engine that is killed while it loads."""

    async def frames(self) -> AsyncIterator[list[FromEngine]]:
        self.kill()
        return
        yield


class _JumpingSelector(selectors.DefaultSelector):
    """Waits for nothing: time passes at once instead."""

    loop: "JumpingLoop"

    def select(self, timeout: float | None = None) -> Any:
        if timeout:
            self.loop.now += timeout
        return super().select(0)


class JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop in which waiting takes no time."""

    def __init__(self) -> None:
        self.now = 0.0
        selector = _JumpingSelector()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self.now
