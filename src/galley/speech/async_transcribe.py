"""Transcribing through the engine process, as the server does."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence

from galley.service.client import EngineClient, OutputStream
from galley.speech.chunk_source import ChunkSource
from galley.speech.results import Segment
from galley.speech.session import Session
from galley.types import EngineRequest, Output


async def transcribe_async(
    engine: EngineClient,
    session: Session,
    chunks: ChunkSource,
    seen: Callable[[Output], None],
) -> AsyncGenerator[Segment, None]:
    """A recording's segments, in order, as they become certain. Decoding and features run in a thread.

    Args:
        engine: runs the requests; those of a generator that is closed early are aborted.
        session, chunks: of the recording, which is closed at the end.
        seen: told of everything that the engine says.

    Raises:
        QueueFull: there is no room for the first chunk; later ones wait.
        AudioError: the recording cannot be decoded any further.
        EngineError: the engine gave a chunk up.
    """
    outputs: asyncio.Queue[Output] = asyncio.Queue()
    readers: dict[asyncio.Task[None], OutputStream] = {}

    async def read(stream: OutputStream) -> None:
        async for output in stream:
            outputs.put_nowait(output)

    async def submit(requests: Sequence[EngineRequest]) -> None:
        begun = bool(readers)
        streams = await engine.submit_patiently(requests) if begun else engine.submit_all(requests)
        for stream in streams:
            readers[asyncio.create_task(read(stream))] = stream

    try:
        await asyncio.to_thread(chunks.fill, session)
        await submit(session.requests())
        while not session.idle:
            output = await outputs.get()
            seen(output)
            if output.alignment is None:
                session.take(output)
            else:
                await asyncio.to_thread(session.take, output)
            segments = session.segments()
            if session.has_room:
                await asyncio.to_thread(chunks.fill, session)
            await submit(session.requests())
            for segment in segments:
                yield segment
        for segment in session.segments():
            yield segment
    finally:
        for reader, stream in readers.items():
            stream.cancel()
            reader.cancel()
        # A thread may be reading still; it ends within a block.
        await asyncio.shield(asyncio.to_thread(chunks.close))
