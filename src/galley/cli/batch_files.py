"""The two files of a batch: lines to do, and a file of results that survives being killed.

The results file is the only record of progress. A line is in it whole or it is not done.
"""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from galley.errors import RequestError

NEWLINE: Final = b"\n"
_START: Final = b'{"id": "batch_req_'


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines of ``path`` that are not blank, with their numbers from 1.

    Raises:
        RequestError: the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, line
    except OSError as error:
        raise RequestError(f"cannot read {path}: {error.strerror}") from error


def result_id(number: int) -> str:
    """The ``id`` of the result of line ``number``."""
    return f"batch_req_{number}"


def scan(path: Path) -> dict[str, str | None]:
    """The ``id`` of each line's result -> the line's ``custom_id``, None where it has none.

    Raises:
        RequestError: the file cannot be read, or two lines have the same ``custom_id``.
    """
    lines: dict[str, str | None] = {}
    first_seen: dict[str, int] = {}
    for number, text in read_lines(path):
        custom_id = _custom_id(text)
        lines[result_id(number)] = custom_id
        if custom_id is not None:
            first = first_seen.setdefault(custom_id, number)
            if first != number:
                raise RequestError(
                    f"{path}: lines {first} and {number} have the same custom_id {custom_id!r}; "
                    "every line needs its own"
                )
    return lines


def _custom_id(line: bytes) -> str | None:
    try:
        custom_id = json.loads(line)["custom_id"]
        custom_id.encode()
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
        return None
    return str(custom_id)


class Results:
    """The results file, open for appending by one process at a time.

    Attributes:
        done: ``id`` of every result that the file held when it was opened.
    """

    def __init__(self, path: Path, wanted: dict[str, str | None]) -> None:
        """Open ``path``, cut off a line that a killed process left half written.

        Args:
            path: created if it does not exist.
            wanted: what :func:`scan` found in the file of requests.

        Raises:
            RequestError: the file cannot be written, another process writes it, or it holds
                something else than results of ``wanted``.
        """
        self._path = path
        try:
            self._file = path.open("a+b", buffering=0)
        except OSError as error:
            raise RequestError(f"cannot write {path}: {error.strerror}") from error
        try:
            self._lock(path)
            self.done = self._repair(path, wanted)
        except BaseException:
            self._file.close()
            raise

    def append(self, result: dict[str, Any]) -> None:
        """Write one result; when this returns, killing the process does not lose it.

        Raises:
            RequestError: the disk is full or broken. The file holds whole lines nevertheless.
        """
        # ASCII: what splits text into lines at U+2028 must not split these.
        line = memoryview(json.dumps(result).encode() + NEWLINE)
        end = self._file.seek(0, os.SEEK_END)
        with self._written():
            try:
                while line:
                    line = line[self._file.write(line) or 0 :]
            except OSError:
                self._file.truncate(end)  # needs no room
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # Done is said after this, so that what was said to be done outlives a power cut, too.
        with self._file, self._written():
            os.fsync(self._file.fileno())

    @contextmanager
    def _written(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RequestError(
                f"cannot write {self._path}: {error.strerror}. Its results are whole: run the same "
                "command again, and it goes on"
            ) from error

    def _lock(self, path: Path) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RequestError(f"{path}: another process writes this file") from None

    def _repair(self, path: Path, wanted: dict[str, str | None]) -> set[str]:
        by_custom_id = {custom: result for result, custom in wanted.items() if custom is not None}
        done: set[str] = set()
        end = 0
        self._file.seek(0)
        for line in self._file:
            if not line.endswith(NEWLINE) and line[: len(_START)] == _START[: len(line)]:
                self._file.truncate(end)
                break
            end += len(line)
            done.add(self._identify(line, path, wanted, by_custom_id))
        return done

    @staticmethod
    def _identify(
        line: bytes, path: Path, wanted: dict[str, str | None], by_custom_id: dict[str, str]
    ) -> str:
        try:
            result = json.loads(line)
            custom_id, identity = result["custom_id"], result["id"]
        except (ValueError, LookupError, TypeError):
            raise RequestError(
                f"{path} holds a line that is no result; name another file"
            ) from None
        identity = by_custom_id.get(custom_id, "") if custom_id is not None else identity
        if wanted.get(identity, "") != custom_id:
            raise RequestError(
                f"{path} holds the result of {custom_id or identity!r}, which is not in the file "
                "of requests; name another file"
            )
        return identity
