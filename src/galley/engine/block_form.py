"""The form in which a block of keys and values leaves memory: in files, and on its way to a peer.

    preamble | keys and values | SHA-256

The preamble says what the block belongs to: the model's digest, the layout, the type of keys and values,
the hash of the tenant's salt and adapter, and the hash of the tokens. A reader knows the preamble that it
expects, byte for byte, and the checksum covers everything; whatever differs is a miss.
"""

import hashlib
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np

from galley.ops.executor import Bytes
from galley.types import BLOCK_TOKENS

_MAGIC: Final = b"galleykv"
_CHECKSUM_BYTES: Final = hashlib.sha256().digest_size


class Block(NamedTuple):
    """The content of a block.

    Attributes:
        key: hash of its tokens and of all before them, and the KV group.
        group: the KV group.
        root: the hash with which its chain begins: the tenant's salt and the adapter.
    """

    key: bytes
    group: int
    root: bytes


class _Preamble(msgspec.Struct, frozen=True):
    model: str
    kv_dtype: str
    block_tokens: int
    group: int
    bytes: int
    root: str
    key: str


class BlockForm:
    """Puts the blocks of one model into this form, and checks them.

    Args:
        model: digest of everything that keys and values depend on, other than tokens, salt and adapter.
        kv_dtype: type of keys and values.
        block_bytes: bytes of a block of each KV group.
    """

    def __init__(self, model: bytes, *, kv_dtype: str, block_bytes: Sequence[int]) -> None:
        self.model = model.hex()
        self.block_bytes = tuple(block_bytes)
        self._kv_dtype = kv_dtype

    def size(self, block: Block) -> int:
        """Return the bytes that a block takes in this form."""
        return len(self._preamble(block)) + self.block_bytes[block.group] + _CHECKSUM_BYTES

    def parts(self, block: Block, data: Bytes) -> tuple[bytes, memoryview, bytes]:
        """Return the form of a block as three parts, in order."""
        preamble = self._preamble(block)
        checksum = hashlib.sha256(preamble)
        checksum.update(data.data)
        return preamble, data.data, checksum.digest()

    def content(self, block: Block, found: "Bytes | bytearray | memoryview") -> Bytes | None:
        """Return the keys and values of exactly this block, or None if anything is not as expected."""
        whole = np.frombuffer(found, dtype=np.uint8)
        preamble = self._preamble(block)
        end = len(preamble) + self.block_bytes[block.group]
        if len(whole) != end + _CHECKSUM_BYTES:
            return None
        if whole[: len(preamble)].tobytes() != preamble:
            return None
        if hashlib.sha256(whole[:end].data).digest() != whole[end:].tobytes():
            return None
        return whole[len(preamble) : end]

    def _preamble(self, block: Block) -> bytes:
        header = msgspec.json.encode(
            _Preamble(
                model=self.model,
                kv_dtype=self._kv_dtype,
                block_tokens=BLOCK_TOKENS,
                group=block.group,
                bytes=self.block_bytes[block.group],
                root=block.root.hex(),
                key=block.key.hex(),
            )
        )
        return _MAGIC + len(header).to_bytes(4, "little") + header
