"""The interface of an object that is notified of the blocks that other requests can find."""

from collections.abc import Sequence
from typing import Protocol


class BlockWatcher(Protocol):
    """The interface of an object that is notified of the blocks that other requests can find."""

    def registered(self, key: bytes, block: int, group: int, root: bytes) -> None:
        """Take note of a block of a KV group that is full once this step has run.

        ``root`` is the hash with which its chain begins.
        """

    def kept(self, keys: Sequence[bytes], seconds: float) -> None:
        """Take note of blocks that are to be kept for so long."""

    def evicted(self, key: bytes, block: int) -> None:
        """Take note of a block whose memory is about to be reused."""

    def forgotten(self) -> None:
        """Take note that no block can be found any longer."""
