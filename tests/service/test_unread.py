"""Unread output is bounded, and the stream with the most of it is closed."""

import asyncio
import gc
import weakref

import pytest

from galley.errors import DeadlineExceeded, SlowReader
from galley.service.unread import Unread, UnreadBudget
from galley.types import Output, Timing, TokenLogprob, Tokens


def output(tokens: int = 1, logprobs: list[TokenLogprob] | None = None, **fields: object) -> Output:
    result = Tokens(tokens=[7] * tokens, logprobs=logprobs)
    return Output(request_id="r", result=result, **fields)  # type: ignore[arg-type]


def test_the_stream_with_most_is_cut_and_the_others_continue() -> None:
    async def run() -> None:
        budget = UnreadBudget(100_000)
        cut: list[str] = []
        idle = Unread(budget, lambda: cut.append("idle"))
        other = Unread(budget, lambda: cut.append("other"))
        logprobs = [TokenLogprob(1, -1.0, tuple((i, -2.0) for i in range(20)))]
        for _ in range(1000):
            idle.put(output(logprobs=logprobs))
            other.put(output())
            assert len((await other.get()).tokens) == 1
            assert budget.total <= 100_000 + 3000
        assert cut == ["idle"]
        assert budget.total == 0
        with pytest.raises(SlowReader):
            await idle.get()

    asyncio.run(run())


def test_what_was_delivered_comes_before_the_error() -> None:
    async def run() -> None:
        unread = Unread(UnreadBudget(), lambda: None)
        unread.put(output(3))
        unread.fail(DeadlineExceeded("late"))
        unread.put(output())
        assert len((await unread.get()).tokens) == 3
        with pytest.raises(DeadlineExceeded):
            await unread.get()

    asyncio.run(run())


def test_cancelled_requests_are_not_counted() -> None:
    async def run() -> None:
        budget = UnreadBudget()
        unread = Unread(budget, lambda: None)
        for _ in range(10):
            unread.put(output())
        unread.put(output(finish_reason="stop"))
        assert budget.total == unread.bytes > 0
        unread.clear()
        assert budget.total == 0

    asyncio.run(run())


def test_pending_outputs_are_merged() -> None:
    async def run() -> None:
        budget = UnreadBudget()
        unread = Unread(budget, lambda: None)
        first, last = Timing(first_token=1.0), Timing(first_token=1.0, total=3.0)
        entries = [TokenLogprob(token, -1.0) for token in (5, 6, 7)]
        unread.put(output(1, cached_tokens=3, timing=first, logprobs=entries[:1]))
        unread.put(output(1, logprobs=entries[1:2]))
        unread.put(output(1, logprobs=entries[2:], timing=last, finish_reason="length"))
        taken = await unread.get()
        assert taken == output(
            3, cached_tokens=3, timing=last, logprobs=entries, finish_reason="length"
        )
        assert budget.total == 0

    asyncio.run(run())


def test_a_failure_takes_no_text_away() -> None:
    async def run() -> None:
        unread = Unread(UnreadBudget(), lambda: None)
        unread.put(output(2))
        unread.put(output(0, finish_reason="error", error="gone"))
        assert len((await unread.get()).tokens) == 2
        assert (await unread.get()).error == "gone"

    asyncio.run(run())


def test_one_stream_takes_only_so_much_at_once() -> None:
    async def run() -> None:
        unread = Unread(UnreadBudget(), lambda: None)
        for _ in range(100):
            unread.put(output())
        lengths = [len((await unread.get()).tokens) for _ in range(4)]
        assert lengths == [32, 32, 32, 4]

    asyncio.run(run())


def test_a_reader_far_behind_lets_others_run() -> None:
    """Its client was slow, and reads again."""

    async def run() -> None:
        budget = UnreadBudget()
        behind, other = Unread(budget, lambda: None), Unread(budget, lambda: None)
        for _ in range(50 * 32):
            behind.put(output())
        read: list[str] = []

        async def read_all() -> None:
            for _ in range(50):
                await behind.get()
                read.append("behind")

        async def read_one() -> None:
            await other.get()
            read.append("other")

        tasks = [asyncio.create_task(read_one()), asyncio.create_task(read_all())]
        await asyncio.sleep(0)
        other.put(output())
        await asyncio.gather(*tasks)
        assert read.index("other") <= 2
        assert budget.total == 0

    asyncio.run(run())


def test_a_failed_stream_is_freed_without_a_garbage_collection() -> None:
    async def run() -> None:
        unread = Unread(UnreadBudget(), lambda: None)
        unread.fail(DeadlineExceeded("late"))
        with pytest.raises(DeadlineExceeded, match="late"):
            await unread.get()
        freed = weakref.ref(unread)
        del unread
        assert freed() is None

    gc.disable()
    try:
        asyncio.run(run())
    finally:
        gc.enable()
