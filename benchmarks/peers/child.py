"""A peer's process: it runs for the whole benchmark and is stopped while others are measured."""

import json
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.peers.install import ROOT, PeerFailed, log_file, python_of
from benchmarks.peers.protocol import Peer

_LOAD_SECONDS: Final = 900.0
_ANSWER_SECONDS: Final = 600.0
_SETTLE_SECONDS: Final = 0.3
"""Seconds after waking up before the clock starts."""


class Child:
    """A peer's process, loaded by the constructor and then stopped. Close it after use."""

    def __init__(self, peer: Peer, variant: str, model: Path, threads: int, home: Path) -> None:
        """Start and load the peer; raise PeerFailed if it does not become ready."""
        self.name = f"{peer.name} {variant}"
        self._log = log_file(peer, home)
        command: list[str | Path] = [python_of(peer, home), "-m", f"benchmarks.peers.{peer.name}"]
        command += ["serve", variant, model, "--threads", str(threads)]
        venv = str(home / peer.venv_name / "venv")
        variables = {k: v.replace("{venv}", venv) for k, v in peer.environment.items()}
        began = time.monotonic()
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                text=True,
                env=os.environ | variables,
                start_new_session=True,
            )
        try:
            self._read(_LOAD_SECONDS)
        except PeerFailed:
            self.close()
            raise
        self.load_seconds = time.monotonic() - began
        self._signal(signal.SIGSTOP)

    def measure(self, prompts: Sequence[list[int]], steps: int) -> list[float]:
        """Return a language model's seconds, as in :func:`benchmarks.peers.protocol.answer_text`."""
        return self.ask({"prompts": prompts, "steps": steps})

    def ask(self, request: Mapping[str, Any]) -> list[float]:
        """Return the seconds that the peer's ``answer`` reports.

        Raises:
            PeerFailed: the peer died or did not answer in time. It is closed, since a late answer would be
                taken for the next one.
        """
        self._signal(signal.SIGCONT)
        time.sleep(_SETTLE_SECONDS)
        assert self._process.stdin
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            seconds: list[float] = self._read(_ANSWER_SECONDS)["seconds"]
        except BrokenPipeError:
            self.close()
            raise PeerFailed(f"{self.name} has exited; see {self._log}") from None
        except PeerFailed:
            self.close()
            raise
        self._signal(signal.SIGSTOP)
        return seconds

    def close(self) -> None:
        """Kill the process and its children."""
        self._signal(signal.SIGKILL)
        self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        # It has its own session, so this reaches all of its children.
        if self._process.poll() is None:
            os.killpg(self._process.pid, number)

    def _read(self, timeout: float) -> dict[str, Any]:
        assert self._process.stdout
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            line = self._process.stdout.readline() if selector.select(timeout) else ""
        if not line:
            raise PeerFailed(
                f"{self.name} died or did not answer within {timeout:g} s; see {self._log}"
            )
        answer: dict[str, Any] = json.loads(line)
        return answer
