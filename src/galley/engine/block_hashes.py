"""Hashes of block contents: equal hashes mean equal keys and values.

The hash of a full block covers its own 16 tokens, all tokens before them, the encoder input that they
belong to, the LoRA adapter and the tenant's salt. Hashes of one sequence form a chain: each is made of the
one before.
"""

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np

from galley.types import BLOCK_TOKENS


def salt_hash(salt: str) -> bytes:
    """Where a tenant's chains begin."""
    return blake2b(
        salt.encode(errors="surrogatepass"), digest_size=16, person=b"galley-kv"
    ).digest()


def adapter_hash(root: bytes, digest: str) -> bytes:
    """Where the chains under one LoRA adapter begin: keys and values depend on that adapter."""
    return blake2b(root + digest.encode(), digest_size=16, person=b"galley-adapter").digest()


def encoder_input_hash(root: bytes, digest: bytes) -> bytes:
    """Where the chains over one encoder input begin: keys and values of the tokens depend on that input."""
    return blake2b(root + digest, digest_size=16, person=b"galley-encoder").digest()


def encoder_block_hashes(root: bytes, blocks: int) -> list[bytes]:
    """The hashes of the blocks that hold one encoder output; ``root`` is the :func:`encoder_input_hash`."""
    return [
        blake2b(root + i.to_bytes(8, "little"), digest_size=16, person=b"galley-cross").digest()
        for i in range(blocks)
    ]


def extend_hash(parent: bytes, tokens: Sequence[int]) -> bytes:
    """The hash of the full block that follows ``parent``."""
    assert len(tokens) == BLOCK_TOKENS
    return blake2b(parent + np.array(tokens, dtype="<i8").tobytes(), digest_size=16).digest()


class HashChain:
    """The block hashes of one sequence, made as they are asked for. Outlives preemptions."""

    def __init__(self, root: bytes) -> None:
        self._root = root
        self.hashes: list[bytes] = []

    def upto(self, tokens: Sequence[int], blocks: int) -> list[bytes]:
        """At least the hashes of the first ``blocks`` blocks of ``tokens``, all of which are full."""
        while len(self.hashes) < blocks:
            start = len(self.hashes) * BLOCK_TOKENS
            parent = self.hashes[-1] if self.hashes else self._root
            self.hashes.append(extend_hash(parent, tokens[start : start + BLOCK_TOKENS]))
        return self.hashes
