"""Transcribes a live stream through the engine process, as the server does."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from galley.errors import Unavailable
from galley.service.streams import OpenCall
from galley.speech.audio import Samples
from galley.speech.features import SAMPLE_RATE
from galley.speech.live import LiveSession
from galley.speech.live_events import LiveEvent
from galley.speech.options import LiveOptions
from galley.speech.pcm import Coding, PcmStream
from galley.types import EngineRequest

OnEvents = Callable[[Sequence[LiveEvent]], Awaitable[None]]


class LiveStream:
    """Drives one :class:`LiveSession` in one event loop. Speech detection and features run in a thread.

    Args:
        engine: runs the session's requests.
        session: used by this stream alone.
        on_events: awaited with new events, in order.
        timeout: how many seconds :meth:`append` waits for an engine that is behind.

    Attributes:
        seconds: seconds of audio received so far.
        received: when the last of it was received, on the monotonic clock.
    """

    def __init__(
        self,
        engine: OpenCall,
        session: LiveSession,
        *,
        on_events: OnEvents,
        timeout: float,
    ) -> None:
        self._engine = engine
        self._session = session
        self._on_events = on_events
        self._timeout = timeout
        self._pcm = PcmStream("s16le", 24_000)
        self._session_lock = asyncio.Lock()
        self._changed = asyncio.Event()
        """Set when the session may have a new request."""
        self._answered = asyncio.Event()
        """Set when the engine has answered a request."""
        self.seconds = 0.0
        self.received = time.monotonic()

    async def configure(self, coding: Coding, rate: int, options: LiveOptions) -> None:
        """Replace the options and the encoding of the audio that follows.

        Raises:
            RequestError: the model does not support the language.
        """
        async with self._session_lock:
            self._session.configure(options)
        if (self._pcm.coding, self._pcm.rate) != (coding, rate):
            await self._feed(self._pcm.flush())
            self._pcm = PcmStream(coding, rate)

    async def append(self, data: bytes) -> None:
        """Feed the stream's next audio. Waits while the engine is behind.

        Raises:
            Unavailable: the engine was behind for ``timeout`` seconds.
        """
        for block in self._pcm.feed(data):
            while not self._session.has_room:
                self._answered.clear()
                try:
                    async with asyncio.timeout(self._timeout):
                        await self._answered.wait()
                except TimeoutError:
                    raise Unavailable(
                        f"transcription is behind and has accepted no audio for {self._timeout:g} s",
                        retry_after=self._timeout,
                    ) from None
            await self._feed(block)

    async def commit(self) -> None:
        """End the turn. Raises RequestError if the turn has no audio."""
        await self._feed(self._pcm.flush())
        async with self._session_lock:
            self._session.commit()
            await self._on_events(self._session.events())
        self._changed.set()

    async def end_after(self, turn: int, silence_ms: int) -> None:
        """End a turn that has paused; see :meth:`LiveSession.end_after`."""
        async with self._session_lock:
            self._session.end_after(turn, silence_ms)
            await self._on_events(self._session.events())
        self._changed.set()

    @property
    def turn(self) -> int:
        """The number of the turn that is not committed yet."""
        return self._session.turn

    @property
    def has_turn(self) -> bool:
        """Whether that turn has enough audio for :meth:`commit`."""
        return self._session.has_turn

    async def clear(self) -> None:
        """Discard the turn that is not committed yet."""
        async with self._session_lock:
            self._pcm.flush()
            self._session.clear()
            await self._on_events(self._session.events())

    async def settled(self) -> None:
        """Wait until all committed turns are transcribed."""
        while not self._session.idle:
            self._answered.clear()
            await self._answered.wait()

    async def run(self) -> None:
        """Submit the session's requests to the engine, one after another, until cancelled.

        Raises:
            EngineFailed, EngineNotReady: the engine will not recover.
        """
        while True:
            self._changed.clear()
            async with self._session_lock:
                request = await asyncio.to_thread(self._session.request)
                await self._on_events(self._session.events())
            if request is None:
                await self._changed.wait()
                continue
            await self._run_request(request)
            self._answered.set()

    async def _run_request(self, request: EngineRequest) -> None:
        [stream] = await self._engine.submit_when_room([request])
        try:
            async for output in stream:
                async with self._session_lock:
                    self._session.take(output)
                    await self._on_events(self._session.events())
        finally:
            stream.cancel()

    async def _feed(self, block: Samples) -> None:
        self.seconds += len(block) / SAMPLE_RATE
        self.received = time.monotonic()
        async with self._session_lock:
            await asyncio.to_thread(self._session.feed, block)
            await self._on_events(self._session.events())
        self._changed.set()
