"""A third-party engine that answers a prompt with its own tokens, repeated, a few per step."""

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated

import msgspec

from galley.settings.engine import EngineSettings
from galley.types import EngineRequest, Generate, OnPhase, Output, Timing, Tokens
from galley.types.engine_stats import EngineStats
from galley.types.model_info import ModelInfo, OnLedger, TextInfo

CONTEXT = 4096
VOCABULARY = 320
TOKENS_PER_STEP = 3
STEP_SECONDS = 0.005


class EchoOptions(msgspec.Struct, forbid_unknown_fields=True):
    """What ``--engine-options`` may have."""

    tokens_per_step: Annotated[int, msgspec.Meta(ge=1)] = TOKENS_PER_STEP


class EchoEngine:
    """An engine that generates up to ``tokens_per_step`` tokens of each request in a step."""

    def __init__(self, info: ModelInfo, closed: Path, options: EchoOptions) -> None:
        self._options = options
        self.info = info
        self.is_live = False
        self._closed = closed
        self._requests: dict[str, EngineRequest] = {}
        self._output: dict[str, int] = {}
        self._steps = self._generated = 0

    @property
    def has_work(self) -> bool:
        return bool(self._requests)

    @property
    def stats(self) -> EngineStats:
        return EngineStats(
            running=len(self._requests),
            kv_total_blocks=7,
            steps=self._steps,
            decode_tokens=self._generated,
        )

    def add(self, request: EngineRequest) -> None:
        self._requests[request.id] = request
        assert isinstance(request.payload, Generate)
        self._output[request.id] = len(request.payload.output)

    def abort(self, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            self._requests.pop(request_id, None)

    def step(self) -> list[Output]:
        time.sleep(STEP_SECONDS)
        self._steps += 1
        return [self._advance(request) for request in list(self._requests.values())]

    def close(self) -> None:
        self._closed.touch()

    def _advance(self, request: EngineRequest) -> Output:
        payload = request.payload
        assert isinstance(payload, Generate)
        begin, prompt, most = self._output[request.id], payload.prompt, payload.writes
        end = min(begin + self._options.tokens_per_step, most)
        self._output[request.id] = end
        self._generated += end - begin
        if end == most:
            del self._requests[request.id]
        return Output(
            request_id=request.id,
            result=Tokens(tokens=[prompt[place % len(prompt)] for place in range(begin, end)]),
            finish_reason="length" if end == most else None,
            timing=Timing(),
        )


def load(
    settings: EngineSettings,
    folder: Path,
    on_phase: OnPhase | None = None,
    pause: Callable[[], None] | None = None,
    on_ledger: OnLedger | None = None,
) -> EchoEngine:
    """See :class:`galley.service.protocol.EngineLoader`."""
    if on_phase is not None:
        on_phase("echo", 0.0)
    info = ModelInfo(
        name="echo",
        path=str(folder),
        family="echo",
        tasks=("generate",),
        executor="echo",
        text=TextInfo(
            vocab_size=VOCABULARY,
            max_model_len=settings.max_model_len or CONTEXT,
            kv_cache_tokens=CONTEXT,
        ),
    )
    return EchoEngine(info, folder / "closed", settings.options_as(EchoOptions))
