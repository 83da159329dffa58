"""The interface of an engine to a worker, a supervisor and :mod:`galley.llm.local`.

An engine is found by the name in the setting ``engine``; Galley's own is ``native``. An installed package
adds one with an entry point in the group ``galley.engines``: the engine's name, and its
:class:`EngineLoader` as ``module:function``. A loader is imported by the process that loads a model,
never by the server.
"""

import importlib
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final, Protocol, cast, runtime_checkable

from galley.errors import SettingsError
from galley.settings.engine import EngineSettings
from galley.settings.engine_choice import (
    CTRANSLATE2_ENGINE,
    LIGHTGBM_ENGINE,
    LLAMA_CPP_ENGINE,
    NATIVE_ENGINE,
    ONNX_ENGINE,
    ONNX_GENAI_ENGINE,
    OPENVINO_ENGINE,
    SKLEARN_ENGINE,
    TENSORRT_LLM_ENGINE,
    VLLM_ENGINE,
    VOICE_ENGINE,
    XGBOOST_ENGINE,
)
from galley.types import Adapter, EngineRequest, OnPhase, Output
from galley.types.block_hashes import BlockContent
from galley.types.engine_stats import EngineStats
from galley.types.model_info import ModelInfo, OnLedger
from galley.types.transfers import TransferPlan

ENTRY_POINTS: Final = "galley.engines"
"""The entry-point group in which installed packages name their loaders."""

ENGINES: Final[Mapping[str, str]] = {
    NATIVE_ENGINE: "galley.engine.loaders:load",
    ONNX_ENGINE: "galley.runtimes.onnx:load",
    XGBOOST_ENGINE: "galley.runtimes.xgboost:load",
    LIGHTGBM_ENGINE: "galley.runtimes.lightgbm:load",
    SKLEARN_ENGINE: "galley.runtimes.sklearn:load",
    OPENVINO_ENGINE: "galley.runtimes.openvino:load",
    VOICE_ENGINE: "galley.runtimes.voices:load",
    LLAMA_CPP_ENGINE: "galley.runtimes.llama_cpp:load",
    CTRANSLATE2_ENGINE: "galley.runtimes.ctranslate2:load",
    ONNX_GENAI_ENGINE: "galley.runtimes.onnx_genai:load",
    VLLM_ENGINE: "galley.runtimes.vllm:load",
    TENSORRT_LLM_ENGINE: "galley.runtimes.tensorrt_llm:load",
}
"""Name -> ``module:function`` of Galley's own loaders."""


class Engine(Protocol):
    """A loaded model that processes requests. It is called from one thread and need not be thread-safe.

    Requests come from :mod:`galley.service.requests`, ``speech_requests``, ``vector_requests``,
    ``tensor_requests`` or ``voice_requests``, so their payloads match the tasks in :attr:`info`, and
    their token ids, lengths, audio, tensors and voices fit the model.
    An engine that cannot honor a request answers it with an Output whose ``finish_reason`` is "error".

    A request that kills the process is retried in a new one (see ``quarantine.py``): a resubmitted
    request has the tokens delivered so far in its payload's ``output``, and only later tokens are
    expected.
    """

    @property
    def info(self) -> ModelInfo:
        """The model's properties and tasks; constant."""

    @property
    def stats(self) -> EngineStats:
        """The current counters and gauges."""

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything: some request is unfinished, or has an Output to come."""

    @property
    def is_live(self) -> bool:
        """Whether an unfinished request is for live audio, which has precedence over other engines."""

    def add(self, request: EngineRequest) -> None:
        """Queue a request. Its id differs from those of all unfinished requests."""

    def abort(self, request_ids: Iterable[str]) -> None:
        """Drop requests; they produce no further Output. Ids of finished requests are ignored."""

    def step(self) -> list[Output]:
        """Work for some milliseconds and return at most one new Output for each request.

        It is called while :attr:`has_work` is true, so it may wait until there is something to return,
        but only briefly: requests and aborts are accepted between two steps. The last Output of a request
        has a ``finish_reason``.
        """

    def close(self) -> None:
        """Free the engine's resources other than memory. The last call; requests may be unfinished."""


@runtime_checkable
class GatheringEngine(Engine, Protocol):
    """An engine whose next step may be worth more if further requests arrive before it."""

    def gather_seconds(self) -> float:
        """Return how long to wait for requests before the next step; 0: step now.

        Called while there is work, and again after each request that arrives.
        """


@runtime_checkable
class AdapterEngine(Engine, Protocol):
    """An engine that supports LoRA adapters, as :attr:`~galley.types.model_info.TextInfo.adapters` states.

    A request carries its adapter (``EngineRequest.adapter``), so adapters need not be registered with the
    engine beforehand. A request whose adapter cannot be loaded ends with an error.
    """

    def load_adapter(self, adapter: Adapter) -> Future[object]:
        """Read and check an adapter while steps continue.

        The future raises GalleyError if the adapter cannot be used.
        """

    def unload_adapter(self, adapter: Adapter) -> None:
        """Free the adapter after the last request that uses it."""


@runtime_checkable
class PublishingEngine(Engine, Protocol):
    """An engine that reports what its prefix cache holds, by which a router chooses among replicas."""

    def take_block_changes(self) -> dict[bytes, bool]:
        """Return the keys of blocks that can be found (True) or not any more since the last call.

        The first call returns all that can be found, and begins the record. Keys are those of
        :mod:`galley.types.block_hashes`.
        """

    def record_block_contents(self) -> None:
        """Record the contents of blocks from now on."""

    def take_block_contents(self) -> dict[bytes, BlockContent]:
        """Return the contents of blocks that were found since the last call, by key.

        Blocks with a tenant's salt or an adapter, which their tokens do not identify, have none.
        """


@runtime_checkable
class TransferringEngine(Engine, Protocol):
    """An engine that exchanges keys and values with others."""

    def exchange_blocks(self, plan: TransferPlan, wake: Callable[[], None]) -> None:
        """Offer blocks to peers, fetch those of peers that requests name, or both.

        Called once, before the first request. Afterwards :attr:`info` says where blocks are offered.

        Args:
            plan: how blocks are exchanged.
            wake: to be called, on any thread, when :attr:`has_work` has become true without a request.

        Raises:
            SettingsError: the model's blocks cannot leave memory, or an address or a file cannot be used.
        """


class EngineLoader(Protocol):
    """Creates the engine for the checkpoint in a folder."""

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
            on_phase: called with the name and the seconds of each start-up phase as it ends.
            pause: to be called often within a step that computes on the CPU: yields the cores to another
                engine. None if this engine has the cores to itself.
            on_ledger: called with the model's memory plan before its weights are loaded, if the engine can
                make one; with the measured memory afterwards, if it can only measure.

        Raises:
            ModelError, SettingsError: the checkpoint or the settings cannot be used.
            EngineFailed: the engine cannot start; the message states what to do.
        """


def find_loader(name: str) -> EngineLoader:
    """Import the loader of that name.

    Raises:
        SettingsError: no such loader exists, or it cannot be imported.
    """
    target = ENGINES.get(name)
    if target is not None:
        module, _, function = target.partition(":")
        return cast(EngineLoader, getattr(importlib.import_module(module), function))
    from importlib.metadata import entry_points  # slow to import, and not needed for Galley's own

    installed = entry_points(group=ENTRY_POINTS)
    found = next((entry for entry in installed if entry.name == name), None)
    if found is None:
        known = ", ".join([*ENGINES, *sorted(entry.name for entry in installed)])
        raise SettingsError(
            f"unknown engine {name!r}; engines: {known}. A package adds one with an entry point in the "
            f"group {ENTRY_POINTS}"
        )
    try:
        loader: Any = found.load()
    except Exception as error:  # a third-party package may raise anything
        raise SettingsError(
            f"engine {name!r} ({found.value}) cannot be imported: {error}"
        ) from error
    return cast(EngineLoader, loader)
