"""A live session driven through the engine process, as the server does."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from galley.errors import Unavailable
from galley.service.client import EngineClient
from galley.speech.audio import Samples
from galley.speech.features import SAMPLE_RATE
from galley.speech.live import LiveSession
from galley.speech.live_events import LiveEvent
from galley.speech.options import LiveOptions
from galley.speech.pcm import Coding, PcmStream
from galley.types import EngineRequest, Output

Tell = Callable[[Sequence[LiveEvent]], Awaitable[None]]


class LiveStream:
    """One stream, in one event loop. Speech detection and features run in a thread.

    Args:
        engine: runs the requests.
        session: is nobody else's.
        seen: told of everything that the engine says.
        tell: told of events, in order; the stream waits for it.
        patience: seconds that audio waits for an engine that does not come along.

    Attributes:
        seconds: of audio that came so far.
    """

    def __init__(
        self,
        engine: EngineClient,
        session: LiveSession,
        *,
        seen: Callable[[Output], None],
        tell: Tell,
        patience: float,
    ) -> None:
        self._engine = engine
        self._session = session
        self._seen = seen
        self._tell = tell
        self._patience = patience
        self._pcm = PcmStream("s16le", 24_000)
        self._turn = asyncio.Lock()
        """Of those who use the session."""
        self._moved = asyncio.Event()
        """Set when there may be something for the engine."""
        self._answered = asyncio.Event()
        """Set when the engine has said something."""
        self.seconds = 0.0

    async def configure(self, coding: Coding, rate: int, options: LiveOptions) -> None:
        """What comes, in which form, and what is wanted of it.

        Raises:
            RequestError: the model does not know the language.
        """
        async with self._turn:
            self._session.configure(options)
        if (self._pcm.coding, self._pcm.rate) != (coding, rate):
            await self._feed(self._pcm.flush())
            self._pcm = PcmStream(coding, rate)

    async def append(self, data: bytes) -> None:
        """More of the audio. Waits while the engine is behind.

        Raises:
            RequestError: it ends within a sample.
            Unavailable: the engine was behind for too long.
        """
        for block in self._pcm.feed(data):
            while not self._session.has_room:
                self._answered.clear()
                try:
                    async with asyncio.timeout(self._patience):
                        await self._answered.wait()
                except TimeoutError:
                    raise Unavailable(
                        f"transcription is behind and took no audio for {self._patience:g} s",
                        retry_after=self._patience,
                    ) from None
            await self._feed(block)

    async def commit(self) -> None:
        """End the turn. Raises RequestError if there is no audio for one."""
        await self._feed(self._pcm.flush())
        async with self._turn:
            self._session.commit()
            await self._tell(self._session.events())
        self._moved.set()

    async def clear(self) -> None:
        """Forget the turn that is not committed."""
        async with self._turn:
            self._pcm.flush()
            self._session.clear()
            await self._tell(self._session.events())

    async def settled(self) -> None:
        """Wait until all that was committed is transcribed."""
        while not self._session.idle:
            self._answered.clear()
            await self._answered.wait()

    async def run(self) -> None:
        """Keep the engine busy with the stream, until cancelled.

        Raises:
            EngineFailed, EngineNotReady: the engine will not come back.
        """
        while True:
            self._moved.clear()
            async with self._turn:
                request = await asyncio.to_thread(self._session.request)
                await self._tell(self._session.events())
            if request is None:
                await self._moved.wait()
                continue
            await self._ask(request)
            self._answered.set()

    async def _ask(self, request: EngineRequest) -> None:
        [stream] = await self._engine.submit_patiently([request])
        try:
            async for output in stream:
                self._seen(output)
                async with self._turn:
                    self._session.take(output)
                    await self._tell(self._session.events())
        finally:
            stream.cancel()

    async def _feed(self, block: Samples) -> None:
        self.seconds += len(block) / SAMPLE_RATE
        async with self._turn:
            await asyncio.to_thread(self._session.feed, block)
            await self._tell(self._session.events())
        self._moved.set()
