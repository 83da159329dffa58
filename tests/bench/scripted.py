"""A server that answers with scripts of bytes and pauses, so that a client's results are known."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence

Script = Sequence[bytes | float]
"""Bytes to send, and seconds to wait."""

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def part(data: bytes) -> bytes:
    """Return a chunk of a chunked body; an empty one is its end."""
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def event(**fields: object) -> bytes:
    """Return a server-sent event as a chunk."""
    return part(b"data: " + json.dumps(fields).encode() + b"\n\n")


def piece(text: str) -> bytes:
    """Return an event of a streamed chat with some text."""
    return event(choices=[{"index": 0, "delta": {"content": text}}], usage=None)


DONE = part(b"data: [DONE]\n\n") + part(b"")


@contextlib.asynccontextmanager
async def scripted(*scripts: Script) -> AsyncIterator[str]:
    """Serve the scripts, one per request and the last one for all others; yield the URL."""
    left = list(scripts)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = head.lower().split(b"content-length:")[1].split(b"\r\n")[0]
                await reader.readexactly(int(length))
                script = left.pop(0) if len(left) > 1 else left[0]
                for step in script:
                    if isinstance(step, bytes):
                        writer.write(step)
                    else:
                        await asyncio.sleep(step)
                if not script or not isinstance(script[-1], bytes):
                    break
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
