"""Transcribes a recording through the engine process, as the server does."""

import asyncio
from collections.abc import AsyncGenerator, Sequence

from galley.errors import GalleyError
from galley.service.streams import OpenCall, Outputs
from galley.speech.chunk_source import ChunkSource
from galley.speech.results import Segment
from galley.speech.session import Session
from galley.types import EngineRequest, Output
from galley.types.audio import Alignment


async def transcribe_async(
    engine: OpenCall,
    session: Session,
    chunks: ChunkSource,
    *,
    patient: bool = False,
) -> AsyncGenerator[Segment, None]:
    """Transcribe a recording and yield its segments, in order, as they become final.

    The audio is decoded and its features are computed in a thread. Closing the generator early aborts its
    requests.

    Args:
        engine: runs the session's requests.
        session: the recording's session.
        chunks: the recording's chunks; closed when the generator ends.
        patient: the first request waits for room in the engine's queue, too.

    Raises:
        QueueFull: the engine's queue has no room for the first request; later requests wait.
        AudioError: the recording cannot be decoded any further.
        EngineError: the engine aborted a request.
        DeadlineExceeded: the caller's deadline has passed.
    """
    outputs: asyncio.Queue[Output | GalleyError] = asyncio.Queue()
    readers: dict[asyncio.Task[None], Outputs] = {}
    begun = patient

    async def submit(requests: Sequence[EngineRequest]) -> None:
        nonlocal begun
        streams = await engine.submit_when_room(requests) if begun else engine.submit_all(requests)
        begun = begun or bool(streams)
        for stream in streams:
            reader = asyncio.create_task(_read(stream, outputs))
            readers[reader] = stream
            # A stream holds its request, which holds a chunk's features, about a megabyte.
            reader.add_done_callback(lambda done: readers.pop(done, None))

    try:
        await asyncio.to_thread(chunks.fill, session)
        await submit(session.requests())
        while not session.idle:
            output = await _next(outputs)
            if isinstance(output.result, Alignment):
                await asyncio.to_thread(session.take, output)
            else:
                session.take(output)
            segments = session.segments()
            if session.has_room:
                await asyncio.to_thread(chunks.fill, session)
            await submit(session.requests())
            for segment in segments:
                yield segment
        for segment in session.segments():
            yield segment
    finally:
        for reader, stream in list(readers.items()):
            stream.cancel()
            reader.cancel()
        # A thread can still be reading the recording; it stops after its current block.
        await asyncio.shield(asyncio.to_thread(chunks.close))


async def _read(stream: Outputs, outputs: "asyncio.Queue[Output | GalleyError]") -> None:
    try:
        async for output in stream:
            outputs.put_nowait(output)
    except GalleyError as error:
        outputs.put_nowait(error)


async def _next(outputs: "asyncio.Queue[Output | GalleyError]") -> Output:
    output = await outputs.get()
    if isinstance(output, GalleyError):
        raise output
    return output
