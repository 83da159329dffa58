"""A server with a language model, used by the neighboring stream, and a speech model; and its inputs."""

import struct
from pathlib import Path
from typing import Any, Final

import httpx

from tests.server.serving import Server

TRANSCRIPTIONS: Final = "/v1/audio/transcriptions"
MOST_BYTES: Final = 4_000_000
MOST_SECONDS: Final = 60


def media_server(model: Path, hearing: Path, folder: Path, **settings: Any) -> Server:
    """Return a server of both models with small limits, to be entered; its log is in ``folder``."""
    models = [f"chat={model}", "chat.kv_cache_tokens=16384", f"speech={hearing}"]
    limits = {"max_audio_bytes": MOST_BYTES, "max_audio_seconds": MOST_SECONDS}
    return Server(models, folder / "log", threads=1, **(limits | settings))


def transcribe(
    http: httpx.Client, data: bytes, name: str = "call.wav", **fields: str
) -> httpx.Response:
    """Return the server's answer to a recording."""
    return http.post(
        TRANSCRIPTIONS, files={"file": (name, data)}, data={"model": "speech"} | fields
    )


def wav(
    samples: bytes,
    *,
    tag: int = 1,
    bits: int = 16,
    rate: int = 16_000,
    announced: int | None = None,
    extension: bytes = b"",
) -> bytes:
    """Return a mono WAV file; its header need not match its content."""
    form = struct.pack("<HHIIHH", tag, 1, rate, bits // 8 * rate % 2**32, bits // 8, bits)
    form += extension
    size = len(samples) if announced is None else announced
    return (
        b"RIFF" + struct.pack("<I", 20 + len(form) + len(samples)) + b"WAVE"
        b"fmt " + struct.pack("<I", len(form)) + form
        + b"data" + struct.pack("<I", size) + samples
    )  # fmt: skip
