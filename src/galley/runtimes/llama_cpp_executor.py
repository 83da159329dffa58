"""An executor over llama.cpp: its batch API computes the rows of Galley's engine.

The engine schedules, samples and follows grammars as with its own executors, so llama.cpp's texts have
seeds, log-probabilities, penalties and structured output. llama.cpp keeps keys and values by sequence id,
not by block: a sequence of the engine is recognized by its first block, which no other has, because this
engine shares no blocks.
"""

import ctypes
import time
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import numpy as np

from galley.errors import (
    CheckpointError,
    EngineError,
    EngineFailed,
    SettingsError,
    UnsupportedModel,
)
from galley.formats.adapter import AdapterWeights
from galley.ops.batch import Batch
from galley.ops.draws import draw_all
from galley.ops.executor import ExpertCounts, SynchronousExecutor
from galley.ops.sampling import Logits, SamplingBatch, StepResult, sample
from galley.runtimes.library import import_library
from galley.runtimes.text_build import TextSizes
from galley.settings.engine_choice import LLAMA_CPP_ENGINE
from galley.types import BLOCK_TOKENS
from galley.types.model_info import StepCosts

_ERROR_LEVEL: Final = 4
"""``GGML_LOG_LEVEL_ERROR``."""


class LlamaCppOptions(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The ``engine_options`` of llama.cpp.

    Attributes:
        kv_type: type of the KV cache.
        flash_attention: whether attention is computed block by block; auto: where the device has kernels.
        gpu_layers: number of layers on the GPU; -1: all.
    """

    kv_type: Literal["f32", "f16", "q8_0"] = "f16"
    flash_attention: Literal["auto", "on", "off"] = "auto"
    gpu_layers: int = 0


class LlamaCppExecutor(SynchronousExecutor):
    """Runs a GGUF file; see :class:`galley.ops.executor.Executor`. Rows are not independent in all bits.

    Attributes:
        forward_seconds, sample_seconds: see :class:`galley.ops.executor.Executor`.
        kv_groups: always 1.
    """

    kv_groups: Final = 1

    def __init__(self, path: Path, options: LlamaCppOptions, sizes: TextSizes) -> None:
        """Map the model in ``path``; :meth:`allocate_kv` must follow.

        Raises:
            SettingsError: llama-cpp-python is not installed, or ``max_running`` is too large.
            CheckpointError: llama.cpp cannot load the file.
        """
        library = import_library("llama_cpp", LLAMA_CPP_ENGINE, "llama-cpp")
        self._lib: Any = library.llama_cpp
        self._messages = _messages_of(self._lib)
        most = self._lib.llama_max_parallel_sequences()
        if sizes.running > most:
            raise SettingsError(
                f"max_running is {sizes.running}, but llama.cpp runs at most {most} sequences at a time"
            )
        self._lib.llama_backend_init()
        self._options, self._sizes = options, sizes
        params = self._lib.llama_model_default_params()
        params.n_gpu_layers = options.gpu_layers
        self._model = self._lib.llama_model_load_from_file(str(path).encode(), params)
        if not self._model:
            raise CheckpointError(
                f"llama.cpp cannot load it: {self._messages.reason()}", file=str(path)
            )
        vocabulary = self._lib.llama_model_get_vocab(self._model)
        self._vocab_size: int = self._lib.llama_vocab_n_tokens(vocabulary)
        self._context: Any = None
        self._slots: dict[int, int] = {}
        """First block of a sequence -> its sequence id in llama.cpp."""
        self._free = list(range(sizes.running))
        self._rows = _Rows(self._lib, sizes.step_tokens)
        self._logits: Logits = np.empty((0, self._vocab_size), dtype=np.float32)
        self.forward_seconds = self.sample_seconds = 0.0

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
        return self._vocab_size

    @property
    def activations(self) -> str:
        """The type of the buffers between ops; kernels of integer weights round their inputs."""
        return "float32"

    def allocate_kv(self, blocks: int, states: int = 0) -> None:
        """Create the context. See :meth:`galley.ops.executor.Executor.allocate_kv`.

        Raises:
            EngineFailed: there is not enough memory.
        """
        lib, sizes = self._lib, self._sizes
        params = lib.llama_context_default_params()
        # Sequences have parts of the cache of their own, which is faster, if each has room for the context.
        params.kv_unified = blocks * BLOCK_TOKENS < sizes.running * sizes.context
        params.n_ctx = blocks * BLOCK_TOKENS
        params.n_seq_max = sizes.running
        params.n_batch = params.n_ubatch = sizes.step_tokens
        params.n_threads = params.n_threads_batch = sizes.threads
        params.type_k = params.type_v = getattr(lib, f"GGML_TYPE_{self._options.kv_type.upper()}")
        params.flash_attn_type = {
            "auto": lib.LLAMA_FLASH_ATTN_TYPE_AUTO,
            "on": lib.LLAMA_FLASH_ATTN_TYPE_ENABLED,
            "off": lib.LLAMA_FLASH_ATTN_TYPE_DISABLED,
        }[self._options.flash_attention]
        self._context = lib.llama_init_from_model(self._model, params)
        if not self._context:
            raise EngineFailed(
                f"llama.cpp cannot allocate a KV cache of {params.n_ctx} tokens in "
                f"{self._options.kv_type}: {self._messages.reason()}. Lower kv_cache_tokens"
            )
        self._memory = lib.llama_get_memory(self._context)

    def release(self, first_block: int) -> None:
        """Forget the keys and values of the sequence with this first block, if it has any."""
        slot = self._slots.pop(first_block, None)
        if slot is not None:
            self._lib.llama_memory_seq_rm(self._memory, slot, -1, -1)
            self._free.append(slot)

    def execute(self, batch: Batch, sampling: SamplingBatch) -> StepResult:
        """See :meth:`galley.ops.executor.Executor.submit`.

        Raises:
            EngineError: llama.cpp fails.
        """
        began = time.perf_counter()
        for s in range(len(batch.starts) - 1):
            begin, end = batch.starts[s], batch.starts[s + 1]
            slot = self._slot(int(batch.tables[s][0]))
            self._rows.fill(begin, end, batch, slot)
        code = self._lib.llama_decode(
            self._context, self._rows.batch(len(batch.tokens), batch.wanted)
        )
        if code != 0:
            raise EngineError(
                f"llama.cpp failed to compute a batch (llama_decode: {code}): {self._messages.reason()}"
            )
        logits = self._read_logits(batch.wanted)
        sampled = time.perf_counter()
        result = sample(logits, sampling, draw_all)
        now = time.perf_counter()
        self.sample_seconds += now - sampled
        self.forward_seconds += now - began
        return result

    def _slot(self, first_block: int) -> int:
        slot = self._slots.get(first_block)
        if slot is None:
            slot = self._slots[first_block] = self._free.pop()
        return slot

    def _read_logits(self, wanted: Iterable[int]) -> Logits:
        rows = list(wanted)
        if len(self._logits) < len(rows):
            self._logits = np.empty((len(rows), self._vocab_size), dtype=np.float32)
        for i, row in enumerate(rows):
            pointer = self._lib.llama_get_logits_ith(self._context, int(row))
            self._logits[i] = np.ctypeslib.as_array(pointer, (self._vocab_size,))
        return self._logits[: len(rows)]

    def step_costs(self) -> StepCosts:
        """Return the costs of a step, by the size of the model."""
        parameters = self._lib.llama_model_n_params(self._model)
        return StepCosts(
            weight_bytes=self._lib.llama_model_size(self._model),
            kv_bytes_per_token=self._sizes.kv_bytes_per_token,
            row_operations=2 * parameters,
            logit_operations=0,
        )

    def expert_counts(self) -> ExpertCounts:
        """Return zeros: llama.cpp maps all experts."""
        return ExpertCounts()

    def kv_bytes_per_block(self) -> int:
        """Return the bytes of a block's keys and values in float16."""
        return self._sizes.kv_bytes_per_token * BLOCK_TOKENS

    def bytes_per_state(self) -> int:
        """Return 0: the states of recurrent layers are llama.cpp's own."""
        return 0

    def pack_adapter(self, adapter: AdapterWeights) -> object:
        """Raise UnsupportedModel: adapters are not supported."""
        raise UnsupportedModel("engine llama.cpp does not support LoRA adapters")

    def set_adapter(self, slot: int, packed: object | None) -> None:
        """Do nothing: there are no adapters."""
        assert packed is None

    def close(self) -> None:
        """Free the context and the model."""
        if self._context:
            self._lib.llama_free(self._context)
            self._context = None
        if self._model:
            self._lib.llama_model_free(self._model)
            self._model = None


class _Rows:
    """The arrays of a ``llama_batch``, allocated once."""

    def __init__(self, lib: Any, most: int) -> None:
        self._tokens = np.zeros(most, dtype=np.int32)
        self._positions = np.zeros(most, dtype=np.int32)
        self._slots = np.zeros(most, dtype=np.int32)
        self._wanted = np.zeros(most, dtype=np.int8)
        self._counts = np.ones(most, dtype=np.int32)
        # Each row is in one sequence: a pointer to its element of the array of sequence ids.
        first, size = self._slots.ctypes.data, self._slots.itemsize
        self._sequences = first + size * np.arange(most, dtype=np.uintp)
        self._batch = lib.llama_batch()
        fields = dict(lib.llama_batch._fields_)
        for name, array in (
            ("token", self._tokens),
            ("pos", self._positions),
            ("n_seq_id", self._counts),
            ("seq_id", self._sequences),
            ("logits", self._wanted),
        ):
            setattr(self._batch, name, ctypes.cast(array.ctypes.data, fields[name]))

    def fill(self, begin: int, end: int, batch: Batch, slot: int) -> None:
        """Copy the rows of one sequence."""
        self._tokens[begin:end] = batch.tokens[begin:end]
        self._positions[begin:end] = batch.positions[begin:end]
        self._slots[begin:end] = slot

    def batch(self, rows: int, wanted: Any) -> Any:
        """Return the ``llama_batch`` of the first ``rows`` rows; logits are needed of those ``wanted``."""
        self._wanted[:rows] = 0
        self._wanted[np.asarray(wanted, dtype=np.int64)] = 1
        self._batch.n_tokens = rows
        return self._batch


class _Messages:
    """Keeps llama.cpp's error messages, and drops all others."""

    def __init__(self, lib: Any) -> None:
        self._errors: list[str] = []
        self._callback = lib.llama_log_callback(self._received)
        lib.llama_log_set(self._callback, ctypes.c_void_p(0))

    def _received(self, level: int, text: bytes, data: object) -> None:
        if level == _ERROR_LEVEL:
            self._errors.append(text.decode(errors="replace").strip())

    def reason(self) -> str:
        """Return the first error since the last call: later ones are its consequences."""
        first, self._errors = next(iter(self._errors), "it gives no reason"), []
        return first.partition(": ")[2] or first


@cache
def _messages_of(lib: Any) -> _Messages:
    """Return the messages of the library, which keeps a pointer to the callback until the process ends."""
    return _Messages(lib)
