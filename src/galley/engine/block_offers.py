"""Blocks that are sent to peers: held while they are copied, so that no step reuses their memory."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Final

from galley.engine.block_form import Block
from galley.engine.blocks import BlockPool

_MOST_HELD: Final = 4
"""Inverse of the share of the pool that is held for peers at most."""


class BlockOffers:
    """Passes requests for blocks from the threads that send them to the engine's thread, and answers back.

    Args:
        pool: the pool of blocks.
        known: all blocks in memory, by key.
        wake: has the engine call :meth:`serve` soon, also when it has no work.
    """

    def __init__(
        self, pool: BlockPool, known: Mapping[bytes, Block], wake: Callable[[], None]
    ) -> None:
        self._pool = pool
        self._known = known
        self.wake = wake
        self._wanted: deque[tuple[Sequence[Block], Future[list[int]]]] = deque()
        self._returned: deque[list[int]] = deque()
        self._held: list[list[int]] = []

    @contextmanager
    def holding(self, blocks: Sequence[Block], seconds: float) -> Iterator[list[int]]:
        """Hold the first of these blocks that are in memory, for the duration of the block of code.

        Called by other threads than the engine's.

        Args:
            blocks: the blocks, in order.
            seconds: how long to wait for the engine, which may be in the middle of a step.

        Yields:
            Their numbers in the pool, up to the first that is not in memory, or that would be too many.

        Raises:
            TimeoutError: the engine did not answer in time.
        """
        answer: Future[list[int]] = Future()
        self._wanted.append((blocks, answer))
        self.wake()
        try:
            held = answer.result(seconds)
        except TimeoutError:
            if not answer.cancel():  # the answer came just now
                self._give_back(answer.result())
            raise
        try:
            yield held
        finally:
            self._give_back(held)

    def _give_back(self, held: list[int]) -> None:
        if held:
            self._returned.append(held)
            self.wake()

    # The engine's thread, between two steps.

    @property
    def has_work(self) -> bool:
        """Whether :meth:`serve` would do anything."""
        return bool(self._wanted or self._returned)

    @property
    def is_holding(self) -> bool:
        """Whether blocks are held."""
        return bool(self._held)

    def held(self) -> list[list[int]]:
        """Return the blocks that are held, for each peer."""
        return self._held

    def serve(self) -> None:
        """Release what is returned, and hold what is wanted."""
        while self._returned:
            done = self._returned.popleft()
            self._held = [one for one in self._held if one is not done]
            for block in reversed(done):
                self._pool.release(block)
        while self._wanted:
            blocks, answer = self._wanted.popleft()
            if not answer.set_running_or_notify_cancel():
                continue
            found = self._find(blocks)
            if found:
                self._held.append(found)
            answer.set_result(found)

    def _find(self, blocks: Sequence[Block]) -> list[int]:
        """Add a reference to each of the first blocks that are in memory, and return their numbers."""
        room = self._pool.total // _MOST_HELD - sum(map(len, self._held))
        found: dict[int, None] = {}
        for wanted in blocks[: max(0, room)]:
            number = self._pool.find(wanted.key)
            # The chain has another root where keys are equal only by accident, or by intent.
            if number is None or self._known.get(wanted.key) != wanted or number in found:
                break
            self._pool.share(number)
            found[number] = None
        return list(found)
