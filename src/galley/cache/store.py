"""Where answers are stored: the interface of stores, and what selects entries to list or remove."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from galley.cache.entry import Entry

OVERHEAD_BYTES: Final = 400
"""Estimated size of what a store keeps about an entry."""


class StoreError(Exception):
    """The store cannot be used now; the message gives the reason."""


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """The limits of a store; the least recently used entries are evicted.

    Attributes:
        bytes: size of all entries.
        entries: number of entries.
        seconds: age at which an entry ends.
        questions: number of the latest entries with a question that :meth:`Store.follow` returns.
    """

    bytes: int
    entries: int
    seconds: float
    questions: int = 50_000


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Some of the entries: those that match each field that is not None.

    Attributes:
        keys: beginnings of keys, in hexadecimal.
        model, tenant, tag, kind: as in :class:`Entry`.
    """

    keys: tuple[str, ...] | None = None
    model: str | None = None
    tenant: str | None = None
    tag: str | None = None
    kind: str | None = None

    def has(self, entry: Entry) -> bool:
        """Return whether the entry is one of them."""
        name = entry.key.hex()
        if self.keys is not None and not any(name.startswith(key) for key in self.keys):
            return False
        fields = ("model", "tenant", "tag", "kind")
        wanted = [(getattr(self, field), getattr(entry, field)) for field in fields]
        return all(want is None or want == have for want, have in wanted)


class Kept(NamedTuple):
    """An entry as it is listed; ``used`` is a Unix time, ``hits`` counts since it was stored."""

    entry: Entry
    size: int
    used: float
    hits: int


class Size(NamedTuple):
    """The size of a store: its entries and their bytes."""

    entries: int
    bytes: int


class Store(Protocol):
    """Keeps entries. Used from one event loop."""

    async def get(self, keys: Sequence[bytes]) -> list[Entry | None]:
        """Return the entry of each key that is stored, has not ended and is undamaged.

        Raises:
            StoreError: the store cannot be used now.
        """

    async def put(self, entry: Entry) -> None:
        """Store an entry in place of any of the same key; return when :meth:`get` finds it.

        Raises:
            StoreError: the store cannot be used now, or has no room.
        """

    async def follow(self, place: str, most: int) -> tuple[list[Entry], str, bool]:
        """Return entries with a question in the order in which they were stored, by any process.

        Args:
            place: what the last call returned; "": from the oldest of the latest ``Bounds.questions`` on.
            most: number of entries to read.

        Returns:
            The entries, those that have been removed left out; the place after them; and whether there
            may be more.

        Raises:
            StoreError: the store cannot be used now.
        """

    async def find(self, selection: Selection, most: int) -> list[Kept]:
        """Return at most ``most`` entries, the last used first. Raises StoreError."""

    async def remove(self, selection: Selection) -> int:
        """Remove entries and return their number. Raises StoreError."""

    async def size(self) -> Size:
        """Return what is stored. Raises StoreError."""

    async def close(self) -> None:
        """Write what is not written yet, and close the store. Idempotent."""
