"""Hashes of block contents: equal hashes mean equal keys and values.

The hash of a full block covers its 16 tokens, all tokens before them, the encoder input that they belong
to, the LoRA adapter and the tenant's salt. The hashes of one sequence form a chain: each is derived from
the one before it.
"""

import sys
from array import array
from collections.abc import Sequence
from hashlib import blake2b

import msgspec

from galley.types.sizes import BLOCK_TOKENS


class BlockContent(msgspec.Struct, frozen=True, array_like=True):
    """The tokens of a full block.

    Attributes:
        key: hash of the block.
        parent: of the block before it; None: it is the first.
        tokens: as many as a block has.
    """

    key: bytes
    parent: bytes | None
    tokens: list[int]


def salt_hash(salt: str) -> bytes:
    """Return the hash with which a tenant's chains begin."""
    return blake2b(
        salt.encode(errors="surrogatepass"), digest_size=16, person=b"galley-kv"
    ).digest()


def adapter_hash(root: bytes, digest: str) -> bytes:
    """Return the start of the chains under one LoRA adapter, on which keys and values depend."""
    return blake2b(root + digest.encode(), digest_size=16, person=b"galley-adapter").digest()


def encoder_input_hash(root: bytes, digest: bytes) -> bytes:
    """Return the start of the chains over one encoder input, on which keys and values depend."""
    return blake2b(root + digest, digest_size=16, person=b"galley-encoder").digest()


def encoder_block_hashes(root: bytes, blocks: int) -> list[bytes]:
    """Return the hashes of the blocks of one encoder output; ``root`` is its :func:`encoder_input_hash`."""
    return [
        blake2b(root + i.to_bytes(8, "little"), digest_size=16, person=b"galley-cross").digest()
        for i in range(blocks)
    ]


def extend_hash(parent: bytes, tokens: Sequence[int]) -> bytes:
    """Return the hash of the full block that follows ``parent``."""
    assert len(tokens) == BLOCK_TOKENS
    numbers = array("q", tokens)
    if sys.byteorder == "big":
        numbers.byteswap()
    return blake2b(parent + numbers.tobytes(), digest_size=16).digest()


class HashChain:
    """The block hashes of one sequence, computed on demand. It outlives preemptions.

    ``root`` is the hash with which it begins.
    """

    def __init__(self, root: bytes) -> None:
        self.root = root
        self.hashes: list[bytes] = []

    def upto(self, tokens: Sequence[int], blocks: int) -> list[bytes]:
        """Return at least the hashes of the first ``blocks`` blocks of ``tokens``, all of them full."""
        while len(self.hashes) < blocks:
            start = len(self.hashes) * BLOCK_TOKENS
            parent = self.hashes[-1] if self.hashes else self.root
            self.hashes.append(extend_hash(parent, tokens[start : start + BLOCK_TOKENS]))
        return self.hashes
