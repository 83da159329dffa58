"""Models that are loaded on request, and unloaded when they have not been used for some time.

One model is loaded at a time. When the limit of loaded models is reached, or the next model does not fit
the memory, the least recently used one is unloaded; a model with requests never is.
"""

import asyncio
import logging
import re
import time
from collections.abc import Sequence
from typing import Final

from galley.errors import (
    DeadlineExceeded,
    Draining,
    EngineFailed,
    GalleyError,
    MemoryPressure,
    NotEnoughMemory,
)
from galley.gateway.lifecycle import RETRY_SECONDS
from galley.gateway.served import ServedModel

log = logging.getLogger("galley.server")

_FOLDERS: Final = re.compile(r"(?<![\w./-])/(?:[^/:;,'\"()\n]+/)+")
"""Matches the folders of a path in an error, up to the file's name."""

_LOOK_SECONDS: Final = 0.25


class OnRequest:
    """Loads and unloads the models of one server whose ``on_request`` is set."""

    def __init__(self, models: Sequence[ServedModel], *, most: int, timeout: float) -> None:
        """Create it; models are loaded by :meth:`ensure`.

        Args:
            models: the models that are loaded on request.
            most: the most models that may be loaded at a time.
            timeout: seconds that a load waits for room while all loaded models have requests.
        """
        self._models = models
        self._most = most
        self._timeout = timeout
        self._turn = asyncio.Lock()
        self._loads: dict[ServedModel, asyncio.Task[GalleyError | None]] = {}
        self._keeper: asyncio.Task[None] | None = None

    def is_loading(self, model: ServedModel) -> bool:
        """Return whether the model is being loaded for a request."""
        return model in self._loads

    async def ensure(self, model: ServedModel, deadline: float) -> None:
        """Wait until the model is loaded, and start the load unless one is in progress.

        Several callers may wait for the same load.

        Args:
            model: one of the models that are loaded on request.
            deadline: on the monotonic clock. The load continues beyond it.

        Raises:
            DeadlineExceeded: it was not loaded by then.
            MemoryPressure: there is no room for it in addition to the models that have requests.
            EngineFailed: it cannot be loaded; the error states why.
            Draining: the server is stopping.
        """
        model.kept.use()
        while not model.is_loaded:
            load = self._loads.get(model) or self._begin(model)
            left = max(0.0, deadline - time.monotonic())
            await asyncio.wait({load}, timeout=left)
            if not load.done():
                raise DeadlineExceeded(
                    f"{model.name} was not loaded within the request's time limit "
                    "(--request-timeout); loading continues for later requests"
                )
            if load.cancelled():
                raise Draining("The server is shutting down", retry_after=RETRY_SECONDS)
            if isinstance(error := load.result(), MemoryPressure):
                raise MemoryPressure(str(error), retry_after=error.retry_after)
            if error is not None:
                raise EngineFailed(f"{model.name} cannot be loaded: {_without_folders(str(error))}")
            model.kept.use()

    async def close(self) -> None:
        """Stop loading and unloading. The models stay as they are. Idempotent."""
        tasks = [*self._loads.values(), *([self._keeper] if self._keeper else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self, model: ServedModel) -> "asyncio.Task[GalleyError | None]":
        if self._keeper is None:
            self._keeper = asyncio.create_task(self._unload_unused())
        load = self._loads[model] = asyncio.create_task(self._load(model))
        load.add_done_callback(lambda _: self._loads.pop(model, None))
        return load

    async def _load(self, model: ServedModel) -> GalleyError | None:
        """Load a model when its turn comes; return the error, if there is one."""
        began = time.monotonic()
        try:
            async with self._turn:
                until = time.monotonic() + self._timeout
                while len(self._loaded()) >= self._most:
                    await self._make_room(model, until)
                while not await self._fits(model):
                    await self._make_room(model, until)
        except GalleyError as error:
            log.error("%s cannot be loaded: %s", model.name, error)
            return error
        except MemoryError:
            return EngineFailed("out of memory")
        model.kept.use()
        log.info("%s was loaded on request in %.2f s", model.name, model.kept.used - began)
        return None

    async def _fits(self, model: ServedModel) -> bool:
        """Load the model; return False if it does not fit in memory and others could be unloaded."""
        try:
            await model.start()
        except NotEnoughMemory:
            if not self._loaded():
                raise
            return False
        return True

    async def _make_room(self, model: ServedModel, until: float) -> None:
        """Unload the least recently used model without requests, waiting until there is one.

        Raises:
            MemoryPressure: every model had requests until the time ``until``.
        """
        while time.monotonic() < until:
            idle = [m for m in self._loaded() if not m.busy and m.kept.may_be_unloaded]
            if idle:
                least = min(idle, key=lambda m: m.kept.used)
                log.info("unloading %s to make room for %s", least.name, model.name)
                await least.unload()
                return
            await asyncio.sleep(_LOOK_SECONDS)
        names = ", ".join(m.name for m in self._loaded())
        raise MemoryPressure(
            f"There is no room for {model.name}, because other models have requests: {names} "
            "(--max-loaded-models, or more memory)",
            retry_after=RETRY_SECONDS,
        )

    async def _unload_unused(self) -> None:
        """Unload, in an endless loop, models that were unused long enough, or that failed."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            for model in self._loaded():
                if model.busy:
                    model.kept.use()
                elif _is_over(model) and not self._turn.locked():
                    # Load nothing in the meantime, since this model may be the next one requested.
                    async with self._turn:
                        await model.unload()
                    log.info("unloaded %s", model.name)

    def _loaded(self) -> list[ServedModel]:
        return [model for model in self._models if model.is_loaded]


def _is_over(model: ServedModel) -> bool:
    """Return whether a loaded model was unused for as long as it is kept, or its engine has failed."""
    return model.state == "failed" or model.kept.is_over


def _without_folders(message: str) -> str:
    """Return an error for a client, with file names only; the server's log has their folders."""
    return _FOLDERS.sub("", message)
