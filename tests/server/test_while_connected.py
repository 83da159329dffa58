"""Work that is cancelled when its client hangs up, and only then."""

import asyncio
from typing import Any

import pytest

from galley.protocols.http.errors import ClientGone
from galley.protocols.http.sse import Watched, while_connected


class Client:
    """A client that hangs up when it is told to, of a server that only ``receive`` asks."""

    def __init__(self) -> None:
        self._gone = asyncio.Event()

    def hang_up(self) -> None:
        self._gone.set()

    async def receive(self) -> dict[str, str]:
        await self._gone.wait()
        return {"type": "http.disconnect"}


class WatchedClient(Watched):
    """A client of a server that tells it."""

    def hang_up(self) -> None:
        self.gone = True
        if self.on_gone is not None:
            self.on_gone()

    async def receive(self) -> dict[str, str]:
        raise AssertionError("nobody has to ask")


@pytest.fixture(params=[Client, WatchedClient])
def new(request: pytest.FixtureRequest) -> Any:
    return request.param


async def rounds(count: int = 5) -> None:
    """Let everything run that is scheduled."""
    for _ in range(count):
        await asyncio.sleep(0)


def test_the_work_is_cancelled_and_ends_before_the_error(new: Any) -> None:
    async def main() -> None:
        client, ended = new(), []

        async def work() -> None:
            client.hang_up()
            try:
                await asyncio.Event().wait()
            finally:
                await rounds()
                ended.append("work")

        with pytest.raises(ClientGone):
            await while_connected(client.receive, work())
        assert ended == ["work"]
        await rounds()  # the task itself is not cancelled
        task = asyncio.current_task()
        assert task is not None
        assert not task.cancelling()

    asyncio.run(main())


def test_results_and_errors_are_passed_on_and_nothing_is_left(new: Any) -> None:
    async def main() -> None:
        client = new()

        async def work(error: Exception | None) -> str:
            await rounds()
            if error is not None:
                raise error
            return "done"

        assert await while_connected(client.receive, work(None)) == "done"
        with pytest.raises(KeyError):
            await while_connected(client.receive, work(KeyError()))
        await rounds()
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())


@pytest.mark.parametrize("later", range(6))
def test_a_hang_up_at_the_end_of_the_work_cancels_nothing_else(new: Any, later: int) -> None:
    """Whichever comes first, what follows runs undisturbed."""

    async def main() -> None:
        client = new()

        async def work() -> str:
            asyncio.get_running_loop().call_soon(client.hang_up)
            await rounds(later)
            return "done"

        try:
            assert await while_connected(client.receive, work()) == "done"
        except ClientGone:
            assert later > 0
        await rounds(10)

    asyncio.run(main())


def test_a_cancelled_caller_is_cancelled_even_if_the_client_hangs_up(new: Any) -> None:
    async def main() -> None:
        for hangs_up in (False, True):
            client = new()
            calling = asyncio.create_task(while_connected(client.receive, asyncio.Event().wait()))
            await rounds()
            calling.cancel()
            if hangs_up:
                client.hang_up()
            with pytest.raises(asyncio.CancelledError):
                await calling

    asyncio.run(main())


def test_work_that_ends_in_spite_of_its_cancellation(new: Any) -> None:
    async def main() -> None:
        client = new()

        async def work() -> str:
            client.hang_up()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return "saved"
            return "not reached"

        assert await while_connected(client.receive, work()) == "saved"
        await rounds()
        task = asyncio.current_task()
        assert task is not None
        assert not task.cancelling()

    asyncio.run(main())


def test_a_client_that_is_gone_already(new: Any) -> None:
    async def main() -> None:
        client = new()
        client.hang_up()
        with pytest.raises(ClientGone):
            await while_connected(client.receive, asyncio.Event().wait())

    asyncio.run(main())


def test_work_without_a_wait_for_a_client_that_is_gone_already(new: Any) -> None:
    """What the caller waits for after it is not cancelled."""

    async def main() -> None:
        client = new()
        client.hang_up()

        async def work() -> str:
            return "done"

        assert await while_connected(client.receive, work()) == "done"
        await rounds()

    asyncio.run(main())


def test_work_within_work() -> None:
    """The inner one sees the client hang up, and after it the outer one would."""

    async def main() -> None:
        for inner_first in (True, False):
            client = WatchedClient()

            async def inner(client: WatchedClient = client, hangs_up: bool = inner_first) -> None:
                if hangs_up:
                    client.hang_up()
                    await asyncio.Event().wait()

            async def outer(client: WatchedClient = client) -> None:
                await while_connected(client.receive, inner())
                client.hang_up()
                await asyncio.Event().wait()

            with pytest.raises(ClientGone):
                await while_connected(client.receive, outer())

    asyncio.run(main())
