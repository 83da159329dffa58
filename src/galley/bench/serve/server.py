"""A Galley server to measure, run as a process."""

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from galley.errors import EngineError
from galley.settings.config import Settings
from galley.settings.engine import EngineSettings, changed_settings
from galley.settings.sources import variables


@contextlib.contextmanager
def started(
    *arguments: str, quiet: bool = False, settings: EngineSettings | None = None
) -> Iterator[tuple[str, int]]:
    """Start ``galley serve`` on a free port, and stop it at the end of the ``with``.

    Args:
        arguments: the model and further flags of ``galley serve``.
        quiet: keep the server's messages; an error has the last of them.
        settings: of the engine, the model included. The server then reads no variables and no other
            settings file: what it records, stores or requires (keys, TLS) would change what is measured.
            A flag of ``arguments`` has precedence, ``--config`` included.

    Yields:
        URL and process id, once every model is ready.

    Raises:
        EngineError: the server exited before that; the reason is on its stderr, or in the error.
    """
    command = [sys.executable, "-m", "galley", "serve"]
    environ = dict(os.environ)
    with contextlib.ExitStack() as stack:
        messages = stack.enter_context(tempfile.TemporaryFile("w+")) if quiet else None
        if settings is not None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            command += ["--config", str(_settings_file(settings, folder))]
            environ = {k: v for k, v in environ.items() if k not in variables(Settings)}
        command += [*arguments, "--port", "0", "--log-level", "warning"]
        yield from _run(command, arguments, messages, environ)


def _settings_file(settings: EngineSettings, folder: Path) -> Path:
    file = folder / "galley.yaml"
    chosen = {"model": "galley-demo"} | changed_settings(settings)
    file.write_text(json.dumps(chosen, ensure_ascii=False), encoding="utf-8")  # JSON is YAML
    return file


def _run(
    command: Sequence[str],
    arguments: Sequence[str],
    messages: IO[str] | None,
    environ: Mapping[str, str],
) -> Iterator[tuple[str, int]]:
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=messages, text=True, env=environ
    )
    try:
        assert process.stdout is not None
        url = _wait(process.stdout)
        if url is None:
            code = process.wait()
            if messages is not None:
                raise EngineError(_last_line(messages) or f"galley serve exited with code {code}")
            raise EngineError(
                f"galley serve {' '.join(arguments)} exited with code {code} before it "
                "was ready; see its messages above"
            )
        drain = threading.Thread(target=_drain, args=(process.stdout,), daemon=True)
        drain.start()
        yield url, process.pid
    finally:
        process.terminate()
        process.wait()


def _last_line(messages: IO[str]) -> str:
    messages.seek(0)
    lines = [line.strip() for line in messages if line.strip()]
    return lines[-1].removeprefix("galley: ") if lines else ""


def _wait(lines: Iterator[str]) -> str | None:
    url = None
    for line in lines:
        if match := re.search(r"listens on (\S+)", line):
            url = match[1]
        if " ready after " in line:
            return url
    return None


def _drain(lines: Sequence[str] | Iterator[str]) -> None:
    """Read and discard the output, so that the server never waits for room in the pipe."""
    for _ in lines:
        pass
