"""vLLM: language models in folders of safetensors, with its engine in this process.

The engine is ``LLMEngine``: the scheduler and the kernels of ``AsyncLLM`` without its process and its event
loop. The server has a process for each engine already, and one that is killed must leave nothing.
"""

import os
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

import msgspec

from galley.errors import RequestError
from galley.runtimes.drawing import LIKELIEST, drawing
from galley.runtimes.library import import_library
from galley.runtimes.text_build import (
    PrefixOptions,
    TextLoader,
    TextSizes,
    check_folder,
    first_line,
    loading,
    refuse_resumed_penalties,
)
from galley.runtimes.text_memory import bytes_of
from galley.runtimes.text_runtime import Advance, Cache, Progress, TextRuntime, top_logprobs
from galley.settings.engine_choice import VLLM_ENGINE
from galley.types import MAX_LOGPROBS, Generate

_BLOCK_TOKENS: Final = 32
"""Tokens of a block of the KV cache; vLLM's kernels for CPUs take multiples of it."""

_LEAST_TEMPERATURE: Final = 0.01
"""vLLM raises lower ones to this, which can draw tokens that they would not: the likeliest is nearer."""

_ENVIRONMENT: Final = {
    # The engine in this process, which speaks to nobody.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_NO_USAGE_STATS": "1",
    # Its records go the way of the process's own.
    "VLLM_CONFIGURE_LOGGING": "0",
}
"""Environment variables that vLLM reads when it is imported."""

_UNSUPPORTED: Final = (
    "seed",
    "prompt_logprobs",
    "grammar",
    "thinking",
    "num_beams",
    "penalty_window",
)
"""Parameters that requests may not set.

vLLM has seeds and grammars, but not with our meaning: its draws do not continue after a restart, and its
grammars are in notations of its own.
"""


class VLLMOptions(PrefixOptions, kw_only=True):
    """The ``engine_options`` of vLLM; without a description, as vLLM's engine argument of that name.

    Attributes:
        gpu_memory_utilization: share of a GPU's memory for weights and KV cache; not for CPUs.
    """

    dtype: str = "auto"
    quantization: str | None = None
    kv_cache_dtype: str = "auto"
    tensor_parallel_size: int = 1
    enforce_eager: bool = False
    gpu_memory_utilization: float | None = None


class VLLMRuntime(TextRuntime[Generate]):
    """vLLM's engine and its texts; see :class:`galley.runtimes.text_runtime.TextRuntime`."""

    def __init__(self, path: Path, options: VLLMOptions, sizes: TextSizes) -> None:
        """Load the model at ``path``.

        Raises:
            SettingsError: vLLM is not installed, or cannot run on this machine.
            UnsupportedModel, CheckpointError: the model cannot be used.
        """
        check_folder(path, "vLLM")
        os.environ.update(_ENVIRONMENT, OMP_NUM_THREADS=str(sizes.threads))
        self._vllm = import_library("vllm", VLLM_ENGINE, "vllm")
        self._engine = self._load(path, options, sizes)
        self._vocab_size = sizes.vocabulary
        self._texts: dict[str, Progress] = {}

    def _load(self, path: Path, options: VLLMOptions, sizes: TextSizes) -> Any:
        platforms = import_library("vllm.platforms", VLLM_ENGINE, "vllm")
        arguments: dict[str, Any] = {
            name: value
            for name, value in msgspec.structs.asdict(options).items()
            if value is not None and name != "prefix_caching"
        }
        on_cpu = platforms.current_platform.is_cpu()
        tokens = sizes.kv_tokens if on_cpu else sizes.kv_requested
        if tokens is not None:  # one of the blocks holds no tokens
            blocks = -(-tokens // _BLOCK_TOKENS) + 1
            arguments |= {"block_size": _BLOCK_TOKENS, "num_gpu_blocks_override": blocks}
        if on_cpu:  # instead of most of the machine's memory, which must be free at the start
            arguments["kv_cache_memory_bytes"] = sizes.kv_bytes_per_token * sizes.kv_tokens
        with loading("vLLM", path):
            given = self._vllm.EngineArgs(
                model=str(path),
                skip_tokenizer_init=True,
                trust_remote_code=False,
                load_format="safetensors",
                max_model_len=sizes.context,
                max_num_seqs=sizes.running,
                max_num_batched_tokens=max(sizes.step_tokens, sizes.running),
                enable_prefix_caching=options.prefix_caching,
                max_logprobs=MAX_LOGPROBS,
                disable_log_stats=True,
                **arguments,
            )
            return self._vllm.LLMEngine.from_engine_args(given)

    @property
    def cache(self) -> Cache:
        """The state of the KV cache, in blocks of vLLM."""
        pool = self._engine.engine_core.engine_core.scheduler.kv_cache_manager.block_pool
        total = pool.num_gpu_blocks - 1
        return Cache(used=total - pool.get_num_free_blocks(), total=total)

    def begin(self, request_id: str, payload: Generate, stop_ids: Collection[int]) -> None:
        """Add a text to the engine.

        Raises:
            EngineError: the text had begun in another process, and its penalties depend on its output.
            RequestError: vLLM refuses it, such as for a temperature above 2.
        """
        refuse_resumed_penalties(payload, "vLLM")
        tokens = [*payload.prompt, *payload.output]
        try:
            self._engine.add_request(
                request_id,
                self._vllm.inputs.tokens_input(tokens),
                self._params(payload, stop_ids),
            )
        except (self._vllm.exceptions.VLLMClientError, ValueError, TypeError) as error:
            raise RequestError(f"vLLM: {first_line(error)}") from error
        self._texts[request_id] = Progress(len(tokens))

    def _params(self, payload: Generate, stop_ids: Collection[int]) -> Any:
        """Return a request's parameters in vLLM's form."""
        sampling, done = payload.sampling, len(payload.output)
        drawn = drawing(sampling, self._vocab_size)
        greedy = drawn == LIKELIEST or drawn.temperature < _LEAST_TEMPERATURE
        return self._vllm.SamplingParams(
            temperature=0.0 if greedy else drawn.temperature,
            # At a temperature of 0, vLLM ignores top_k, top_p and min_p.
            top_k=drawn.top_k,
            top_p=drawn.top_p,
            min_p=sampling.min_p or 0.0,
            repetition_penalty=sampling.repetition_penalty or 1.0,
            presence_penalty=sampling.presence_penalty,
            frequency_penalty=sampling.frequency_penalty,
            logit_bias=sampling.logit_bias or None,
            max_tokens=payload.writes - done,
            min_tokens=max(0, sampling.min_tokens - done),
            stop_token_ids=sorted(stop_ids),
            ignore_eos=True,  # those that count are among the stop tokens
            logprobs=sampling.logprobs,
            detokenize=False,
            output_kind=self._vllm.sampling_params.RequestOutputKind.DELTA,
        )

    def end(self, request_id: str) -> None:
        """Drop a text."""
        del self._texts[request_id]
        self._engine.abort_request([request_id])

    def step(self) -> list[Advance]:
        """Let vLLM do one step, and read what is new."""
        return [
            self._advance(output)
            for output in self._engine.step()
            if output.request_id in self._texts
        ]

    def _advance(self, output: Any) -> Advance:
        [new] = output.outputs
        tokens = list(new.token_ids)
        text = self._texts[output.request_id]
        reason = new.finish_reason
        error = None
        if reason not in (None, "stop", "length"):
            reason, error = "error", f"vLLM ended the text: {reason}"
        first = not text.begun
        rows = text.rows(len(tokens))
        if reason is not None:
            del self._texts[output.request_id]
        return Advance(
            output.request_id,
            tokens,
            rows,
            logprobs=None if new.logprobs is None else top_logprobs(tokens, new.logprobs),
            cached=(output.num_cached_tokens or 0) if first else 0,
            finish_reason=reason,
            error=error,
        )

    def close(self) -> None:
        """Drop all texts, and free the model."""
        self._texts.clear()
        self._engine.engine_core.shutdown()


def _weight_bytes(path: Path, options: VLLMOptions) -> int | None:
    """Return half of the files' bytes, since float32 becomes 16 bits; or an eighth, if quantized."""
    platforms = import_library("vllm.platforms", VLLM_ENGINE, "vllm")
    if not platforms.current_platform.is_cpu():
        return None
    return bytes_of(path.glob("*.safetensors")) // (8 if options.quantization else 2)


load: Final = TextLoader(
    executor="vllm",
    options=VLLMOptions,
    unsupported=_UNSUPPORTED,
    load=VLLMRuntime,
    weight_bytes=_weight_bytes,
)
"""The loader of the engine ``vllm``."""
