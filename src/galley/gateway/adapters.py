"""The LoRA adapters of one served model: names, folders, and their identities in the engine.

An engine keeps some of them in memory. Each request carries its adapter and the adapter's folder, so an
engine that replaces a dead one needs no further information about them.
"""

import asyncio
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from galley.errors import Conflict, UnknownModel
from galley.formats.adapter_files import adapter_digest
from galley.gateway.submitter import Submitter
from galley.types import Adapter


class ServedAdapter(NamedTuple):
    """An adapter that requests may name.

    Attributes:
        adapter: the adapter as it is passed to the engine.
        created: Unix time at which it was loaded.
    """

    adapter: Adapter
    created: int


class ServedAdapters:
    """A model's adapters by name. All are checked when the model is loaded, and when it is reloaded."""

    def __init__(self, paths: Mapping[str, str]) -> None:
        """Create it with the adapters of the settings; ``paths``: name -> folder."""
        self._paths = dict(paths)
        self._served: dict[str, ServedAdapter] = {}
        self._changing = asyncio.Lock()

    def __len__(self) -> int:
        return len(self._paths)

    def __contains__(self, name: object) -> bool:
        return name in self._paths

    def __iter__(self) -> Iterator[ServedAdapter]:
        return iter(self._served.values())

    def named(self, name: str) -> Adapter:
        """Return the adapter of that name, of a loaded model. Raises UnknownModel."""
        if name not in self._served:
            raise UnknownModel(f"Adapter {name[:100]!r} does not exist")
        return self._served[name].adapter

    async def begin(self, engine: Submitter) -> Mapping[str, ServedAdapter]:
        """Have an engine check all adapters; return the argument of :meth:`serve`.

        Raises:
            ModelError: an adapter cannot be used.
            SettingsError: the model takes no adapters.
        """
        async with self._changing:
            return {name: await _load(engine, name, path) for name, path in self._paths.items()}

    def serve(self, loaded: Mapping[str, ServedAdapter]) -> None:
        """Serve these adapters from now on, except those that have been unloaded meanwhile."""
        self._served |= {name: one for name, one in loaded.items() if name in self._paths}

    async def load(self, engine: Submitter, name: str, path: str) -> ServedAdapter:
        """Load one more adapter and return it.

        Raises:
            Conflict: the name is taken.
            ModelError: the adapter cannot be used.
            SettingsError: the model takes no adapters.
            Unavailable: no engine is available to check it.
        """
        async with self._changing:
            if name in self._paths:
                raise Conflict(f"adapter {name!r} exists already; unload it first")
            loaded = self._served[name] = await _load(engine, name, path)
            self._paths[name] = path
        return loaded

    async def unload(self, engine: Submitter | None, name: str) -> None:
        """Unload an adapter for new requests; running requests keep it. Raises UnknownModel."""
        async with self._changing:
            if name not in self._paths:
                raise UnknownModel(f"Adapter {name[:100]!r} does not exist")
            del self._paths[name]
            served = self._served.pop(name, None)
        if served is not None and engine is not None:
            engine.unload_adapter(served.adapter)


async def _load(engine: Submitter, name: str, path: str) -> ServedAdapter:
    digest = await asyncio.to_thread(adapter_digest, Path(path))
    adapter = Adapter(name, path, digest)
    await engine.load_adapter(adapter)
    return ServedAdapter(adapter, int(time.time()))
