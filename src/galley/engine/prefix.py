"""The prefix cache: a chain of hashes -> block ids, least recently used first out.

A block's hash covers its own 16 tokens, everything before them, the audio they belong to and the tenant's
salt, so equal hashes mean equal keys and values. Only full blocks have one, and those of encoded audio.
"""

from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b

import numpy as np

from galley.types import BLOCK_TOKENS


def root_hash(salt: str) -> bytes:
    """Where a tenant's chains begin."""
    return blake2b(
        salt.encode(errors="surrogatepass"), digest_size=16, person=b"galley-kv"
    ).digest()


def window_hash(root: bytes, digest: bytes) -> bytes:
    """Where the chains of requests over one window of audio begin, whose keys and values depend on it."""
    return blake2b(root + digest, digest_size=16, person=b"galley-window").digest()


def window_links(window: bytes, blocks: int) -> list[bytes]:
    """The hashes of the blocks that hold what an encoder made of the window."""
    return [
        blake2b(window + i.to_bytes(8, "little"), digest_size=16, person=b"galley-cross").digest()
        for i in range(blocks)
    ]


def extend_chain(parent: bytes, tokens: Sequence[int]) -> bytes:
    """The hash of a full block after ``parent``."""
    assert len(tokens) == BLOCK_TOKENS
    return blake2b(parent + np.array(tokens, dtype="<i8").tobytes(), digest_size=16).digest()


class PrefixCache:
    """Which block holds which hash, and which of them are parked (unreferenced, evictable)."""

    def __init__(self) -> None:
        self._block_of: dict[bytes, int] = {}
        self._hash_of: dict[int, bytes] = {}
        self._parked: OrderedDict[int, None] = OrderedDict()

    @property
    def parked(self) -> int:
        """Blocks kept although nobody refers to them."""
        return len(self._parked)

    def lookup(self, chain: Sequence[bytes]) -> list[int]:
        """Blocks of the longest known beginning of ``chain``."""
        blocks: list[int] = []
        for link in chain:
            block = self._block_of.get(link)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def is_parked(self, block: int) -> bool:
        """Unreferenced and kept."""
        return block in self._parked

    def register(self, link: bytes, block: int) -> None:
        """The block is full and computed. A second block with the same content stays unregistered."""
        if link not in self._block_of:
            self._block_of[link] = block
            self._hash_of[block] = link

    def park(self, block: int) -> bool:
        """Keep a block whose last reference is gone; False if its content is not registered."""
        if block not in self._hash_of:
            return False
        self._parked[block] = None
        return True

    def unpark(self, block: int) -> None:
        """The block is referenced again."""
        self._parked.pop(block, None)

    def drop(self, block: int) -> None:
        """Forget a parked block."""
        del self._parked[block]
        del self._block_of[self._hash_of.pop(block)]

    def clear(self) -> list[int]:
        """Forget everything; returns the blocks that were parked."""
        parked = list(self._parked)
        self._block_of.clear()
        self._hash_of.clear()
        self._parked.clear()
        return parked

    def evict(self) -> int:
        """Forget the least recently parked block and return it. There must be one."""
        block = next(iter(self._parked))
        self.drop(block)
        return block
