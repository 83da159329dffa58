"""ONNX Runtime GenAI: language models in the folders that its builder writes, with its engine.

The engine batches continuously if the model was built for paged attention, and else takes requests of one
batch until all of them have ended.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from galley.engine.loading import StartPhases
from galley.errors import CheckpointError, EngineError, SettingsError
from galley.formats.checkpoint import sampling_defaults
from galley.machine import available_cores, available_memory
from galley.models.fields import Fields
from galley.runtimes.drawing import LIKELIEST, drawing
from galley.runtimes.genai_config import has_own_batches, most_texts, read_genai_config
from galley.runtimes.library import import_library, refuse_settings, step_meter
from galley.runtimes.text_build import announced, first_line
from galley.runtimes.text_engine import TextEngine
from galley.runtimes.text_memory import TextMemory, bytes_of
from galley.runtimes.text_runtime import NO_LIMIT, Advance, Cache
from galley.settings.engine import EngineSettings
from galley.settings.engine_choice import ONNX_GENAI_ENGINE, ONNX_GENAI_FILE
from galley.types import FinishReason, Generate, OnPhase, SamplingDefaults, SamplingParams
from galley.types.model_info import ModelInfo, OnLedger, TextInfo

_UNSUPPORTED: Final = (
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "penalty_window",
    "min_tokens",
    "seed",
    "logprobs",
    "prompt_logprobs",
    "logit_bias",
    "grammar",
    "thinking",
    "num_beams",
)
"""Parameters that requests may not set.

The library has seeds, least lengths and grammars, but not with our meaning: only some models take seeds,
only one end token is held back, and its grammars are in notations of its own.
"""

_NOT_ITS_OWN: Final = {"kv_cache_tokens": None, "max_batch_tokens": 512}
_NOT_OF_OWN_BATCHES: Final = {**_NOT_ITS_OWN, "kv_memory_fraction": 0.5}
"""Settings of KV caches and of steps, which the folder has itself -> the values if left out."""


class OnnxGenAIOptions(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The ``engine_options`` of ONNX Runtime GenAI.

    Attributes:
        provider: execution provider, such as cuda; empty: those that the folder lists.
    """

    provider: str = ""


@dataclass(slots=True, eq=False)
class _Text:
    """A text that has not ended.

    Attributes:
        request: the library's session of the text.
        tokens: its tokens so far.
        left: tokens that it may still have.
        rows: tokens that the session has yet to read.
    """

    id: str
    request: Any
    sampling: SamplingParams
    stop_ids: Collection[int]
    tokens: list[int]
    left: int
    rows: int = 0


class OnnxGenAIRuntime:
    """The library's engine and its texts; see :class:`galley.runtimes.text_runtime.TextRuntime`."""

    def __init__(
        self,
        library: Any,
        model: Any,
        end_token: int,
        vocab_size: int,
        *,
        running: int,
        batch: int | None,
    ) -> None:
        """Create the runtime.

        Args:
            library: the module ``onnxruntime_genai``.
            model: its model.
            end_token: the only end token that it knows.
            vocab_size: number of token ids.
            running: the most texts at a time.
            batch: the most texts of a batch that no text joins; None: texts join while others run.
        """
        self._batch, self._begun = batch, False
        self._library = library
        self._engine = library.Engine(model)
        self._events = self._engine.create_event_buffer(4 * running)
        self._end_token, self._vocab_size = end_token, vocab_size
        self._texts: dict[int, _Text] = {}

    @property
    def room(self) -> int:
        """The texts that the next batch could have, none while one runs."""
        if self._batch is None:
            return NO_LIMIT
        return 0 if self._texts and self._begun else self._batch - len(self._texts)

    @property
    def cache(self) -> Cache:
        """The library does not report its KV cache."""
        return Cache(used=0, total=0)

    def begin(self, request_id: str, payload: Generate, stop_ids: Collection[int]) -> None:
        """Add a text. Raises EngineError if the library cannot take it."""
        tokens = [*payload.prompt, *payload.output]
        left = payload.writes - len(payload.output)
        self._start(_Text(request_id, None, payload.sampling, stop_ids, tokens, left))

    def _start(self, text: _Text) -> None:
        """Open a session that reads all tokens of a text and continues it. Raises EngineError."""
        sampling = text.sampling
        text.request = self._engine.create_request()
        text.rows = len(text.tokens)
        self._texts[id(text.request)] = text
        options = self._library.TurnOptions(text.request)
        options.set_max_generated_tokens(text.left)
        options.set_repetition_penalty(sampling.repetition_penalty or 1.0)
        drawn = drawing(sampling, self._vocab_size)
        options.set_do_sample(drawn != LIKELIEST)
        if drawn != LIKELIEST:
            options.set_temperature(drawn.temperature)
            options.set_top_k(drawn.top_k)
            options.set_top_p(drawn.top_p)
        try:
            text.request.begin_turn(np.array(text.tokens, np.int32), options)
        except RuntimeError as error:
            self._forget(text)
            raise EngineError(f"ONNX Runtime GenAI: {first_line(error)}") from error

    def end(self, request_id: str) -> None:
        """Drop a text."""
        text = next(text for text in self._texts.values() if text.id == request_id)
        self._forget(text)

    def _forget(self, text: _Text) -> None:
        del self._texts[id(text.request)]
        text.request.close()

    def step(self) -> list[Advance]:
        """Let the library do one step, and read what is new."""
        advances = []
        self._begun = bool(self._texts)
        for event in self._engine.run(self._events) or ():
            text = self._texts.get(id(event.request))
            if text is not None and (advance := self._advance(text, event)) is not None:
                advances.append(advance)
        return advances

    def _advance(self, text: _Text, event: Any) -> Advance | None:
        reasons = self._library.FinishReason
        ended, token = event.finish_reason, event.token
        if ended in (reasons.FAILED, reasons.CANCELLED, reasons.MAX_SESSION_TOKENS):
            self._forget(text)
            error = f"ONNX Runtime GenAI ended the text: {ended.name}, {event.error_code.name}"
            return Advance(text.id, [], 0, finish_reason="error", error=error)
        if ended == reasons.EOS:
            token = self._end_token
        if token is None:
            return None
        text.left -= 1
        text.tokens.append(token)
        reason: FinishReason | None = None if text.left else "length"
        if token in text.stop_ids:
            reason = "stop"
        rows, text.rows = text.rows or 1, 0
        if reason is not None:
            self._forget(text)
        elif ended == reasons.EOS:  # which the text ignores; a session in a batch cannot continue
            self._forget(text)
            try:
                self._start(text)
            except EngineError as failure:
                return Advance(text.id, [token], rows, finish_reason="error", error=str(failure))
        return Advance(text.id, [token], rows, finish_reason=reason)

    def close(self) -> None:
        """Drop all texts."""
        for text in list(self._texts.values()):
            self._forget(text)


def load(
    settings: EngineSettings,
    folder: Path,
    on_phase: OnPhase | None = None,
    pause: Callable[[], None] | None = None,
    on_ledger: OnLedger | None = None,
) -> TextEngine[Generate]:
    """Load the model in a folder; see :class:`galley.service.protocol.EngineLoader`.

    Raises:
        ModelError, SettingsError: the model or the settings cannot be used.
        NotEnoughMemory: the model does not fit in memory.
    """
    options = settings.options_as(OnnxGenAIOptions)
    clock = StartPhases(on_phase)
    library = import_library("onnxruntime_genai", ONNX_GENAI_ENGINE, "onnxruntime-genai")
    config = read_genai_config(folder)
    own_batches = bool(options.provider) or has_own_batches(config, folder)
    refuse_settings(
        settings,
        "is run by ONNX Runtime GenAI, which has no such setting: leave it out; engine_options has its own",
        _NOT_OF_OWN_BATCHES if own_batches else _NOT_ITS_OWN,
    )
    info = _info(settings, folder, config)
    memory = None
    if not options.provider:
        memory = TextMemory(
            name=info.name,
            family=info.family,
            executor=info.executor,
            threads=settings.threads or available_cores(),
            context=info.require_text().max_model_len,
            step_tokens=0,
            weights=bytes_of(file for file in folder.iterdir() if ".onnx" in file.name),
        )
    runtime = _runtime(library, settings, options, folder, config, info)
    info = msgspec.structs.replace(info, ledger=announced(memory, on_ledger))
    clock.end("load")
    return TextEngine(
        runtime,
        msgspec.structs.replace(info, phases=clock.ready()),
        max_running=settings.running_limit,
        priority_steps=settings.priority_steps,
        meter=step_meter(pause),
    )


def _runtime(
    library: Any,
    settings: EngineSettings,
    options: OnnxGenAIOptions,
    folder: Path,
    config: dict[str, Any],
    info: ModelInfo,
) -> OnnxGenAIRuntime:
    text = info.require_text()
    end_token, *_ = text.eos_token_ids
    threads = {"intra_op_num_threads": settings.threads or available_cores()}
    changes: dict[str, Any] = {
        "model": {"eos_token_id": end_token, "decoder": {"session_options": threads}},
        "search": {"max_length": text.max_model_len},
    }
    batch: int | None = None
    if "engine" not in config:
        batch = settings.running_limit
        if not options.provider and not has_own_batches(config, folder):
            files = sum(file.stat().st_size for file in folder.iterdir() if file.is_file())
            room = int(settings.kv_memory_fraction * max(0, available_memory() - files))
            batch = min(batch, most_texts(config, folder, text.max_model_len, room))
        changes["engine"] = {"static_batching": {"max_batch_size": batch}}
    try:
        chosen = library.Config(str(folder))
        if options.provider:
            chosen.clear_providers()
            chosen.append_provider(options.provider)
        chosen.overlay(msgspec.json.encode(changes).decode())
        model = library.Model(chosen)
        return OnnxGenAIRuntime(
            library,
            model,
            end_token,
            text.vocab_size,
            running=settings.running_limit,
            batch=batch,
        )
    except (RuntimeError, ValueError) as error:
        if options.provider:
            raise SettingsError(
                f"engine_options: provider is {options.provider!r}: {first_line(error)}"
            ) from error
        raise CheckpointError(
            f"ONNX Runtime GenAI cannot load it: {first_line(error)}", file=str(folder)
        ) from error


def _info(settings: EngineSettings, folder: Path, config: dict[str, Any]) -> ModelInfo:
    file = str(folder / ONNX_GENAI_FILE)
    described = config.get("model")
    if not isinstance(described, dict):
        raise CheckpointError("is missing", file=file, field="model")
    end = described.get("eos_token_id")
    listed = {"eos_token_id": end if isinstance(end, list) else [end]}
    model = Fields({**described, **listed}, prefix="model.", file=file)
    trained = model.count("context_length")
    context = settings.max_model_len or trained
    if context > trained:
        raise SettingsError(f"max_model_len is {context}, but {folder} was trained for {trained}")
    end_tokens = model.tokens("eos_token_id")
    if not end_tokens:
        raise CheckpointError("is missing", file=file, field="model.eos_token_id")
    return ModelInfo(
        name=settings.model or folder.name,
        path=str(folder),
        family=str(described.get("type")),
        tasks=("generate",),
        executor="onnxruntime-genai",
        text=TextInfo(
            vocab_size=model.count("vocab_size"),
            max_model_len=context,
            eos_token_ids=end_tokens,
            defaults=settings.with_own(_defaults(config, file)),
            unsupported=_UNSUPPORTED,
        ),
    )


def _defaults(config: dict[str, Any], file: str) -> SamplingDefaults:
    """Return the folder's default sampling: greedy, unless it says otherwise."""
    search = config.get("search")
    given = search if isinstance(search, dict) and search.get("do_sample") else {"do_sample": False}
    return sampling_defaults(given, file)
