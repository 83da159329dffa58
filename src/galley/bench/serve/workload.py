"""Request bodies, built before they are due, so that building them delays no request."""

import json
import mimetypes
import random
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import numpy as np

from galley.bench.serve.lengths import Lengths
from galley.bench.serve.words import Words
from galley.errors import SettingsError

Endpoint = Literal["chat", "completions", "embeddings", "transcriptions"]

PATHS: Final[Mapping[Endpoint, str]] = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "embeddings": "/v1/embeddings",
    "transcriptions": "/v1/audio/transcriptions",
}
STREAMED: Final = ("chat", "completions")


class Line(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A line of a JSONL file of prompts, or of a trace.

    Attributes:
        timestamp: seconds; required in a trace, where it may not decrease.
        prompt, messages: the prompt; without either, a synthetic prompt.
        prompt_tokens, output_tokens: lengths in place of the workload's.
    """

    timestamp: float | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request that is ready to be sent."""

    path: str
    content: bytes
    content_type: str
    streamed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The requests that are sent to the server.

    Attributes:
        endpoint: which route.
        prompt_tokens: lengths of synthetic prompts.
        output_tokens: lengths of answers.
        shared_prefix: share of each synthetic prompt, from its beginning, that all of them have in common.
        ignore_eos: asks the server to continue until the answer has its length.
        body: further fields of each request, such as ``{"temperature": 0}``.
        lines: prompts to take in order, again from the first when they are used up.
        recordings: audio files to take in order; for transcriptions.
        seed: of lengths and words.
    """

    endpoint: Endpoint = "chat"
    prompt_tokens: Lengths
    output_tokens: Lengths
    shared_prefix: float = 0.0
    ignore_eos: bool = True
    body: Mapping[str, Any] = field(default_factory=dict)
    lines: Sequence[Line] = ()
    recordings: Sequence[Path] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        if (self.endpoint == "transcriptions") != bool(self.recordings):
            raise SettingsError(
                "--data with recordings and --endpoint transcriptions need each other"
            )

    def requests(self, model: str, words: Words, *, run: int) -> Iterator[Prepared]:
        """Yield requests endlessly.

        Args:
            model: the served name.
            words: words of synthetic prompts.
            run: number of the run; each run has different prompts, so that none finds an earlier run's
                in the server's prefix cache.

        Raises:
            SettingsError: a recording cannot be read.
        """
        if self.endpoint == "transcriptions":
            yield from self._transcriptions(model)
        lengths = np.random.default_rng([self.seed, run])
        own = random.Random(f"{self.seed} {run}")
        index = 0
        while True:
            line = self.lines[index % len(self.lines)] if self.lines else Line()
            index += 1
            # Both are drawn for every line, so that a line with its own length does not change the others.
            drawn = self.prompt_tokens.draw(lengths), self.output_tokens.draw(lengths)
            text = line.prompt
            if text is None and line.messages is None:
                text = words.text(line.prompt_tokens or drawn[0], own, self.shared_prefix)
            yield self._request(model, text, line.messages, line.output_tokens or drawn[1])

    def _request(
        self, model: str, text: str | None, messages: list[dict[str, Any]] | None, output: int
    ) -> Prepared:
        body: dict[str, Any] = {"model": model}
        if self.endpoint == "chat":
            body["messages"] = messages or [{"role": "user", "content": text}]
        elif text is None:
            raise SettingsError(f"a line of --data has messages, but {self.endpoint} need a prompt")
        else:
            body["input" if self.endpoint == "embeddings" else "prompt"] = text
        streamed = self.endpoint in STREAMED
        if streamed:
            body |= {"max_tokens": output, "temperature": 0, "stream": True}
            body["stream_options"] = {"include_usage": True}
            if self.ignore_eos:
                body["ignore_eos"] = True
        content = json.dumps(body | dict(self.body)).encode()
        return Prepared(PATHS[self.endpoint], content, "application/json", streamed)

    def _transcriptions(self, model: str) -> Iterator[Prepared]:
        fields = {"model": model, "response_format": "verbose_json", **self.body}
        made = [_form(fields, file) for file in self.recordings]
        while True:
            yield from made


def _form(fields: Mapping[str, Any], file: Path) -> Prepared:
    """Encode a multipart form (RFC 7578)."""
    boundary = uuid.uuid4().hex
    kind = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
    parts = [
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in fields.items()
    ]
    parts.append(
        f'--{boundary}\r\nContent-Disposition: form-data; name="file"; '
        f'filename="recording{file.suffix}"\r\nContent-Type: {kind}\r\n\r\n'
    )
    try:
        audio = file.read_bytes()
    except OSError as error:
        raise SettingsError(f"--data {file}: {error.strerror}") from error
    content = "".join(parts).encode() + audio + f"\r\n--{boundary}--\r\n".encode()
    return Prepared(
        PATHS["transcriptions"], content, f"multipart/form-data; boundary={boundary}", False
    )


def read_lines(file: Path, *, trace: bool = False) -> list[Line]:
    """Read the lines of a JSONL file; for a trace, with times that begin at 0.

    Raises:
        SettingsError: the file cannot be read, or a line does not have the form of :class:`Line`.
    """
    option = f"--{'trace' if trace else 'data'} {file}"
    lines: list[Line] = []
    try:
        for number, text in enumerate(file.read_bytes().splitlines(), 1):
            if text.strip():
                lines.append(_line(text, f"{option}, line {number}", trace, lines))
    except OSError as error:
        raise SettingsError(f"{option}: {error.strerror}") from error
    if not lines:
        raise SettingsError(f"{option}: the file is empty")
    first = lines[0].timestamp or 0.0
    if trace:
        lines = [msgspec.structs.replace(x, timestamp=(x.timestamp or 0.0) - first) for x in lines]
    return lines


def _line(text: bytes, place: str, trace: bool, before: Sequence[Line]) -> Line:
    try:
        line = msgspec.json.decode(text, type=Line)
    except msgspec.DecodeError as error:
        raise SettingsError(f"{place}: {error}") from error
    if any(n is not None and n < 1 for n in (line.prompt_tokens, line.output_tokens)):
        raise SettingsError(f"{place}: lengths must be at least 1")
    if trace and line.timestamp is None:
        raise SettingsError(f"{place}: a trace needs a timestamp (seconds) in every line")
    if trace and before and (line.timestamp or 0.0) < (before[-1].timestamp or 0.0):
        raise SettingsError(f"{place}: timestamp is less than that of the previous line")
    return line


_AUDIO: Final = (".wav", ".flac", ".mp3", ".m4a", ".ogg", ".opus", ".webm", ".mp4")


def find_recordings(place: Path) -> list[Path]:
    """Return an audio file, or all in a folder, ordered by name.

    Raises:
        SettingsError: there is none.
    """
    files = [place] if place.is_file() else sorted(place.glob("*"))
    found = [file for file in files if file.suffix.lower() in _AUDIO]
    if not found:
        raise SettingsError(f"--data {place}: no recordings found ({' '.join(_AUDIO)})")
    return found
