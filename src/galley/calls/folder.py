"""The folder of results: one subfolder for each recording, complete or absent.

A call's results are written to a hidden folder and moved into place at once, so a process that is killed
leaves no part of them, and a recording with results is never processed again::

    results/
      monday/call.wav/        named as the recording
        call.json             id, tenant, time; stays when the rest is deleted
        transcript.json  transcript.txt  quality.json  redacted.wav  ticket.json
      _failed/monday/bad.wav.json   why a call was given up
      .partial/               of a call that is being processed
"""

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec

from galley.errors import RequestError, SettingsError
from galley.files import complete_or_absent, to_disk

CALL_FILE: Final = "call.json"
FILES: Final = {
    "audio": ("redacted.wav",),
    "transcript": ("transcript.json", "transcript.txt"),
    "quality": ("quality.json",),
    "ticket": ("ticket.json",),
}
"""Kind of data -> its files."""
_FAILED: Final = "_failed"
_PARTIAL: Final = ".partial"
_LOCK: Final = ".lock"


class CallRecord(msgspec.Struct, kw_only=True, frozen=True):
    """``call.json``: facts about a call, without anything that was said.

    Attributes:
        id: the call's folder, relative to the folder of results.
        tenant: whose call it is.
        recording: path of the recording.
        created: when the results were complete, in ISO 8601 with a time zone.
        duration: length of the recording, in seconds.
        speakers: how many there are.
        redact: kinds of personal data that were looked for.
        redacted: kind -> number of passages that were removed.
    """

    id: str
    tenant: str
    recording: str
    created: str
    duration: float
    speakers: int
    redact: tuple[str, ...]
    redacted: dict[str, int]

    @property
    def time(self) -> datetime:
        """``created`` as a time. Raises ValueError if it is none."""
        time = datetime.fromisoformat(self.created)
        if time.tzinfo is None:
            raise ValueError("no time zone")
        return time


def now() -> str:
    """Return the time in the form of ``call.json``."""
    return datetime.now(UTC).isoformat(timespec="seconds")


class CallFolder:
    """A folder of results. One process at a time may write to it; use it as a context manager.

    Attributes:
        root: the folder.
    """

    def __init__(self, root: Path, *, writes: bool = True) -> None:
        """Open the folder.

        Args:
            root: the folder; created for its owner alone if there is none.
            writes: process calls: remove what a killed process left unfinished. Other processes may only
                delete results.

        Raises:
            SettingsError: the folder cannot be written, or another process uses it.
        """
        self.root = root
        self._lock: BinaryIO | None = None
        self._partial = root / _PARTIAL
        if writes:
            self._own()

    def _own(self) -> None:
        root = self.root
        try:
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = (root / _LOCK).open("wb")
        except OSError as error:
            raise SettingsError(f"cannot write {root}: {error.strerror}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            raise SettingsError(f"another process uses {root}; give another folder") from None
        shutil.rmtree(self._partial, ignore_errors=True)

    def __enter__(self) -> "CallFolder":
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            self._lock.close()

    def is_done(self, call: str) -> bool:
        """Return whether a call has its results, or had them before they were deleted."""
        return (self.root / call / CALL_FILE).exists()

    def check_same(self, call: str, recording: Path) -> None:
        """Raise SettingsError if a call has results, and they are of another recording."""
        if self.is_done(call):
            done = Path(read_record(self.root / call / CALL_FILE).recording)
            if done != recording.resolve():
                raise SettingsError(
                    f"{self.root} has results of {done} as {call!r}; give another --output-dir for "
                    f"{recording}"
                )

    def has_failed(self, call: str) -> bool:
        """Return whether a call was given up."""
        return self._failure(call).exists()

    @contextmanager
    def writing(self, call: str) -> Iterator[Path]:
        """Yield an empty folder for a call's results, which appear in their place at the end.

        Raises:
            RequestError: the results cannot be written.
        """
        if Path(call).parts[0] == _FAILED:
            raise RequestError(f"{call}: {_FAILED} is the name of a folder of results; rename it")
        try:
            self._partial.mkdir()
            yield self._partial
            for path in self._partial.iterdir():
                to_disk(path)
            to_disk(self._partial)
            place = self.root / call
            place.parent.mkdir(parents=True, exist_ok=True)
            os.rename(self._partial, place)
            to_disk(place.parent)
            self._failure(call).unlink(missing_ok=True)
        except OSError as error:
            raise RequestError(
                f"cannot write the results of {call}: {error.strerror or error}"
            ) from error
        finally:
            shutil.rmtree(self._partial, ignore_errors=True)

    def fail(self, call: str, recording: Path, error: str, attempts: int) -> None:
        """Give a call up: remember why, until it is retried.

        Raises:
            SettingsError: that cannot be written.
        """
        path = self._failure(call)
        fields = {
            "id": call,
            "recording": str(recording),
            "error": error,
            "attempts": attempts,
            "time": now(),
        }
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, fields)
        except OSError as error:
            raise SettingsError(f"cannot write {path}: {error.strerror}") from error

    def retry(self, call: str) -> None:
        """Forget that a call was given up."""
        self._failure(call).unlink(missing_ok=True)

    def calls(
        self, on_damaged: Callable[[RequestError], None]
    ) -> Iterator[tuple[Path, CallRecord]]:
        """Yield the folder and record of each call, in the order of their ids.

        ``on_damaged`` gets the error of each record that cannot be read.
        """
        for path in sorted(self.root.rglob(CALL_FILE)):
            if path.relative_to(self.root).parts[0] not in (_FAILED, _PARTIAL):
                try:
                    record = read_record(path)
                except RequestError as error:
                    on_damaged(error)
                else:
                    yield path.parent, record

    def find(self, call: str) -> tuple[Path, CallRecord]:
        """Return the folder and record of a call. Raises RequestError if there is none."""
        path = self.root / call / CALL_FILE
        parts = Path(call).parts
        inside = bool(parts) and ".." not in parts and not Path(call).is_absolute()
        if not inside or parts[0] in (_FAILED, _PARTIAL) or not path.exists():
            raise RequestError(f"{self.root} has no call {call!r}")
        return path.parent, read_record(path)

    def _failure(self, call: str) -> Path:
        return self.root / _FAILED / f"{call}.json"


def read_record(path: Path) -> CallRecord:
    """Read a ``call.json``. Raises RequestError if it is not one."""
    try:
        record = msgspec.json.decode(path.read_bytes(), type=CallRecord)
        record.time  # noqa: B018 - checks it
    except (OSError, ValueError) as error:
        raise RequestError(f"cannot read {path}: {error}") from error
    return record


def write_json(path: Path, fields: Any) -> None:
    """Write a file of JSON that is complete or absent."""
    text = json.dumps(msgspec.to_builtins(fields), indent=2, ensure_ascii=False)
    with complete_or_absent(path, sync=True) as partial:
        partial.write_text(text + "\n", encoding="utf-8")
