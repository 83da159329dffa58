"""What belongs to a request that fails is freed with it, not by a later garbage collection."""

import asyncio
import gc
import weakref
from collections.abc import AsyncGenerator, Coroutine
from typing import Any

import pytest

from galley.errors import DeadlineExceeded
from galley.gateway.generation import Piece, _merged
from galley.protocols.http.sse import while_connected


class Held:
    """Something that a request holds."""


def run_without_collector(work: Coroutine[Any, Any, None]) -> None:
    gc.disable()
    try:
        asyncio.run(work)
    finally:
        gc.enable()


def test_work_that_fails_while_its_client_is_connected() -> None:
    async def receive() -> Any:
        await asyncio.Event().wait()

    async def run() -> None:
        held = Held()
        freed = weakref.ref(held)

        async def work(held: Held) -> None:
            await asyncio.sleep(0)
            raise DeadlineExceeded(f"late: {held}")

        failing = work(held)
        del held
        with pytest.raises(DeadlineExceeded):
            await while_connected(receive, failing)
        del failing
        await asyncio.sleep(0)  # until then the loop refers to what this task waited for last
        assert freed() is None

    run_without_collector(run())


@pytest.mark.parametrize("choices", [1, 2, 3])
def test_choices_that_fail(choices: int) -> None:
    async def run() -> None:
        held = Held()
        freed = weakref.ref(held)

        async def choice(held: Held) -> AsyncGenerator[Piece, None]:
            await asyncio.sleep(0)
            raise DeadlineExceeded(f"late: {held}")
            yield

        async def read(sources: list[AsyncGenerator[Piece, None]]) -> None:
            with pytest.raises(DeadlineExceeded):
                await anext(_merged(sources))

        await read([choice(held) for _ in range(choices)])
        del held
        assert freed() is None

    run_without_collector(run())
