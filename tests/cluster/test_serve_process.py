"""The supervisor of a gateway's ``galley serve``: ports that are taken, starts that fail, and its log."""

import asyncio
import socket
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from galley.cluster.on_ray import serve_process
from galley.cluster.on_ray.serve_process import ServeProcess
from galley.errors import EngineFailed


def run(case: Callable[[ServeProcess], Coroutine[Any, Any, None]], ports: tuple[int, int]) -> None:
    async def whole() -> None:
        process = ServeProcess("127.0.0.1", ports, drain_seconds=1)
        await process.configure({"model": "/there/is/none"})
        supervising = asyncio.create_task(process.supervise())
        try:
            await case(process)
        finally:
            assert not supervising.done()
            supervising.cancel()
            with suppress(asyncio.CancelledError):
                await supervising
            await process.close()
        assert not process.folder.exists()

    asyncio.run(asyncio.wait_for(whole(), 60))


def test_a_gateway_without_a_free_port_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve_process, "_FIRST_RETRY_SECONDS", 0.001)

    async def case(process: ServeProcess) -> None:
        with pytest.raises(EngineFailed, match=f"no port of {port} to {port} is free"):
            await process.listening()

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        run(case, (port, port))


def test_failed_starts_are_counted_whoever_has_the_port(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process takes the port first; then the model cannot be found."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        found = iter([port])
        free = serve_process._free_port
        monkeypatch.setattr(
            serve_process, "_free_port", lambda host, ports: next(found, 0) or free(host, ports)
        )

        async def case(process: ServeProcess) -> None:
            said = []
            for number in (1, 2):
                while process.failed_starts < number:
                    assert not process.figures()  # the second one is up for a moment
                    await asyncio.sleep(0.01)
                said.append(process.last_words)
            assert "cannot listen" in said[0]
            assert "cannot start" in said[1]

        run(case, (20_400, 20_450))


def test_a_log_does_not_grow_without_end(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("ab", buffering=0) as output:
        output.write(b"old\n" * 10)
        serve_process._shorten(path, 1000)
        assert path.stat().st_size == 40
        serve_process._shorten(path, 10)
        output.write(b"new\n")
    assert path.read_bytes() == b"new\n"
    assert (tmp_path / "log.old").read_bytes() == b"old\n" * 10
