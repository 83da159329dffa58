"""The audit log: one line of JSON for each request, chained by hashes, never with its text or key.

Each line has the hash of the line before it and ends with its own, SHA-256 of everything before that field.
A line that is changed, removed or moved breaks the chain, which :func:`verify` finds. Lines missing at the
end, or a chain computed anew from some line on, show only against a head that was noted elsewhere.
"""

import fcntl
import hashlib
import json
import logging
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

import msgspec

from galley.errors import GalleyError, SettingsError

log = logging.getLogger("galley.server")

START: Final = "0" * 64
"""Hash before the first line."""

FIELDS: Final = (
    "id", "tenant", "model", "status", "redact", "redacted", "audio_seconds", "generated", "finish",
    "error",
)  # fmt: skip
"""Fields of a request's log record that are copied: none of them can contain text of a client's."""

_END: Final = re.compile(rb',"hash":"([0-9a-f]{64})"}\n\Z')
_FIRST: Final = b'{"line":1,'
"""Beginning of a log."""
_LONGEST: Final = 65_536
"""Longest line in bytes."""


class AuditError(GalleyError):
    """The audit log cannot be read, or its chain is broken."""


class Head(NamedTuple):
    """The last line of a log: how many lines there are, and its hash."""

    lines: int
    hash: str


class AuditLog:
    """Appends to an audit log. One process at a time may write to a file."""

    def __init__(self, path: Path) -> None:
        """Open a log, and create it if there is none.

        A last line without its end, which a killed process may leave, is cut off, and a line says so.

        Raises:
            SettingsError: the file cannot be written, or another process writes to it.
            AuditError: its last line is not one of an audit log.
        """
        self._path = path
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._file = os.fdopen(descriptor, "r+b", buffering=0)
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise SettingsError(f"audit_log: another process writes to {path}") from None
        except OSError as error:
            raise SettingsError(f"audit_log: cannot write {path}: {error.strerror}") from None
        self._failed = False
        self._head = Head(0, START)
        try:
            torn = self._resume()
        except BaseException:
            self.close()
            raise
        if torn:
            self.write({"event": "recovered", "bytes": torn})

    @property
    def usable(self) -> bool:
        """Whether the last line could be written; tries again if it could not."""
        if self._failed:
            self.write({"event": "resumed"})
        return not self._failed

    def request(self, method: str, path: str, fields: Mapping[str, Any]) -> None:
        """Write a request's line: method, template of the path, and the FIELDS of its log record."""
        known = {name: fields[name] for name in FIELDS if name in fields}
        self.write({"event": "request", "method": method, "path": path, **known})

    def write(self, fields: Mapping[str, Any]) -> None:
        """Append a line. If that fails, it is logged, and the log is not ``usable``."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        entry = {"line": self._head.lines + 1, "time": now, "previous": self._head.hash, **fields}
        body = json.dumps(entry, separators=(",", ":"), default=str).encode()[:-1]
        digest = hashlib.sha256(body).hexdigest()
        line = b'%s,"hash":"%s"}\n' % (body, digest.encode())
        try:
            end = self._file.seek(0, os.SEEK_END)
            written = self._file.write(line)
            if written != len(line):
                self._file.truncate(end)
                raise OSError(0, "no space left")
        except OSError as error:
            if not self._failed:
                log.error("the audit log %s cannot be written: %s", self._path, error.strerror)
            self._failed = True
            return
        self._failed = False
        self._head = Head(entry["line"], digest)

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._file.close()

    def _resume(self) -> int:
        """Read where the chain ends. Returns the bytes of an unfinished line that were cut off."""
        size = self._file.seek(0, os.SEEK_END)
        self._file.seek(max(0, size - 2 * _LONGEST))
        # Not to the end: a device such as /dev/full has none.
        tail = self._file.read(min(size, 2 * _LONGEST))
        whole = tail.rfind(b"\n") + 1
        torn = len(tail) - whole
        # Before anything is cut off: the setting may name another file by mistake.
        if whole:
            last = tail[tail.rfind(b"\n", 0, whole - 1) + 1 : whole]
            entry, digest = _checked(last, str(self._path))
            self._head = Head(entry.line, digest)
        elif tail[: len(_FIRST)] != _FIRST[: len(tail)]:
            raise AuditError(f"{self._path} is not an audit log")
        if torn:
            self._file.truncate(size - torn)
        return torn


class _Line(msgspec.Struct):
    """The fields of a line that :meth:`AuditLog.write` adds, but for its hash."""

    line: int
    time: str
    previous: str


def _checked(line: bytes, where: str) -> tuple[_Line, str]:
    """Return a line and its hash. Raises AuditError if it is not what was written."""
    end = _END.search(line)
    if end is None or hashlib.sha256(line[: end.start()]).hexdigest() != end[1].decode():
        raise AuditError(f"{where} was changed: its hash does not match")
    try:
        return msgspec.json.decode(line, type=_Line), end[1].decode()
    except (msgspec.MsgspecError, RecursionError) as error:
        raise AuditError(f"{where} was changed: it is not a line of an audit log") from error


@dataclass
class Verified:
    """A log whose chain is whole: its head, and the times of its first and last lines."""

    head: Head
    first: str = ""
    last: str = ""


def verify(path: Path, contains: str | None = None) -> Verified:
    """Check every line of a log and the chain between them.

    Args:
        path: the log.
        contains: hash that some line must have; None: no check.

    Raises:
        AuditError: the file cannot be read, a line was changed, removed, added or moved, or no line has the
            hash.
    """
    found = Verified(Head(0, START))
    missing = contains is not None
    try:
        with path.open("rb") as file:
            for number, line in enumerate(_lines(file, path), start=1):
                where = f"line {number} of {path}"
                entry, digest = _checked(line, where)
                if entry.line != number or entry.previous != found.head.hash:
                    raise AuditError(
                        f"{where} does not follow the line before it: lines are missing or moved"
                    )
                found.first = found.first or entry.time
                found.head, found.last = Head(number, digest), entry.time
                missing = missing and digest != contains
    except OSError as error:
        raise AuditError(f"cannot read {path}: {error.strerror}") from None
    if missing:
        raise AuditError(f"no line of {path} has the hash {contains}")
    return found


def _lines(file: BinaryIO, path: Path) -> Iterator[bytes]:
    while line := file.readline(_LONGEST):
        if not line.endswith(b"\n"):
            raise AuditError(f"the last line of {path} is not complete")
        yield line
