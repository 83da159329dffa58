"""llama.cpp: language models in GGUF files, through llama-cpp-python's batch API."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from galley.engine.blocks import BlockPool
from galley.engine.encoder_cache import EncoderCache
from galley.engine.engine import Engine
from galley.engine.kv import KVCache
from galley.engine.loading import StartPhases
from galley.engine.preparing import Preparing
from galley.engine.scheduler import Scheduler
from galley.errors import EngineFailed, UnsupportedModel
from galley.formats.gguf_file import is_gguf, split_files
from galley.formats.reader import open_checkpoint
from galley.grammar.matcher import Grammars
from galley.runtimes.library import step_meter
from galley.runtimes.llama_cpp_executor import LlamaCppExecutor, LlamaCppOptions
from galley.runtimes.text_build import announced, check_settings, text_info, text_memory, text_sizes
from galley.runtimes.text_memory import bytes_of
from galley.settings.engine import EngineSettings
from galley.types import BLOCK_TOKENS, OnPhase
from galley.types.model_info import OnLedger

_UNSUPPORTED: Final = ("num_beams",)
"""Parameters that requests may not set: the hypotheses of a beam search share blocks."""


class _ReleasingCache(KVCache):
    """A KV cache without sharing that reports the first block of each table that it releases."""

    def __init__(self, pool: BlockPool, release: Callable[[int], None]) -> None:
        super().__init__(pool, prefix_cache=False)
        self._released = release

    def close(self, request_id: str) -> None:
        """Release the tables of a request."""
        [[table]] = self.tables(request_id)
        self._released(table[0])
        super().close(request_id)


class LlamaCppEngine(Engine):
    """Galley's engine over llama.cpp."""

    def close(self) -> None:
        """Free the model, too."""
        super().close()
        executor = self.executor
        assert isinstance(executor, LlamaCppExecutor)
        executor.close()


def load(
    settings: EngineSettings,
    folder: Path,
    on_phase: OnPhase | None = None,
    pause: Callable[[], None] | None = None,
    on_ledger: OnLedger | None = None,
) -> LlamaCppEngine:
    """Load a GGUF file; see :class:`galley.service.protocol.EngineLoader`.

    Raises:
        ModelError, SettingsError: the model or the settings cannot be used.
        NotEnoughMemory: the model does not fit in memory.
        EngineFailed: the KV cache is too small.
    """
    options = settings.options_as(LlamaCppOptions)
    check_settings(settings, "llama.cpp")
    if not is_gguf(folder):
        raise UnsupportedModel(
            f"{folder} is not a GGUF file, and llama.cpp reads no others: convert the checkpoint with "
            "llama.cpp's convert_hf_to_gguf.py"
        )
    clock = StartPhases(on_phase)
    checkpoint = open_checkpoint(folder)
    files = split_files(folder)
    weights = None if options.gpu_layers else bytes_of(files)
    sizes = text_sizes(settings, checkpoint, weights or 0)
    blocks = sizes.kv_tokens // BLOCK_TOKENS
    if not blocks:
        raise EngineFailed(
            f"a KV cache of {sizes.kv_tokens} tokens is too small: raise kv_cache_tokens"
        )
    memory = text_memory(settings, checkpoint, sizes, "llama.cpp", weights)
    executor = LlamaCppExecutor(files[0], options, sizes)
    executor.allocate_kv(blocks)
    ledger = announced(memory, on_ledger)
    clock.end("load")
    info = text_info(
        settings, checkpoint, sizes, "llama.cpp", _UNSUPPORTED, clock, ledger, scores=True
    )
    pool = BlockPool(blocks)
    cache, encoder_cache = (
        _ReleasingCache(pool, executor.release),
        EncoderCache(pool, sharing=False),
    )
    return LlamaCppEngine(
        executor,
        cache,
        encoder_cache,
        Scheduler(
            cache,
            encoder_cache,
            max_batch_tokens=sizes.step_tokens,
            max_running=sizes.running,
            priority_steps=settings.priority_steps,
        ),
        info,
        priority_steps=settings.priority_steps,
        meter=step_meter(pause),
        preparing=Preparing(Grammars(folder, sizes.vocabulary, checkpoint.eos_token_ids)),
    )
