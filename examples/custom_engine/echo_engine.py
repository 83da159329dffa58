"""Run your own engine behind Galley's server: this one answers a prompt with the prompt's own tokens.

    pip install ./examples/custom_engine
    galley serve galley-demo --engine echo

Galley serves it like its own engine: protocols, queue, limits, supervision, receipts and metrics. A real
engine would drive another runtime. The methods are those of ``galley.service.protocol.Engine``.
"""

from collections.abc import Callable, Iterable
from pathlib import Path

from galley.settings.engine import EngineSettings
from galley.types import EngineRequest, Generate, OnPhase, Output, Timing, Tokens
from galley.types.engine_stats import EngineStats
from galley.types.model_info import ModelInfo, OnLedger, TextInfo


class EchoEngine:
    """Returns one token of each request per step."""

    def __init__(self, info: ModelInfo) -> None:
        """``info`` describes the model to the server."""
        self.info = info
        self.is_live = False
        self._running: dict[str, tuple[Generate, int]] = {}
        self._steps = 0

    @property
    def has_work(self) -> bool:
        """Return whether ``step`` has anything to do."""
        return bool(self._running)

    @property
    def stats(self) -> EngineStats:
        """Return counts for the metrics."""
        return EngineStats(running=len(self._running), kv_total_blocks=1, steps=self._steps)

    def add(self, request: EngineRequest) -> None:
        """Start a request. Its payload's ``output`` holds the tokens generated before an engine restart."""
        assert isinstance(request.payload, Generate)  # the only kind a generate model gets
        self._running[request.id] = request.payload, len(request.payload.output)

    def abort(self, request_ids: Iterable[str]) -> None:
        """Drop requests whose clients have disconnected or whose deadlines have passed."""
        for request_id in request_ids:
            self._running.pop(request_id, None)

    def step(self) -> list[Output]:
        """Advance every request by one token."""
        self._steps += 1
        return [self._advance(name, *running) for name, running in list(self._running.items())]

    def close(self) -> None:
        """Free the engine's resources."""
        self._running.clear()

    def _advance(self, request_id: str, wanted: Generate, done: int) -> Output:
        token = wanted.prompt[done % len(wanted.prompt)]
        self._running[request_id] = wanted, done + 1
        is_last = done + 1 == wanted.writes
        if is_last:
            del self._running[request_id]
        return Output(
            request_id=request_id,
            result=Tokens(tokens=[token]),
            finish_reason="length" if is_last else None,
            timing=Timing(),
        )


def load(
    settings: EngineSettings,
    folder: Path,
    on_phase: OnPhase | None = None,
    pause: Callable[[], None] | None = None,
    on_ledger: OnLedger | None = None,
) -> EchoEngine:
    """Load the model; see ``galley.service.protocol.EngineLoader``. The tokenizer is in ``folder``."""
    context = settings.max_model_len or 2048
    info = ModelInfo(
        name="echo",
        path=str(folder),
        family="echo",
        tasks=("generate",),
        executor="echo",
        text=TextInfo(vocab_size=4096, max_model_len=context),
    )
    return EchoEngine(info)
