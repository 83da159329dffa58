"""A ``galley serve`` process under an actor of Ray's: its settings, its port, and its restarts."""

import asyncio
import ctypes
import json
import logging
import os
import re
import secrets
import shutil
import signal
import socket
import ssl
import sys
import tempfile
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import yaml

from galley.errors import EngineFailed

log = logging.getLogger("galley.cluster")

UNHEALTHY_STARTS: Final = 5
"""Consecutive failed starts after which a process will most likely never start."""

_FIRST_RETRY_SECONDS: Final = 0.5
_LONGEST_RETRY_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 0.1
_FIGURES_TIMEOUT: Final = 5.0
_MOST_FIGURES: Final = 16 << 20
_END_SECONDS: Final = 10.0
_PARENT_DEATH_SIGNAL: Final = 1
"""``PR_SET_PDEATHSIG`` of Linux's prctl."""

_LISTENS: Final = re.compile(rb"Galley \S+ listens on ")
"""Matches the line that the process prints once it accepts connections and handles signals."""

_START_FAILED: Final = 1
"""Exit code of a process that could not start."""

_MOST_START_BYTES: Final = 1 << 20
_LAST_BYTES: Final = 4096
_MOST_LOG_BYTES: Final = 64 << 20
_LOG_SECONDS: Final = 10.0
"""Seconds between two looks at the size of the log."""


class ServeProcess:
    """Supervises one ``galley serve``. For use in one event loop.

    Attributes:
        folder: its files, which end with it.
        key: an admin key of the process.
        log_path: where its output goes; what is older than 64 MiB is in ``log.old``, or gone.
        failed_starts: consecutive starts that failed.
    """

    def __init__(self, host: str, ports: tuple[int, int], *, drain_seconds: float) -> None:
        """Create it; :meth:`supervise` starts the process.

        Args:
            host: the address to bind.
            ports: first and last port; the first that is free is taken.
            drain_seconds: how long requests have to complete after SIGTERM.
        """
        self.folder = Path(tempfile.mkdtemp(prefix="galley-gateway-"))
        self.log_path = self.folder / "log"
        self.failed_starts = 0
        self.key = secrets.token_hex(16)
        self._host = host
        self._ports = ports
        self._drain_seconds = drain_seconds
        self._port = 0
        self._process: asyncio.subprocess.Process | None = None
        self._settings: dict[str, Any] = {}
        self._up = False
        self._error = ""
        # Loaded here: nothing may be imported between fork and exec.
        self._prctl = getattr(ctypes.CDLL(None), "prctl", None)

    @property
    def url(self) -> str:
        """Where clients reach it; empty before it listens."""
        if not self._port:
            return ""
        host = self._host
        scheme = "https" if self._settings.get("tls_cert") else "http"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{self._port}"

    @property
    def own_url(self) -> str:
        """Where this process reaches it."""
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(self._host)  # noqa: S104
        return self.url if host is None else f"{self.url.partition('://')[0]}://{host}:{self._port}"

    @property
    def last_words(self) -> str:
        """Why it could not be started, or the last line of its output."""
        if self._error:
            return self._error
        lines = _read(self.log_path, -_LAST_BYTES, _LAST_BYTES).decode(errors="replace").split("\n")
        return next((line for line in reversed(lines) if line.strip()), "it has said nothing")

    async def configure(self, given: dict[str, Any]) -> None:
        """Use these settings; a running process reloads models that changed, and loses no stream."""
        settings = {
            **given,
            "host": self._host,
            "port": self._port,
            "drain_seconds": self._drain_seconds,
        }
        if settings == self._settings:
            return
        self._settings = settings
        self._write()
        if self._up:
            self._reload()

    async def listening(self) -> None:
        """Wait until the process accepts connections.

        Raises:
            EngineFailed: it fails to start again and again.
        """
        while not self._up:
            if self.failed_starts >= UNHEALTHY_STARTS:
                raise EngineFailed(f"galley serve fails to start: {self.last_words}")
            await asyncio.sleep(_POLL_SECONDS)

    async def supervise(self) -> None:
        """Start the process, and start it again whenever it ends."""
        while True:
            if self.failed_starts:
                delay = _FIRST_RETRY_SECONDS * 2 ** min(self.failed_starts - 1, 8)
                await asyncio.sleep(min(_LONGEST_RETRY_SECONDS, delay))
            try:
                started = await self._start()
            except OSError as error:
                # No port is free, or there are too few descriptors or processes: this can pass.
                log.error("galley serve cannot be started: %s", error)
                self._error, started = str(error), False
            if started:
                self.failed_starts = 0
            else:
                self.failed_starts += 1
                self._port = 0  # another process may have taken it

    async def _start(self) -> bool:
        """Run the process once, at a port that is free; return whether it could start."""
        self._port = self._port or _free_port(self._host, self._ports)
        self._settings = {**self._settings, "port": self._port}
        self._write()
        self._error = ""
        return await self._run()

    def _reload(self) -> None:
        """Have the process read its settings again. Before it listens, the signal would end it."""
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGHUP)

    def figures(self) -> dict[str, Any] | None:
        """Return model -> release -> what it has to do; None if the process does not answer. Blocks."""
        if not self._up:
            return None  # another process may have its port, and must not be given the key
        url = self.own_url
        headers = {"Authorization": f"Bearer {self.key}"}
        # It is this gateway's own process, so its certificate proves nothing.
        context = ssl._create_unverified_context() if url.startswith("https") else None  # noqa: S323
        try:
            request = urllib.request.Request(f"{url}/admin/replicas", headers=headers)  # noqa: S310
            opened = urllib.request.urlopen(request, timeout=_FIGURES_TIMEOUT, context=context)  # noqa: S310
            with opened as answer:
                found = json.loads(answer.read(_MOST_FIGURES))
            return {
                model["model"]: {one["name"]: one for one in model["releases"]}
                for model in found["models"]
            }
        except (OSError, ValueError, KeyError, TypeError):
            return None

    async def close(self) -> None:
        """End the process after its requests, or after the time that they have."""
        process = self._process
        if process is not None and process.returncode is None:
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), self._drain_seconds + _END_SECONDS)
            except TimeoutError:
                process.kill()
        await asyncio.to_thread(shutil.rmtree, self.folder, ignore_errors=True)

    def _write(self) -> None:
        new = self.folder / "galley.yaml.new"
        new.write_text(yaml.safe_dump(self._settings))
        new.replace(self.folder / "galley.yaml")

    async def _run(self) -> bool:
        """Run the process once; return whether it could start."""
        given, since = self._settings, _size(self.log_path)
        keys = [self.key, *filter(None, os.environ.get("GALLEY_ADMIN_KEY", "").split(","))]
        command = (
            sys.executable,
            "-m",
            "galley",
            "serve",
            "--config",
            self.folder / "galley.yaml",
        )
        with self.log_path.open("ab") as output:
            self._process = process = await asyncio.create_subprocess_exec(
                *command,
                stdout=output,
                stderr=output,
                env={**os.environ, "GALLEY_ADMIN_KEY": ",".join(keys)},
                preexec_fn=self._end_with_parent(),
            )
        ended = asyncio.create_task(process.wait())
        try:
            # No event says that another process listens. A connection would not, either: another process
            # may have taken the port.
            while not ended.done() and not self._listens(since):  # noqa: ASYNC110
                await asyncio.sleep(_POLL_SECONDS)
            if not ended.done():
                self._up = True
                log.info("this gateway listens on %s", self.url)
                if self._settings != given:
                    self._reload()
            while not ended.done():
                await asyncio.wait({ended}, timeout=_LOG_SECONDS)
                await asyncio.to_thread(_shorten, self.log_path)
            listened = self._up
            log.error("galley serve ended with %s: %s", process.returncode, self.last_words)
            return listened and process.returncode != _START_FAILED
        finally:
            self._up = False
            ended.cancel()

    def _listens(self, since: int) -> bool:
        """Return whether the process has said so, after these bytes of its log."""
        return _LISTENS.search(_read(self.log_path, since, _MOST_START_BYTES)) is not None

    def _end_with_parent(self) -> Callable[[], None] | None:
        """Return what has the process drain and end if this one is killed."""
        prctl = self._prctl
        if prctl is None:
            return None
        return lambda: prctl(_PARENT_DEATH_SIGNAL, signal.SIGTERM)


def _free_port(host: str, ports: tuple[int, int]) -> int:
    """Return the first port that can be bound. Raises OSError if there is none."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for port in range(ports[0], ports[1] + 1):
        with suppress(OSError), socket.create_server((host, port), family=family):
            return port
    raise OSError(f"no port of {ports[0]} to {ports[1]} is free at {host}")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _read(path: Path, start: int, most: int) -> bytes:
    """Return a part of a file; ``start``: from its end, if negative. Empty if it cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, start if start >= 0 else _size(path) + start))
            return file.read(most)
    except OSError:
        return b""


def _shorten(path: Path, most: int = _MOST_LOG_BYTES) -> None:
    """Move the contents of a log that has become long to ``log.old``; the process continues to append."""
    with suppress(OSError):
        if _size(path) > most:
            shutil.copyfile(path, path.with_name(f"{path.name}.old"))
            os.truncate(path, 0)
