"""TensorRT-LLM: language models in folders of safetensors on NVIDIA GPUs, with its LLM API.

Texts are read by an event loop in a thread, which reports what is new to the engine's steps.
"""

import asyncio
import os
import threading
from collections.abc import Collection
from pathlib import Path
from queue import Queue
from typing import Any, Final, NamedTuple, cast

from galley.runtimes.drawing import drawing
from galley.runtimes.library import import_library
from galley.runtimes.text_build import (
    PrefixOptions,
    TextLoader,
    TextSizes,
    check_folder,
    first_line,
    loading,
)
from galley.runtimes.text_runtime import (
    POLL_SECONDS,
    Advance,
    Cache,
    Progress,
    TextRuntime,
    arrived,
)
from galley.settings.engine_choice import TENSORRT_LLM_ENGINE
from galley.types import FinishReason, Generate

_NO_END: Final = -1
"""An end token that no text has: those that count are among the stop tokens."""

_ENVIRONMENT: Final = {"TRTLLM_NO_USAGE_STATS": "1"}
"""Environment variables that the library reads: since version 1.3, it reports its use to NVIDIA."""

_UNSUPPORTED: Final = (
    "min_p",
    "repetition_penalty",
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

Not all of its samplers honor penalties, least lengths and ``min_p``; the others ignore them. Its seeds,
log-probabilities and grammars do not have our meaning.
"""


class TensorRTOptions(PrefixOptions, kw_only=True):
    """The ``engine_options`` of TensorRT-LLM.

    Attributes:
        dtype: type of the weights and activations.
        tensor_parallel_size: number of GPUs.
        gpu_memory_fraction: share of the GPU's memory that the weights leave for the KV cache.
    """

    dtype: str = "auto"
    tensor_parallel_size: int = 1
    gpu_memory_fraction: float = 0.9


class _Text:
    """A text that has not ended, with its result in the library once that has begun it."""

    def __init__(self, request_id: str, prompt: int) -> None:
        self.id = request_id
        self.progress = Progress(prompt)
        self.result: Any = None


class _News(NamedTuple):
    """A report of a text's reader.

    Attributes:
        cached: tokens of the prompt that were found in the KV cache.
        error: describes a failure.
    """

    text: _Text
    tokens: list[int]
    reason: str | None
    cached: int = 0
    error: str | None = None


class TensorRTRuntime(TextRuntime[Generate]):
    """The library's model and its texts; see :class:`galley.runtimes.text_runtime.TextRuntime`."""

    def __init__(self, path: Path, options: TensorRTOptions, sizes: TextSizes) -> None:
        """Load the model at ``path``.

        Raises:
            SettingsError: TensorRT-LLM is not installed, or cannot run on this machine.
            UnsupportedModel, CheckpointError: the model cannot be used.
        """
        check_folder(path, "TensorRT-LLM")
        os.environ.update(_ENVIRONMENT)
        self._library = import_library("tensorrt_llm", TENSORRT_LLM_ENGINE, "tensorrt-llm")
        self._model = self._load(path, options, sizes)
        self._vocab_size = sizes.vocabulary
        self._texts: dict[str, _Text] = {}
        self._news: Queue[_News] = Queue()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="tensorrt-llm", daemon=True
        )
        self._thread.start()

    def _load(self, path: Path, options: TensorRTOptions, sizes: TextSizes) -> Any:
        api = import_library("tensorrt_llm.llmapi", TENSORRT_LLM_ENGINE, "tensorrt-llm")
        with loading("TensorRT-LLM", path):
            return self._library.LLM(
                model=str(path),
                skip_tokenizer_init=True,
                trust_remote_code=False,
                dtype=options.dtype,
                tensor_parallel_size=options.tensor_parallel_size,
                max_batch_size=sizes.running,
                max_num_tokens=max(sizes.step_tokens, sizes.running),
                max_seq_len=sizes.context,
                enable_chunked_prefill=True,
                kv_cache_config=api.KvCacheConfig(
                    enable_block_reuse=options.prefix_caching,
                    free_gpu_memory_fraction=options.gpu_memory_fraction,
                    max_tokens=sizes.kv_requested,
                ),
            )

    @property
    def cache(self) -> Cache:
        """The library reports its KV cache only in statistics of its own."""
        return Cache(used=0, total=0)

    def begin(self, request_id: str, payload: Generate, stop_ids: Collection[int]) -> None:
        """Add a text."""
        tokens = [*payload.prompt, *payload.output]
        text = self._texts[request_id] = _Text(request_id, len(tokens))
        reading = self._read(text, tokens, payload, stop_ids)
        asyncio.run_coroutine_threadsafe(reading, self._loop)

    def _params(self, payload: Generate, stop_ids: Collection[int]) -> Any:
        """Return a request's parameters in the library's form."""
        drawn = drawing(payload.sampling, self._vocab_size)
        return self._library.SamplingParams(
            end_id=_NO_END,
            pad_id=0,
            ignore_eos=True,
            stop_token_ids=sorted(stop_ids) or None,
            include_stop_str_in_output=True,  # a stop token is the text's last
            max_tokens=payload.writes - len(payload.output),
            temperature=drawn.temperature,
            top_k=drawn.top_k,
            top_p=drawn.top_p,
            detokenize=False,
        )

    async def _read(
        self, text: _Text, tokens: list[int], payload: Generate, stop_ids: Collection[int]
    ) -> None:
        """Report a text's tokens as they come."""
        if not self._has(text):
            return
        done = 0
        try:
            params = self._params(payload, stop_ids)
            text.result = self._model.generate_async(tokens, params, streaming=True)
            async for step in text.result:
                [output] = step.outputs
                new = list(output.token_ids[done:])
                done += len(new)
                cached = getattr(step, "cached_tokens", 0) or 0
                self._news.put(_News(text, new, output.finish_reason, cached))
        except Exception as error:  # the library may raise anything
            self._news.put(_News(text, [], "error", error=first_line(error)))

    def _has(self, text: _Text) -> bool:
        """Return whether a text has neither ended nor been replaced by another with its id."""
        return self._texts.get(text.id) is text

    def end(self, request_id: str) -> None:
        """Drop a text."""
        self._loop.call_soon_threadsafe(_abort, self._texts.pop(request_id))

    def step(self) -> list[Advance]:
        """Wait briefly for what is new, and return it."""
        by_text: dict[str, list[_News]] = {}
        for news in arrived(self._news, POLL_SECONDS):
            if self._has(news.text):
                by_text.setdefault(news.text.id, []).append(news)
        return [self._advance(parts) for parts in by_text.values()]

    def _advance(self, parts: list[_News]) -> Advance:
        last = parts[-1]
        tokens = [token for part in parts for token in part.tokens]
        first = not last.text.progress.begun
        rows = last.text.progress.rows(len(tokens))
        reason, error = last.reason, last.error
        if reason not in (None, "stop", "length"):
            error = f"TensorRT-LLM ended the text: {error or reason}"
            reason = "error"
        if reason is not None:
            del self._texts[last.text.id]
        ended = cast("FinishReason | None", reason)
        cached = last.cached if first and tokens else 0
        return Advance(last.text.id, tokens, rows, cached=cached, finish_reason=ended, error=error)

    def close(self) -> None:
        """Drop all texts, and free the model."""
        self._texts.clear()
        self._model.shutdown()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


def _abort(text: _Text) -> None:
    if text.result is not None:
        text.result.abort()


load: Final = TextLoader(
    executor="tensorrt-llm",
    options=TensorRTOptions,
    unsupported=_UNSUPPORTED,
    load=TensorRTRuntime,
    weight_bytes=lambda path, options: None,
)
"""The loader of the engine ``tensorrt-llm``."""
