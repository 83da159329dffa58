"""Publishes what the prefix cache holds over ZeroMQ, in the form of vLLM's KV events.

Each message has three parts: the topic, a number that counts messages (8 bytes, big-endian), and a msgpack
array of the time and the events. Routers outside, such as llm-d's precise prefix scorer or Dynamo's, index
blocks by their tokens.
"""

import importlib
import itertools
import logging
import time
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, Final, Self

import msgspec

from galley.errors import SettingsError, pip_install
from galley.service.frames import Blocks
from galley.types import BLOCK_TOKENS
from galley.types.block_hashes import BlockContent

log = logging.getLogger(__name__)

_NUMBER_BYTES: Final = 8


class _Event(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base of the events; the name of the class is the first item of the array."""


class BlockStored(_Event, frozen=True, array_like=True, tag=True):
    """Blocks that follow each other can be found.

    Attributes:
        block_hashes: numbers of the blocks.
        parent_block_hash: of the block before the first; None: it begins a prompt.
        token_ids: of all blocks.
        block_size: tokens of a block.
        lora_id, lora_name: None: no adapter.
        medium: None: where the engine computes.
    """

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None


class BlockRemoved(_Event, frozen=True, array_like=True, tag=True):
    """Blocks cannot be found any more; ``medium`` as in :class:`BlockStored`."""

    block_hashes: list[int]
    medium: str | None = None


class AllBlocksCleared(_Event, frozen=True, array_like=True, tag=True):
    """No block can be found any more."""


Event = BlockStored | BlockRemoved | AllBlocksCleared


class EventBatch(msgspec.Struct, frozen=True, array_like=True):
    """The events of one message; ``ts`` is in seconds since 1970."""

    ts: float
    events: list[Event]


class KvEvents:
    """Publishes the changes of one model's prefix cache. For use in one thread.

    Subscribers that read too slowly lose messages, and see a gap in the numbers; nothing waits for them.
    Only blocks whose contents are known are published, and only after those before them.

    Args:
        socket: a PUB socket of ZeroMQ, bound.
        topic: the first part of each message.
    """

    def __init__(self, socket: Any, topic: str) -> None:
        self._socket = socket
        self._topic = topic.encode()
        self._numbers = itertools.count()
        self._published: set[bytes] = set()

    @classmethod
    def bind(cls, endpoint: str, topic: str) -> Self:
        """Bind a socket.

        Raises:
            SettingsError: pyzmq is not installed, or the endpoint cannot be bound.
        """
        try:
            zmq = importlib.import_module("zmq")
        except ImportError as error:
            raise SettingsError(
                f"kv_events needs pyzmq, which cannot be imported ({error}): {pip_install('kv-events')}"
            ) from error
        socket = zmq.Context.instance().socket(zmq.PUB)
        socket.linger = 0
        try:
            socket.bind(endpoint)
        except zmq.ZMQError as error:
            socket.close()
            raise SettingsError(f"kv_events: {endpoint} cannot be bound: {error}") from error
        log.info("KV events at %s, topic %s", endpoint, topic)
        return cls(socket, topic)

    def changed(self, blocks: Blocks) -> None:
        """Publish a change."""
        events = list(self.events(blocks))
        if events:
            self._send(EventBatch(time.time(), events))

    def events(self, blocks: Blocks) -> Iterator[Event]:
        """Yield the events of a change, and take them as published."""
        gone = [key for key in blocks.removed if key in self._published]
        self._published.difference_update(gone)
        if gone and not self._published:
            yield AllBlocksCleared()
        elif gone:
            yield BlockRemoved([_number(key) for key in gone])
        for run in _runs(self._added(blocks.contents)):
            yield BlockStored(
                block_hashes=[_number(content.key) for content in run],
                parent_block_hash=None if run[0].parent is None else _number(run[0].parent),
                token_ids=[token for content in run for token in content.tokens],
                block_size=BLOCK_TOKENS,
            )

    def _added(self, contents: Iterable[BlockContent]) -> Iterator[BlockContent]:
        """Yield the blocks that a subscriber can place: the first of a prompt, or after a published one."""
        for content in contents:
            if content.parent is None or content.parent in self._published:
                self._published.add(content.key)
                yield content

    def _send(self, batch: EventBatch) -> None:
        number = next(self._numbers).to_bytes(_NUMBER_BYTES, "big")
        # A PUB socket drops what a subscriber has no room for, and never blocks.
        self._socket.send_multipart([self._topic, number, msgspec.msgpack.encode(batch)])


@cache
def kv_events(endpoint: str, topic: str) -> KvEvents:
    """Return this process's publisher at an endpoint; a model that is loaded again continues to use it.

    Raises:
        SettingsError: see :meth:`KvEvents.bind`.
    """
    return KvEvents.bind(endpoint, topic)


def _runs(contents: Iterable[BlockContent]) -> Iterator[list[BlockContent]]:
    """Yield the blocks in runs in which each one follows the one before."""
    run: list[BlockContent] = []
    for content in contents:
        if run and content.parent != run[-1].key:
            yield run
            run = []
        run.append(content)
    if run:
        yield run


def _number(key: bytes) -> int:
    """Return a block's hash as 64 bits, as vLLM publishes them by default."""
    return int.from_bytes(key[-8:], "big")
