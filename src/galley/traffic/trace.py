"""The lines of a trace, in Mooncake's form, and the turns that they describe."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from galley.errors import SettingsError

BLOCK_TOKENS: Final = 64
"""Tokens of a block in Galley's records."""

_MOONCAKE_BLOCK: Final = 512
_MOST_TOKENS: Final = 10**7

Unit = Literal["auto", "ms", "s"]


class TraceLine(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One request; the first four fields are Mooncake's, ``session_id`` and ``delay`` AIPerf's.

    Attributes:
        timestamp: arrival, in milliseconds (in Galley's records since 1970); None: ``delay`` after the turn
            before.
        input_length, output_length: tokens of the prompt and of the text.
        hash_ids: one number for each block of the prompt, the last of which may be partial. Equal numbers
            are equal blocks after equal blocks. A later turn of AIPerf's sessions has those of its new
            blocks alone.
        block_size: tokens of a block.
        session_id: turns with the same one follow each other.
        delay: milliseconds from the end of the turn before.
        tenant: pseudonym of the tenant.
        model, endpoint: where the request went.
        n: choices.
        sampling: parameters that were set, other than texts.
        outcome: finish reasons, or "cancelled" or "error".
        cached_tokens: tokens of the prompt from the prefix cache.
        ttft_ms, duration_ms: from arrival to the first and the last token.
        texts: tokens of the prompt and of the choices, encrypted (``texts.py``); empty: not recorded.
    """

    timestamp: float | None = None
    input_length: int
    output_length: int
    hash_ids: list[int] | None = None
    block_size: int = _MOONCAKE_BLOCK
    session_id: str | None = None
    delay: float | None = None
    tenant: str = ""
    model: str = ""
    endpoint: str = ""
    n: int = 1
    sampling: dict[str, Any] = {}
    outcome: str = ""
    cached_tokens: int | None = None
    ttft_ms: float | None = None
    duration_ms: float | None = None
    texts: str = ""

    @property
    def name(self) -> str:
        """Identifies the line; its texts are bound to it."""
        return f"{self.timestamp!r} ms, {self.input_length} and {self.output_length} tokens"


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of a replay.

    Attributes:
        due: seconds since the trace began.
        after: index of the turn that has to end before; None: none.
        pause: seconds between that turn's end and this one.
        line: the recorded request; its ``hash_ids`` are those of the whole prompt.
    """

    due: float
    after: int | None
    pause: float
    line: TraceLine


_decoder: Final = msgspec.json.Decoder(TraceLine)


def read_trace(place: Path, unit: Unit = "auto") -> list[Turn]:
    """Read a file of lines, or all files of a record's folder.

    Args:
        place: a file, or the folder of ``--record``.
        unit: of ``timestamp`` and ``delay``; auto: milliseconds for lines with ``hash_ids`` or
            ``session_id``, and else seconds, as GuideLLM has them.

    Returns:
        The turns in the order in which they are due; the first is due at 0.

    Raises:
        SettingsError: a file cannot be read, or a line is not one of a trace.
    """
    files = sorted(place.glob("trace-*.jsonl")) if place.is_dir() else [place]
    lines = [line for file in files for line in _lines(file)]
    if not lines:
        raise SettingsError(
            f"{place} has no line of a trace: give the folder of galley serve --record, or a JSONL file"
        )
    if unit == "auto":
        known = any(line.hash_ids is not None or line.session_id for line in lines)
        unit = "ms" if known else "s"
    return list(_turns(lines, 1e-3 if unit == "ms" else 1.0))


def as_mooncake(turns: Iterable[Turn], *, sessions: bool) -> Iterator[bytes]:
    """Yield turns as lines that other tools read: Mooncake's fields alone, or with AIPerf's ``session_id``.

    Whole prompts are independent requests to Mooncake's readers, so ``sessions`` is for readers that do
    not add earlier turns to a prompt.
    """
    for turn in turns:
        line = turn.line
        fields: dict[str, Any] = {
            "timestamp": round(1000 * turn.due),
            "input_length": line.input_length,
            "output_length": max(1, line.output_length),
            "hash_ids": line.hash_ids or [],
        }
        if sessions and line.session_id is not None:
            fields["session_id"] = line.session_id
        yield msgspec.json.encode(fields) + b"\n"


def _lines(file: Path) -> Iterator[TraceLine]:
    try:
        with file.open("rb") as opened:
            for number, text in enumerate(opened, 1):
                if text.strip():
                    yield _line(text, f"{file}, line {number}")
    except OSError as error:
        raise SettingsError(f"{file}: {error.strerror}") from error


def _line(text: bytes, place: str) -> TraceLine:
    try:
        line = _decoder.decode(text)
    except msgspec.DecodeError as error:
        raise SettingsError(f"{place} is not one of a trace: {error}") from error
    lengths = (line.input_length, line.output_length + 1, line.block_size)
    if not all(1 <= length <= _MOST_TOKENS for length in lengths):
        raise SettingsError(
            f"{place}: input_length and block_size must be 1 to {_MOST_TOKENS}, output_length 0 or more"
        )
    if line.timestamp is None and (line.session_id is None or line.delay is None):
        raise SettingsError(
            f"{place}: a line needs a timestamp, or a delay after the turn before of its session_id"
        )
    return line


def _turns(lines: Sequence[TraceLine], second: float) -> Iterator[Turn]:
    """Yield the turns in order; ``second``: seconds of the unit of times."""
    latest: dict[str, TraceLine] = {}
    timed: list[tuple[float, float, TraceLine]] = []
    for line in lines:
        before = latest.get(line.session_id or "")
        if line.timestamp is None:
            if before is None:
                raise SettingsError(f"session {line.session_id}: its first turn has no timestamp")
            # Such a turn has its new blocks alone, and is sent as soon as its predecessor has ended.
            line = msgspec.structs.replace(
                line,
                hash_ids=[*(before.hash_ids or ()), *(line.hash_ids or ())],
                input_length=before.input_length + line.input_length,
                timestamp=before.timestamp,
            )
        if line.session_id is not None:
            latest[line.session_id] = line
        assert line.timestamp is not None
        timed.append((line.timestamp * second, (line.delay or 0.0) * second, line))
    timed.sort(key=lambda one: one[0])
    first = timed[0][0]
    last: dict[str, int] = {}
    for index, (due, pause, line) in enumerate(timed):
        after = None if line.session_id is None else last.get(line.session_id)
        if line.session_id is not None:
            last[line.session_id] = index
        yield Turn(due - first, after, pause if after is not None else 0.0, line)
