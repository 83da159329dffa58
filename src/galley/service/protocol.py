"""What a worker, a supervisor and :mod:`galley.llm.local` need of an engine, whatever runs inside it.

An engine is found by the name that the setting ``engine`` has: Galley's own is ``native``. An installed
package adds one with an entry point in the group ``galley.engines``: its name there, and the
:class:`EngineLoader` that it stands for, as ``module:function``. A loader is imported by the process that
loads a model, never by the server.
"""

import importlib
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final, Protocol, cast, runtime_checkable

from galley.errors import SettingsError
from galley.settings.engine import NATIVE_ENGINE, EngineSettings
from galley.types import Adapter, EngineRequest, OnPhase, Output
from galley.types.model_info import EngineStats, ModelInfo, OnLedger

ENTRY_POINTS: Final = "galley.engines"
"""The entry-point group in which installed packages name their loaders."""

ENGINES: Final[Mapping[str, str]] = {NATIVE_ENGINE: "galley.engine.loaders:load"}
"""Name -> ``module:function`` of Galley's own loaders."""


class Engine(Protocol):
    """A loaded model that requests are added to. One thread calls it; it need not be thread-safe.

    Requests come from :mod:`galley.service.requests`, ``speech_requests`` or ``vector_requests``, so their
    payloads are of the kinds that :attr:`info` names as tasks, and token ids, lengths and audio fit it. An
    engine that cannot honour one answers it with an Output whose ``finish_reason`` is "error".

    What kills the process is retried in a new one (see ``quarantine.py``): a resubmitted request brings the
    tokens delivered so far in its payload's ``output``, and only later ones are expected.
    """

    @property
    def info(self) -> ModelInfo:
        """What the model is and does; constant."""

    @property
    def stats(self) -> EngineStats:
        """Counters and gauges as of now."""

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything: some request is unfinished, or has an Output to come."""

    @property
    def is_live(self) -> bool:
        """Whether an unfinished request is of live audio, which other engines here let go first."""

    def add(self, request: EngineRequest) -> None:
        """Queue a request. Its id is not that of an unfinished one."""

    def abort(self, request_ids: Iterable[str]) -> None:
        """Forget requests: no further Output comes of them. Ids of finished requests are ignored."""

    def step(self) -> list[Output]:
        """Work for some milliseconds; what requests gained, at most one Output for each.

        Called while :attr:`has_work` is true, so it may wait until there is something to return, but not
        long: requests and aborts are taken in between two steps. The last Output of a request has a
        ``finish_reason``.
        """

    def close(self) -> None:
        """Free what the engine holds beyond memory. The last call; requests may be unfinished."""


@runtime_checkable
class AdapterEngine(Engine, Protocol):
    """An engine that takes LoRA adapters, as :attr:`ModelInfo.adapters` says.

    A request brings its own (``EngineRequest.adapter``), so an engine needs to be told of none; one that it
    cannot load is the request's error.
    """

    def load_adapter(self, adapter: Adapter) -> Future[object]:
        """Read and check an adapter while steps go on. The future raises GalleyError if it is of no use."""

    def unload_adapter(self, adapter: Adapter) -> None:
        """Free what it takes, after the last request that has it."""


class EngineLoader(Protocol):
    """Makes the engine for the checkpoint in a folder."""

    def __call__(
        self,
        settings: EngineSettings,
        folder: Path,
        on_phase: OnPhase | None = None,
        pause: Callable[[], None] | None = None,
        on_ledger: OnLedger | None = None,
    ) -> Engine:
        """Load a model.

        Args:
            settings: sizes and choices; ``settings.options_as`` reads the engine's own options.
            folder: the checkpoint.
            on_phase: told the name and the seconds of each start-up phase as it ends.
            pause: to be called often within a step that computes on the CPU: lets another engine have the
                cores in between. None where this engine has them alone.
            on_ledger: told what the model will take of the memory, before its weights are loaded, by an
                engine that knows.

        Raises:
            ModelError, SettingsError: the checkpoint or the settings cannot be used.
            EngineFailed: the engine cannot start; the message says what to do.
        """


def find_loader(name: str) -> EngineLoader:
    """Import the loader of that name.

    Raises:
        SettingsError: there is none, or it cannot be imported.
    """
    target = ENGINES.get(name)
    if target is not None:
        module, _, function = target.partition(":")
        return cast(EngineLoader, getattr(importlib.import_module(module), function))
    from importlib.metadata import entry_points  # not needed for Galley's own, which starts sooner

    installed = entry_points(group=ENTRY_POINTS)
    found = next((entry for entry in installed if entry.name == name), None)
    if found is None:
        known = ", ".join([*ENGINES, *sorted(entry.name for entry in installed)])
        raise SettingsError(
            f"engine {name!r} is unknown; known: {known}. A package adds one with an entry point in the "
            f"group {ENTRY_POINTS}"
        )
    try:
        loader: Any = found.load()
    except Exception as error:  # a package of others may raise anything
        raise SettingsError(
            f"engine {name!r} ({found.value}) cannot be imported: {error}"
        ) from error
    return cast(EngineLoader, loader)
