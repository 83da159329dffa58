"""Encoder outputs of speech models, which the decoder cross-attends to, in blocks of the KV pool.

An encoder output is computed once for all requests over the same encoder input, and the latest outputs
stay when no request needs them: a retry at another temperature, or a request for word timestamps, may
soon need one again. Unlike prefixes, audio does not recur much later, and reused blocks cost no new
memory.
"""

from array import array
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from typing import Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from galley.engine.blocks import BlockPool
from galley.types import blocks_for
from galley.types.audio import EncoderInput
from galley.types.block_hashes import encoder_block_hashes, encoder_input_hash, salt_hash

KEPT_ENCODER_OUTPUTS: Final = 16
"""Number of encoder outputs kept after their last request has ended."""

MAX_FEATURE: Final = 1e4
"""Bound above any log-mel value; larger ones, or NaN, could leave infinities in the KV cache."""


@dataclass(frozen=True, slots=True)
class EncoderFeatures:
    """A request's encoder input as the engine holds it.

    Attributes:
        features: [frames, mels].
        rows: number of positions of the encoder output, and so of the KV cache.
        root: hash of the input and the tenant's salt.
    """

    features: npt.NDArray[np.float32]
    rows: int
    root: bytes

    @classmethod
    def of(cls, given: EncoderInput, rows: int, salt: str) -> Self:
        """Return the features of an input; ``rows`` is the number of rows that the encoder makes of it."""
        features = np.frombuffer(given.data, dtype="<f4").reshape(given.frames, given.mels)
        digest = blake2b(given.data, digest_size=16).digest()
        return cls(features, rows, encoder_input_hash(salt_hash(salt), digest))

    @property
    def usable(self) -> bool:
        """Whether all features are finite and of plausible size."""
        return bool((np.abs(self.features) <= MAX_FEATURE).all())


class EncoderClaim(NamedTuple):
    """The blocks that a request's encoder output would take: existing ``blocks``, or ``fresh`` new ones.

    ``keys`` find the blocks of the output whose hash is ``root``.
    """

    root: bytes
    keys: list[bytes]
    blocks: list[int]
    fresh: int


@dataclass(slots=True)
class _EncoderOutput:
    """An encoder output and its uses.

    ``users`` counts open tables; ``texts`` are the keys of the text blocks, over this output, of a
    finished request.
    """

    keys: list[bytes]
    users: int = 0
    texts: list[bytes] = field(default_factory=list)


class EncoderCache:
    """Tracks which blocks hold which encoder output.

    Args:
        pool: the pool, shared with the token blocks.
        sharing: whether requests share encoder outputs.
        kept: number of encoder outputs that stay when no request needs them.
    """

    def __init__(self, pool: BlockPool, *, sharing: bool, kept: int = KEPT_ENCODER_OUTPUTS) -> None:
        self._pool = pool
        self._sharing = sharing
        self._kept = kept
        self._tables: dict[str, tuple[bytes, array[int]]] = {}
        self._outputs: OrderedDict[bytes, _EncoderOutput] = OrderedDict()  # the latest used last

    def claim(self, features: EncoderFeatures) -> EncoderClaim:
        """Return what opening a table for ``features`` would take; an output is found whole or not at all.

        Its blocks are held together and evicted from the last one backwards, so if one is gone, no
        request holds the others: they are freed.
        """
        root = features.root
        output = self._outputs.get(root)
        keys = output.keys if output else _keys(root, blocks_for(features.rows))
        found = [self._pool.find(key) for key in keys] if self._sharing else []
        blocks = [block for block in found if block is not None]
        if len(blocks) == len(keys):
            return EncoderClaim(root, keys, blocks, 0)
        self._pool.forget(keys)
        return EncoderClaim(root, keys, [], len(keys))

    def open(self, request_id: str, claim: EncoderClaim) -> None:
        """Create the request's table, whose fresh blocks are filled in this step.

        ``claim.blocks`` are already referenced.
        """
        table = array("q", claim.blocks)
        for key in claim.keys[: claim.fresh]:
            table.append(self._pool.take())
            if self._sharing:
                self._pool.register(key, table[-1])
        self._tables[request_id] = claim.root, table
        self._outputs.setdefault(claim.root, _EncoderOutput(claim.keys)).users += 1

    def table(self, request_id: str) -> "array[int]":
        """Return the blocks of the request's encoder output, in order."""
        return self._tables[request_id][1]

    def close(self, request_id: str) -> None:
        """Release the table; the blocks stay cached."""
        root, table = self._tables.pop(request_id)
        for block in reversed(table):
            self._pool.release(block)
        self._outputs[root].users -= 1
        self._outputs.move_to_end(root)
        self._trim()

    def forget(self, features: EncoderFeatures, text_keys: list[bytes]) -> None:
        """Record the end of a request over these features; ``text_keys`` are its text blocks' keys."""
        output = self._outputs.get(features.root)
        if output is not None:
            output.texts = max(output.texts, text_keys, key=len)

    def _trim(self) -> None:
        unused = [root for root, output in self._outputs.items() if not output.users]
        for root in unused[: max(0, len(unused) - self._kept)]:
            over = self._outputs.pop(root)
            self._pool.forget([*over.keys, *over.texts])

    def held(self) -> "Iterable[array[int]]":
        """Return all tables."""
        return [table for _, table in self._tables.values()]


@lru_cache(maxsize=64)
def _keys(root: bytes, blocks: int) -> list[bytes]:
    """Return the keys of an encoder output's blocks; a waiting request needs them in each step."""
    return encoder_block_hashes(root, blocks)
