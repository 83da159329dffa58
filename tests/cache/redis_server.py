"""A real redis-server (or valkey-server) on a Unix socket, without persistence."""

import shutil
import signal
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import redis

PROGRAM = shutil.which("redis-server") or shutil.which("valkey-server")


class RedisServer:
    """A server started on entry and stopped on exit; ``url`` is for clients."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self._socket = folder / "redis.sock"
        self._flags = flags
        self.url = f"unix://{self._socket}"

    def __enter__(self) -> Self:
        assert PROGRAM is not None
        command = [PROGRAM, "--port", "0", "--unixsocket", str(self._socket), "--save", ""]
        self.process = subprocess.Popen([*command, *self._flags], stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 30
        while True:
            try:
                redis.Redis.from_url(self.url).ping()
                return self
            except redis.ConnectionError:
                assert time.monotonic() < deadline, "redis-server did not start"
                time.sleep(0.05)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.resume()
        self.process.kill()
        self.process.wait()

    def client(self) -> redis.Redis:
        """Return a plain client."""
        return redis.Redis.from_url(self.url)

    def pause(self) -> None:
        """Stop the process, so that it accepts connections and answers nothing."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Resume the process."""
        self.process.send_signal(signal.SIGCONT)
