"""The two files of a batch: lines to process, and a file of results that survives being killed.

The results file is the only record of progress: a line is done if and only if its result is there in full.
"""

import io
import json
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from galley.errors import RequestError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

NEWLINE: Final = b"\n"
_OK: Final = 200
_START: Final = b'{"id": "batch_req_'


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of ``path`` that are not blank, with their numbers from 1.

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
    """Return the ``id`` of the result of line ``number``."""
    return f"batch_req_{number}"


def scan(path: Path) -> dict[str, str | None]:
    """Map the ``id`` of each line's result to the line's ``custom_id``, None where it has none.

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


def failure_of(result: dict[str, Any]) -> str | None:
    """Return the failure in a result line: status and message; None if it holds an answer."""
    response, error = result["response"], result["error"]
    if error is not None:
        return str(error["message"])
    if response["status_code"] == _OK:
        return None
    return f"{response['status_code']}: {response['body']['error']['message']}"


class Results:
    """The results file, open for appending by one process at a time.

    Attributes:
        done: ``id`` of every result that the file held when it was opened, and that was left in it.
        failures: failure (see :func:`failure_of`) -> how many results in the file have it.
    """

    def __init__(
        self, path: Path, wanted: dict[str, str | None], *, retry_failed: bool = False
    ) -> None:
        """Open ``path``, and cut off a line that a killed process left half written.

        Args:
            path: created if it does not exist.
            wanted: the result of :func:`scan` for the file of requests.
            retry_failed: take results that are failures out of the file, so that they are not ``done``.

        Raises:
            RequestError: the file cannot be written, another process writes it, or it holds
                something other than results of ``wanted``.
        """
        self._path = path
        self.failures: Counter[str] = Counter()
        self._file = self._open(path)
        try:
            is_failure = self._repair(path, wanted)
            if retry_failed and self.failures:
                self._remove_failures()
                is_failure = {result: False for result, failed in is_failure.items() if not failed}
            self.done = set(is_failure)
        except BaseException:
            self._file.close()
            raise

    def append(self, result: dict[str, Any]) -> None:
        """Write one result; when this returns, killing the process does not lose it.

        Raises:
            RequestError: the disk is full or broken. The file holds whole lines nevertheless.
        """
        # ASCII: programs that split text into lines at U+2028 must not split these.
        line = memoryview(json.dumps(result).encode() + NEWLINE)
        end = self._file.seek(0, os.SEEK_END)
        with self._written():
            try:
                while line:
                    line = line[self._file.write(line) or 0 :]
            except OSError:
                self._file.truncate(end)  # needs no disk space
                raise
        self._count(result)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # Completion is reported after this, so that a reported result also survives a power cut.
        with self._file, self._written():
            os.fsync(self._file.fileno())

    @contextmanager
    def _written(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RequestError(
                f"cannot write {self._path}: {error.strerror}. The results in it are complete: run the "
                "same command again to continue"
            ) from error

    @staticmethod
    def _open(path: Path) -> FileIO:
        """Return ``path`` open and locked."""
        while True:
            try:
                file = FileIO(path, "a+b")
            except OSError as error:
                raise RequestError(f"cannot write {path}: {error.strerror}") from error
            try:
                if fcntl is not None:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.close()
                raise RequestError(f"{path}: another process is writing this file") from None
            # Another process may have put a new file in its place before this one got the lock.
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                    return file
            file.close()

    def _count(self, result: dict[str, Any]) -> bool:
        """Return whether a result is a failure, and count it if so."""
        failure = failure_of(result)
        if failure is not None:
            self.failures[failure] += 1
        return failure is not None

    def _repair(self, path: Path, wanted: dict[str, str | None]) -> dict[str, bool]:
        """Cut off a partial line; map the ``id`` of each result to whether it is a failure."""
        by_custom_id = {custom: result for result, custom in wanted.items() if custom is not None}
        found: dict[str, bool] = {}
        end = 0
        with path.open("rb") as lines:
            for line in lines:
                if not line.endswith(NEWLINE) and line[: len(_START)] == _START[: len(line)]:
                    self._file.truncate(end)
                    break
                end += len(line)
                identity, is_failure = self._identify(line, path, wanted, by_custom_id)
                found[identity] = is_failure
        return found

    def _identify(
        self, line: bytes, path: Path, wanted: dict[str, str | None], by_custom_id: dict[str, str]
    ) -> tuple[str, bool]:
        """Return the ``id`` of the result in a line of the file, and whether it is a failure."""
        try:
            result = json.loads(line)
            custom_id, identity = result["custom_id"], result["id"]
            is_failure = self._count(result)
        except (ValueError, LookupError, TypeError):
            raise RequestError(
                f"{path} contains a line that is not a batch result; name another file"
            ) from None
        identity = by_custom_id.get(custom_id, "") if custom_id is not None else identity
        if wanted.get(identity, "") != custom_id:
            raise RequestError(
                f"{path} contains the result of {custom_id or identity!r}, which is not in the file "
                "of requests; name another file"
            )
        return identity, is_failure

    def _remove_failures(self) -> None:
        """Replace the file with one without the failures, atomically."""
        path = self._path.resolve()
        with self._written():
            descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
            os.close(descriptor)
            kept = FileIO(name, "a+b")
            try:
                if fcntl is not None:
                    fcntl.flock(kept, fcntl.LOCK_EX)
                shutil.copymode(path, name)
                with path.open("rb") as lines, io.BufferedWriter(FileIO(name, "ab")) as copy:
                    copy.writelines(line for line in lines if failure_of(json.loads(line)) is None)
                os.fsync(kept.fileno())
                os.replace(name, path)
            except BaseException:
                kept.close()
                os.unlink(name)
                raise
        self._file.close()
        self._file = kept
        self.failures.clear()
