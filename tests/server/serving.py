"""A real ``galley serve`` process for tests."""

import contextlib
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self, TypeVar

import httpx
import psutil
from openai import OpenAI
from prometheus_client.parser import text_string_to_metric_families

from tests import warm
from tests.forks import Fork

START_SECONDS = 120

T = TypeVar("T")


class Server:
    """A server, started on entry and killed with all its children on exit.

    Settings are flags: ``Server(folder, log, max_queue=1, api_key="k")``. Several models are a list of
    ``NAME=MODEL``. It starts warm (``tests/warm.py``) unless variables or ``module`` need a cold start.

    Attributes:
        arguments: those of ``galley``, which a test may replace before the start.
    """

    def __init__(
        self,
        model: Path | str | Sequence[str],
        log: Path,
        *,
        wait: bool = True,
        environ: dict[str, str] | None = None,
        open_files: int | None = None,
        module: str = "galley",
        **settings: Any,
    ) -> None:
        self.log_path = log
        self._wait = wait
        self._open_files = open_files
        self._environ = os.environ | (environ or {})
        # One token per step, so that long answers take long even if a test has cached them.
        settings = {"port": 0, "speculation": "off", **settings}
        flags = [part for name, value in settings.items() for part in _flag(name, value)]
        models = [str(model)] if isinstance(model, Path | str) else model
        self._module = module
        self.arguments = ["serve", *models, *flags]

    def __enter__(self) -> Self:
        with self.log_path.open("wb") as log:
            self.process: warm.Started = self._warm(log) or self._cold(log)
        try:
            self.port = int(self.wait_for_log(r"listens on http://\S+:(\d+)")[1])
            self.url = f"http://127.0.0.1:{self.port}"
            if self._wait:
                self.wait_for_log(r"(is|are) ready after")
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()

    def _warm(self, log: BinaryIO) -> Fork | None:
        if self._module != "galley":
            return None
        return warm.start(
            self.arguments,
            environ=self._environ,
            stdout=log,
            stderr=log,
            open_files=self._open_files,
        )

    def _cold(self, log: BinaryIO) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            [sys.executable, "-m", self._module, *self.arguments],
            stdout=log,
            stderr=subprocess.STDOUT,
            env=self._environ,
            # Without a function, Python starts it by vfork, which copies none of a worker's gigabytes.
            preexec_fn=None if self._open_files is None else self._limit_files,
        )

    def _limit_files(self) -> None:
        assert self._open_files is not None
        resource.setrlimit(resource.RLIMIT_NOFILE, (self._open_files, self._open_files))

    def kill(self) -> None:
        """Kill the process and its children at once."""
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in [*self.processes(), psutil.Process(self.process.pid)]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        self.process.wait()

    def stop(self, number: int = signal.SIGTERM, timeout: float = 30) -> int:
        """Send a signal; return the exit code."""
        self.process.send_signal(number)
        return self.process.wait(timeout)

    def processes(self) -> list[psutil.Process]:
        """Return the engine processes and text workers."""
        children: list[psutil.Process] = psutil.Process(self.process.pid).children(recursive=True)
        return children

    def children(self) -> list[psutil.Process]:
        """Return the engine processes."""
        others = [*self.text_workers(), *self.decoders()]
        return [process for process in self.processes() if process not in others]

    def text_workers(self) -> list[psutil.Process]:
        """Return the processes that render chat templates and tokenize."""
        return [p for p in self.processes() if _runs(p, "galley.service.text_worker")]

    def decoders(self) -> list[psutil.Process]:
        """Return the processes that decode recordings, and their forks."""
        return [p for p in self.processes() if _runs(p, "galley.speech.decode_worker")]

    def engine(self, model: str) -> psutil.Process:
        """Return the engine process of one of several models."""
        alive = [c for c in self.children() if c.status() != psutil.STATUS_ZOMBIE]
        [engine] = [child for child in alive if model in child.cmdline()]
        return engine

    @property
    def log(self) -> str:
        """Return the server's log so far."""
        return self.log_path.read_text(encoding="utf-8", errors="replace")

    def wait_for_log(self, pattern: str) -> re.Match[str]:
        """Wait for a match in the log and return the first."""

        def found() -> re.Match[str] | None:
            match = re.search(pattern, self.log)
            if match is None and self.process.poll() is not None:
                raise AssertionError(f"the server ended with {self.process.returncode}: {self.log}")
            return match

        match = until(found, START_SECONDS)
        assert match is not None
        return match

    def client(self, **options: Any) -> httpx.Client:
        """Return a plain HTTP client."""
        return httpx.Client(base_url=self.url, timeout=60, **options)

    def openai(self, api_key: str = "unused") -> OpenAI:
        """Return OpenAI's client without retries, so that errors reach the test."""
        return OpenAI(base_url=f"{self.url}/v1", api_key=api_key, max_retries=0, timeout=60)

    def metrics(self, model: str | None = None, **headers: str) -> dict[str, float]:
        """Return every sample of ``/metrics`` by its name and other labels, as in ``name{label=value}``.

        ``model`` selects one model's samples where there are several.
        """
        page = httpx.get(f"{self.url}/metrics", headers=headers).text
        return {
            _sample_name(sample.name, sample.labels): sample.value
            for family in text_string_to_metric_families(page)
            for sample in family.samples
            if model is None or sample.labels.get("model", model) == model
        }


def until(condition: Callable[[], T], seconds: float = 30) -> T:
    """Return the first true value of ``condition()``; fail if there is none within the timeout.

    It is called less and less often: reading a server's metrics takes the cores that the server needs.
    """
    deadline, pause = time.monotonic() + seconds, 0.01
    while not (value := condition()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(pause)
        pause = min(1.5 * pause, 0.2)
    return value


def events(response: httpx.Response) -> Iterator[str]:
    """Yield the data of each server-sent event."""
    for line in response.iter_lines():
        if line:
            assert line.startswith("data: "), line
            yield line.removeprefix("data: ")


def _runs(process: psutil.Process, module: str) -> bool:
    try:
        return module in process.cmdline()
    except psutil.Error:  # the process has just ended
        return False


def _flag(name: str, value: Any) -> list[str]:
    flag = "--" + name.replace("_", "-")
    if value is True:
        return [flag]
    if value is False:
        return [flag.replace("--", "--no-", 1)]
    return [flag, str(value)]


def _sample_name(name: str, labels: dict[str, str]) -> str:
    inside = ",".join(f"{key}={value}" for key, value in sorted(labels.items()) if key != "model")
    return f"{name}{{{inside}}}" if inside else name
