"""The command line as users run it: a process, which starts warm (``tests/warm.py``) where it can."""

import os
import shlex
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import click

from galley.cli.main import app
from tests import warm


def environment(**variables: str) -> dict[str, str]:
    """Return the environment without galley's variables, wide enough that help is not wrapped."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GALLEY_")}
    return {**clean, "COLUMNS": "160", **variables}


def galley(
    *args: str | int | Path,
    cwd: Path | None = None,
    stdin: str = "",
    timeout: float = 120,
    environ: dict[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run to the end."""
    arguments, variables = [*map(str, args)], environment(**(environ or {}))
    return warm.run(
        arguments, environ=variables, stdin=stdin.encode(), cwd=cwd, timeout=timeout
    ) or subprocess.run(
        [sys.executable, "-m", "galley", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        cwd=cwd,
        env=variables,
    )


def free_port() -> int:
    """Return a port on which nothing listens now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def start_galley(*args: str | Path) -> subprocess.Popen[str]:
    """Start a process, with all its output in one pipe."""
    return subprocess.Popen(
        [sys.executable, "-m", "galley", *map(str, args)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment(),
    )


def parsed_command(command: str) -> dict[str, Any]:
    """Return the parsed form of a ``galley`` command, without running it."""
    program, *words = shlex.split(command, comments=True)
    assert program == "galley"
    made: click.Command = app
    context = click.Context(app)
    while isinstance(made, click.Group):
        child = made.get_command(context, words.pop(0))
        assert child, command
        made = child
        if isinstance(made, click.Group):
            context = click.Context(made, parent=context)
    return made.make_context(made.name, words, parent=context).params
