"""LoRA adapters in memory: a subset of those that requests name, with least-recently-used eviction.

A separate thread reads, checks and packs adapters, one at a time, while steps continue; an adapter takes
its slot between two steps. A slot whose adapter is held by requests is never reassigned.
"""

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from galley.errors import GalleyError, ModelError, UnsupportedModel
from galley.formats.adapter import AdapterWeights, read_adapter
from galley.formats.adapter_files import adapter_digest
from galley.ops.executor import Executor
from galley.types import Adapter

_CHANGED: Final = "its files have changed since it was loaded; unload it and load it again"


@dataclass(slots=True)
class _Place:
    """An adapter that has a slot.

    Attributes:
        packed: future of the packed adapter for the executor; None once the executor has it.
        holders: number of requests that use the adapter.
        unwanted: whether it was unloaded, in which case it is dropped with its last holder.
    """

    adapter: Adapter
    slot: int
    packed: Future[object] | None
    holders: int = 0
    unwanted: bool = False


class AdapterPool:
    """The adapters that have a slot.

    Not thread-safe: the engine's thread calls it, between two steps.

    Attributes:
        loads, evictions: number of adapters that took a slot so far, and of those evicted to make room.
    """

    def __init__(
        self,
        executor: Executor,
        shapes: Mapping[str, tuple[int, ...]],
        *,
        slots: int,
        rank: int,
    ) -> None:
        """Create an empty pool.

        Args:
            executor: runs the model.
            shapes: shapes of the linear layers that adapters may modify.
            slots: maximum number of adapters in memory.
            rank: the highest rank of an adapter.
        """
        self._executor = executor
        self._shapes = shapes
        self._rank = rank
        self._free = list(reversed(range(slots)))
        self._places: dict[str, _Place] = {}  # by digest, the least recently used first
        self._failed: dict[str, GalleyError] = {}
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="galley-adapters")
        self.loads = self.evictions = 0

    def load(self, adapter: Adapter) -> Future[object]:
        """Read and check an adapter, which takes a slot if one is free or can be freed.

        Returns:
            A future that is done when the adapter is known to be usable; it raises ModelError if it is
            not.
        """
        place = self._places.get(adapter.digest) or self._begin(adapter)
        if place is None:
            return self._reader.submit(self._read, adapter)
        place.unwanted = False
        if place.packed is not None:
            return place.packed
        done: Future[object] = Future()
        done.set_result(None)
        return done

    def unload(self, adapter: Adapter) -> None:
        """Free the adapter's slot, now or after the last request that holds it."""
        self.settle()
        if place := self._places.get(adapter.digest):
            place.unwanted = True
            self._drop_unwanted(place)

    def acquire(self, adapter: Adapter) -> int | None:
        """Return the adapter's slot, reserved until :meth:`release`; None if it is not ready yet.

        A caller that tries requests in order of arrival calls :meth:`settle` once before the first: an
        adapter that got its slot between two calls would look unused to the requests behind the one that
        waits for it.

        Raises:
            ModelError: the adapter cannot be loaded.
        """
        if error := self._failed.pop(adapter.digest, None):
            raise error
        place = self._places.get(adapter.digest) or self._begin(adapter)
        if place is None or place.packed is not None:
            return None
        place.holders += 1
        self._places[adapter.digest] = self._places.pop(adapter.digest)
        return place.slot

    def release(self, adapter: Adapter) -> None:
        """Release one request's hold on the adapter."""
        place = self._places[adapter.digest]
        place.holders -= 1
        self._drop_unwanted(place)

    def has_place(self, adapter: Adapter) -> bool:
        """Return whether the adapter has a slot or is being loaded into one."""
        return adapter.digest in self._places

    def settle(self) -> None:
        """Give adapters that have been read in the meantime their slots."""
        for place in [p for p in self._places.values() if p.packed is not None]:
            assert place.packed is not None
            if not place.packed.done():
                continue
            try:
                self._executor.set_adapter(place.slot, place.packed.result())
            except GalleyError as error:
                self._failed[place.adapter.digest] = error
                self._drop(place)
                continue
            place.packed = None
            self.loads += 1
            self._drop_unwanted(place)

    @property
    def loaded(self) -> int:
        """Number of adapters in memory."""
        return len(self._places)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the adapters in memory, the least recently used first."""
        return tuple(place.adapter.name for place in self._places.values())

    @property
    def on_the_way(self) -> list[Future[object]]:
        """The futures of the adapters that are being read."""
        return [place.packed for place in self._places.values() if place.packed is not None]

    def close(self) -> None:
        """Stop the thread."""
        self._reader.shutdown(wait=False, cancel_futures=True)

    def _begin(self, adapter: Adapter) -> _Place | None:
        """Give the adapter a slot and read it; return None if requests hold all slots."""
        self._failed.pop(adapter.digest, None)
        if not self._free:
            idle = (p for p in self._places.values() if not p.holders and p.packed is None)
            if (least := next(idle, None)) is None:
                return None
            self._drop(least)
            self.evictions += 1
        packed = self._reader.submit(self._pack, adapter)
        place = _Place(adapter, self._free.pop(), packed)
        self._places[adapter.digest] = place
        return place

    def _read(self, adapter: Adapter) -> AdapterWeights:
        folder = Path(adapter.path)
        try:
            if adapter_digest(folder) != adapter.digest:
                raise UnsupportedModel(_CHANGED)
            return read_adapter(folder, self._shapes, self._rank)
        except ModelError as error:
            raise ModelError(f"adapter {adapter.name}: {error}") from error

    def _pack(self, adapter: Adapter) -> object:
        return self._executor.pack_adapter(self._read(adapter))

    def _drop_unwanted(self, place: _Place) -> None:
        if place.unwanted and not place.holders and place.packed is None:
            self._drop(place)

    def _drop(self, place: _Place) -> None:
        self._executor.set_adapter(place.slot, None)
        self._free.append(place.slot)
        del self._places[place.adapter.digest]
