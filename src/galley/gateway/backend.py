"""The loaded model behind a served model, and how it is loaded."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from galley import __version__
from galley.cache.keys import model_identity
from galley.cache.response_cache import ResponseCache
from galley.cache.responses import Counts, ModelResponses
from galley.formats.model_files import files_digest
from galley.gateway.adapters import ServedAdapters
from galley.gateway.caller import Caller
from galley.gateway.daemon_thread import in_daemon_thread
from galley.gateway.make_submitter import MakeSubmitter
from galley.gateway.memory_plans import MemoryPlans
from galley.gateway.model_files import fingerprint, has_fingerprint
from galley.gateway.submitter import Submitter
from galley.gateway.text_parts import TextLoading, TextParts
from galley.machine import with_descendants
from galley.service.spawn import Spawner
from galley.service.watchdog import Watchdog
from galley.settings.config import Settings
from galley.settings.engine_choice import NATIVE_ENGINE
from galley.speech import require_installed
from galley.types import OnPhase
from galley.types.engine_stats import ReplicaStatus
from galley.types.model_info import Ledger, ModelInfo, OnLedger, OnReleaseFinished

if TYPE_CHECKING:
    from galley.cache.hit_checks import HitChecks
    from galley.speech.decoder import Decoder
    from galley.speech.model import SpeechModel


@dataclass(frozen=True, eq=False)
class Backend:
    """The loaded model that answers requests.

    Attributes:
        text: tokenizer, text workers and chat format of a model of texts.
        decoder: the decoder of recordings, for a speech model.
        created: Unix time at which the model became ready.
        files: fingerprint of the files from which the model was loaded, see :func:`fingerprint`.
        responses: the model's part of the response cache; None: the server has none.
        calls: the open calls; after a reload, the engine ends after the last of them.
    """

    engine: Submitter
    text: TextParts | None
    decoder: "Decoder | None"
    created: int
    files: str
    responses: ModelResponses | None = None
    calls: "WeakSet[Any]" = field(default_factory=WeakSet)

    @property
    def busy(self) -> bool:
        """Whether it has requests."""
        return bool(self.calls) or (self.text is not None and self.text.pool.busy)

    def may_have_stored(self, caller: Caller) -> bool:
        """Return whether the response cache may answer the caller, so that the queue does not matter."""
        if self.responses is None or not caller.directives.reads:
            return False
        return (
            caller.directives.mode or caller.tenant.response_cache or self.responses.mode
        ) != "off"

    def require_text(self) -> TextParts:
        """Return ``text``. Raises RequestError if the model does not work with text."""
        self.engine.info.require_text()
        assert self.text is not None
        return self.text

    @cached_property
    def speech_model(self) -> "SpeechModel":
        """A speech model's part outside of the engine. Creating it, with the first request, takes a while.

        Raises:
            ModelError: one of its files is invalid.
        """
        from galley.speech.model import SpeechModel

        return SpeechModel(self.engine.info, self.require_text().tokenizer)

    @property
    def processes(self) -> Mapping[str, Sequence[int]]:
        """Kind of process -> process ids of those that run."""
        # An engine's process is the parent of those of its ranks.
        processes: dict[str, Sequence[int]] = {"engine": with_descendants(self.engine.engine_pids)}
        if self.text is not None:
            processes["text"] = self.text.pool.pids
        if self.decoder is not None:
            processes["audio"] = self.decoder.pids
        return processes

    async def close(self) -> None:
        """End its processes. Idempotent."""
        if self.responses is not None:
            await self.responses.close()
        if self.text is not None:
            await self.text.pool.close()
        if self.decoder is not None:
            await asyncio.to_thread(self.decoder.close)
        await self.engine.close()


@dataclass(frozen=True, kw_only=True)
class BackendLoading:
    """One load of a model: the processes to start, and what to call meanwhile.

    Attributes:
        settings: the model's settings.
        name: its name in the API.
        folder: its folder or file.
        adapters: LoRA adapters to load with it.
        spawner: the spawner of engine processes.
        plans: the memory plans of all models that share the memory.
        make: creates the submitter of its requests.
        cache: the server's response cache.
        cache_counts: counts the cache's hits and misses of this model.
        on_phase, on_ledger, on_step: called after each phase, with the memory plan, and after each step.
        on_finished: called with the figures of each sequence that a release has finished.
    """

    settings: Settings
    name: str
    folder: Path
    adapters: ServedAdapters
    spawner: Spawner
    plans: MemoryPlans
    make: MakeSubmitter
    cache: ResponseCache | None
    cache_counts: Counts
    on_phase: OnPhase
    on_ledger: OnLedger
    on_step: Callable[[ReplicaStatus], None]
    on_finished: OnReleaseFinished

    async def load(self) -> Backend:
        """Start the model's processes, and return it once it is ready.

        Raises:
            ModelError, EngineFailed, SettingsError: see ``ServedModel.start``. Nothing is left running.
        """
        # Before anything is read: files that change during the load count as changed.
        files = fingerprint(self.folder)
        contents = self._read_contents()
        engine = self._engine(await contents if contents and self.settings.replica else b"")
        text = TextLoading(
            self.settings,
            self.name,
            self.folder,
            unchanged=lambda: has_fingerprint(self.folder, files),
            on_phase=self.on_phase,
            remembers=self.cache is not None,
        )
        # Of other engines it is not known before they are ready whether they work with text.
        always_text = self.settings.engine_name == NATIVE_ENGINE
        try:
            if always_text:
                await text.begin()
            async with self.plans.turn:
                engine.launch()
                await engine.planned()
            tokenizer = await text.load() if always_text else None
            info = await engine.ready()
            if info.speech is not None:
                require_installed()
            parts = None
            if info.text is not None:
                parts = await text.parts(tokenizer or await text.load(), info)
            self.adapters.serve(await self.adapters.begin(engine))
            decoder = None if info.speech is None else await asyncio.to_thread(self._decoder)
            responses = await self._responses(engine, info, parts, contents)
        except BaseException:
            if contents is not None:
                contents.cancel()
            await text.close()
            await engine.close()
            raise
        return Backend(
            engine,
            parts,
            decoder,
            created=int(time.time()),
            files=files,
            responses=responses,
        )

    def _engine(self, contents: bytes) -> Submitter:
        def planned(ledger: Ledger) -> None:
            self.plans.promise(
                self.name, ledger, lambda: engine.engine_pids, self.settings.replicas
            )
            self.on_ledger(ledger)

        engine = self.make(
            self.settings,
            str(self.folder),
            max_queue=self.settings.max_queue,
            name=self.name,
            contents=contents.hex(),
            on_phase=self.on_phase,
            on_ledger=planned,
            begin=lambda: self.spawner.spawn(self.settings),
            watchdog=lambda: Watchdog(self.settings.stall_seconds, self.settings.step_timeout),
            on_step=self.on_step,
            on_finished=self.on_finished,
            promised=lambda: self.plans.promised_to_others(self.name),
        )
        return engine

    def _read_contents(self) -> "asyncio.Task[bytes] | None":
        """Begin to read the model's files for their digest, if answers or replicas are compared by it."""
        if self.cache is None and not self.settings.replica:
            return None
        return asyncio.create_task(in_daemon_thread(lambda: files_digest(self.folder)))

    async def _responses(
        self,
        engine: Submitter,
        info: ModelInfo,
        parts: TextParts | None,
        contents: "asyncio.Task[bytes] | None",
    ) -> ModelResponses | None:
        if self.cache is None or contents is None:
            return None
        program = f"{__version__} {self.settings.engine_name} {self.settings.engine_options}"
        return ModelResponses(
            self.cache,
            engine,
            model_identity(await contents, info, program),
            mode=self.settings.response_cache,
            folder=str(self.folder),
            counts=self.cache_counts,
            checks=self._checks(self.cache, engine, parts),
        )

    def _checks(
        self, cache: ResponseCache, engine: Submitter, parts: TextParts | None
    ) -> "HitChecks | None":
        """Return the checks of semantic hits, if there can be such hits."""
        if cache.semantic is None or parts is None:
            return None
        from galley.cache.hit_checks import HitChecks

        self.cache_counts.semantic_off(False)
        return HitChecks(
            cache.semantic,
            engine,
            self.cache_counts,
            parts.tokenizer.decode,
            model=self.name,
            share=self.settings.semantic_cache_checked,
            budget=self.settings.semantic_cache_budget,
        )

    def _decoder(self) -> "Decoder":
        """Start a decoder and return it; it imports its modules before the first request."""
        from galley.speech.decoder import Decoder

        seconds, most = self.settings.audio_decode_seconds, self.settings.audio_decode_bytes
        decoder = Decoder(seconds, most)
        decoder.start()
        return decoder
