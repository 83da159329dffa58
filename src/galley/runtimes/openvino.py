"""OpenVINO GenAI: language models with its continuous-batching pipeline.

Serves folders in OpenVINO's format (``openvino_model.xml``, as Optimum Intel exports it) and GGUF files of
the architectures that the library reads.
"""

import logging
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from galley.errors import CheckpointError, SettingsError, UnsupportedModel
from galley.formats.gguf_file import is_gguf, split_files
from galley.runtimes.drawing import LIKELIEST, drawing
from galley.runtimes.library import import_library
from galley.runtimes.text_build import (
    PrefixOptions,
    TextLoader,
    TextSizes,
    first_line,
    refuse_resumed_penalties,
)
from galley.runtimes.text_memory import bytes_of
from galley.runtimes.text_runtime import Advance, Cache, Progress, TextRuntime
from galley.settings.engine_choice import OPENVINO_ENGINE, OPENVINO_FILE
from galley.types import FinishReason, Generate

log = logging.getLogger("galley.runtimes")

_BLOCK_TOKENS: Final = 32
"""Tokens of a block of the KV cache on a CPU; see openvino.genai's ``CacheManager``."""

_UNSUPPORTED: Final = (
    "seed",
    "logprobs",
    "prompt_logprobs",
    "logit_bias",
    "grammar",
    "thinking",
    "num_beams",
    "penalty_window",
)
"""Parameters that requests may not set.

The pipeline has a seed and log-probabilities, but not with our meaning: its draws do not continue after a
restart, and it reports the log-probability of the chosen token alone, after all adjustments.
"""


class OpenVINOOptions(PrefixOptions, kw_only=True):
    """The ``engine_options`` of OpenVINO.

    Attributes:
        device: device that runs the model, such as CPU or GPU.
        properties: properties of the device, such as ``KV_CACHE_PRECISION``.
    """

    device: str = "CPU"
    properties: dict[str, str | int | float | bool] = msgspec.field(default_factory=dict)


class _Text(NamedTuple):
    handle: Any
    progress: Progress


class OpenVINORuntime(TextRuntime[Generate]):
    """A pipeline and its texts; see :class:`galley.runtimes.text_runtime.TextRuntime`."""

    def __init__(self, path: Path, options: OpenVINOOptions, sizes: TextSizes) -> None:
        """Load the model at ``path``.

        Raises:
            SettingsError: OpenVINO is not installed, or it has no such device.
            UnsupportedModel, CheckpointError: the model cannot be used.
        """
        self._openvino = import_library("openvino", OPENVINO_ENGINE, "openvino")
        self._genai = import_library("openvino_genai", OPENVINO_ENGINE, "openvino")
        _check_device(self._openvino, options.device)
        self._blocks = max(1, sizes.kv_tokens // _BLOCK_TOKENS)
        self._vocab_size = sizes.vocabulary
        self._pipeline = self._load(path, options, sizes)
        self._texts: dict[str, _Text] = {}
        self._numbers = 0

    def _load(self, path: Path, options: OpenVINOOptions, sizes: TextSizes) -> Any:
        scheduler = self._genai.SchedulerConfig()
        scheduler.num_kv_blocks = self._blocks
        scheduler.max_num_batched_tokens = sizes.step_tokens
        scheduler.max_num_seqs = sizes.running
        scheduler.enable_prefix_caching = options.prefix_caching
        properties = dict(options.properties)
        if options.device == "CPU":
            properties.setdefault("INFERENCE_NUM_THREADS", sizes.threads)
        try:
            return self._genai.ContinuousBatchingPipeline(
                str(path), scheduler, options.device, properties, {}
            )
        except (RuntimeError, IndexError, ValueError, TypeError) as error:
            raise CheckpointError(
                f"OpenVINO GenAI cannot load it: {first_line(error)}. It reads folders that Optimum Intel "
                "exports, and GGUF files of llama, qwen2 and qwen3",
                file=str(path),
            ) from error

    @property
    def cache(self) -> Cache:
        """The state of the KV cache, in blocks of the pipeline."""
        if not self._texts:  # the pipeline's figure is that of its last step
            return Cache(used=0, total=self._blocks)
        share = self._pipeline.get_metrics().cache_usage / 100
        return Cache(used=round(share * self._blocks), total=self._blocks)

    def begin(self, request_id: str, payload: Generate, stop_ids: Collection[int]) -> None:
        """Add a text to the pipeline.

        Raises:
            EngineError: the text had begun in another process, and its penalties depend on its output.
        """
        refuse_resumed_penalties(payload, "OpenVINO")
        tokens = [*payload.prompt, *payload.output]
        ids = self._openvino.Tensor(np.array([tokens], dtype=np.int64))
        config = self._config(payload, stop_ids)
        handle = self._pipeline.add_request(self._numbers, ids, config)
        self._numbers += 1
        self._texts[request_id] = _Text(handle, Progress(len(tokens)))

    def _config(self, payload: Generate, stop_ids: Collection[int]) -> Any:
        """Return a request's parameters in the pipeline's form."""
        sampling, done = payload.sampling, len(payload.output)
        config = self._genai.GenerationConfig()
        config.max_new_tokens = payload.writes - done
        config.min_new_tokens = max(0, sampling.min_tokens - done)
        config.stop_token_ids = set(stop_ids)
        if stop_ids:
            # Without one, the pipeline adds the model's own, also for a text that ignores it.
            config.eos_token_id = min(stop_ids)
        config.ignore_eos = not stop_ids
        config.repetition_penalty = sampling.repetition_penalty or 1.0
        config.presence_penalty = sampling.presence_penalty
        config.frequency_penalty = sampling.frequency_penalty
        drawn = drawing(sampling, self._vocab_size)
        if drawn == LIKELIEST:
            return config
        config.do_sample = True
        config.temperature, config.top_p = drawn.temperature, drawn.top_p
        config.min_p = sampling.min_p or 0.0
        if drawn.top_k:
            config.top_k = drawn.top_k
        assert sampling.seed is not None
        # Other draws after a restart than those of the tokens that were delivered before.
        config.rng_seed = (sampling.seed + done) % 2**32
        return config

    def end(self, request_id: str) -> None:
        """Cancel a text; the next step frees its part of the KV cache."""
        self._texts.pop(request_id).handle.cancel()

    def step(self) -> list[Advance]:
        """Let the pipeline do one step, and read what is new."""
        self._pipeline.step()
        advances = [self._advance(name, text) for name, text in self._texts.items()]
        for advance in advances:
            if advance.finish_reason is not None:
                del self._texts[advance.id]
        return advances

    def _advance(self, name: str, text: _Text) -> Advance:
        tokens: list[int] = []
        reason: FinishReason | None = None
        while text.handle.can_read():
            for output in text.handle.read().values():
                tokens += output.generated_ids
                reason = self._reason(output.finish_reason)
        rows = text.progress.rows(len(tokens))
        status, statuses = text.handle.get_status(), self._genai.GenerationStatus
        if reason is None and status != statuses.RUNNING:
            error = f"OpenVINO ended the text as {status.name}: the KV cache is too small"
            return Advance(name, tokens, rows, finish_reason="error", error=error)
        return Advance(name, tokens, rows, finish_reason=reason)

    def _reason(self, reason: Any) -> FinishReason | None:
        reasons = self._genai.GenerationFinishReason
        if reason == reasons.NONE:
            return None
        return "length" if reason == reasons.LENGTH else "stop"

    def close(self) -> None:
        """Cancel all texts."""
        for name in list(self._texts):
            self.end(name)


def _check_device(openvino: Any, device: str) -> None:
    available = openvino.Core().available_devices
    if device not in available:
        names = ", ".join(available)
        raise SettingsError(
            f"engine_options: device {device!r} is not available to OpenVINO; available: {names}"
        )


def _check_format(path: Path) -> None:
    if is_gguf(path) or (path / OPENVINO_FILE).is_file():
        return
    raise UnsupportedModel(
        f"{path} has no {OPENVINO_FILE}: export the checkpoint with optimum-cli export openvino, or give a "
        "GGUF file"
    )


def _weight_bytes(path: Path, options: OpenVINOOptions) -> int | None:
    _check_format(path)
    if options.device != "CPU":
        return None
    files = split_files(path) if is_gguf(path) else [(path / OPENVINO_FILE).with_suffix(".bin")]
    return bytes_of(files)


load: Final = TextLoader(
    executor="openvino",
    options=OpenVINOOptions,
    unsupported=_UNSUPPORTED,
    load=OpenVINORuntime,
    weight_bytes=_weight_bytes,
)
"""The loader of the engine ``openvino``."""
