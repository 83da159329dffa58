"""Prometheus metrics of one server, fed by events.

Everything hangs on one :class:`Metrics` and its own registry, so several servers can live in one
process. Counters that the engine keeps restart from zero with a new engine process; the totals
exposed here do not.
"""

from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from galley.types import EngineStats

_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_TOKEN_SECONDS: Final = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.075,
    0.1,
    0.15,
    0.25,
    0.5,
    1,
    2.5,
)

_ENGINE_TOTALS: Final = {
    "steps": ("galley_engine_steps", "Engine steps"),
    "prefill_tokens": ("galley_prefill_tokens", "Prompt tokens computed, recomputed ones included"),
    "decode_tokens": ("galley_decode_tokens", "Output tokens fed back through the model"),
    "encoder_rows": (
        "galley_encoder_rows",
        "Rows of audio encoded, 50 for each second of Whisper's",
    ),
    "prefix_query_tokens": (
        "galley_prefix_cache_query_tokens",
        "Prompt tokens looked up in the prefix cache",
    ),
    "prefix_hit_tokens": (
        "galley_prefix_cache_hit_tokens",
        "Prompt tokens found in the prefix cache",
    ),
    "preemptions": (
        "galley_preemptions",
        "Sequences put back to waiting because KV blocks ran out",
    ),
}
"""Counter fields of EngineStats -> metric name (without ``_total``) and help."""


class Metrics:
    """All metrics of one server.

    Args:
        engine: the newest engine snapshot and the number of restarts so far; called at each scrape.
    """

    def __init__(self, engine: Callable[[], tuple[EngineStats, int]]) -> None:
        self._registry = CollectorRegistry()
        self._engine = _EngineCollector(engine)
        self._registry.register(self._engine)
        self._requests = self._counter(
            "galley_requests", "HTTP requests answered, by route and status", "endpoint", "status"
        )
        self._finished = self._counter(
            "galley_finished_sequences", "Sequences ended, by reason", "endpoint", "finish_reason"
        )
        self._prompt_tokens = self._counter("galley_prompt_tokens", "Prompt tokens of requests")
        self._cached_tokens = self._counter(
            "galley_cached_prompt_tokens", "Prompt tokens served from the prefix cache"
        )
        self._generated_tokens = self._counter("galley_generated_tokens", "Tokens generated")
        self._audio = self._counter(
            "galley_audio_seconds", "Audio that was transcribed", "endpoint"
        )
        self._first_token = self._histogram(
            "galley_time_to_first_token_seconds", "From arrival to the first token", _SECONDS
        )
        self._per_token = self._histogram(
            "galley_time_per_output_token_seconds",
            "Mean time between the tokens of a sequence after its first",
            _TOKEN_SECONDS,
        )
        self._duration = self._histogram(
            "galley_request_duration_seconds", "From arrival to the last token", _SECONDS
        )
        self._queue = self._histogram(
            "galley_queue_seconds", "From arrival in the engine to the first step", _SECONDS
        )
        self._startup = Gauge(
            "galley_startup_phase_seconds",
            "What each phase of the latest engine start took",
            ["phase"],
            registry=self._registry,
        )

    def _counter(self, name: str, help: str, *labels: str) -> Counter:
        return Counter(name, help, labels, registry=self._registry)

    def _histogram(self, name: str, help: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, help, ["endpoint"], buckets=buckets, registry=self._registry)

    def phase_ended(self, phase: str, seconds: float) -> None:
        """A start-up phase is over."""
        self._startup.labels(phase).set(seconds)

    def request_answered(self, endpoint: str, status: int) -> None:
        """An HTTP response is complete."""
        self._requests.labels(endpoint, str(status)).inc()

    def prompts_taken(self, tokens: int) -> None:
        """A request was admitted; its prompts have ``tokens`` together."""
        self._prompt_tokens.inc(tokens)

    def prefixes_reused(self, tokens: int) -> None:
        """The prefix cache held this many tokens of a request's prompts."""
        self._cached_tokens.inc(tokens)

    def first_token(self, endpoint: str, seconds: float) -> None:
        """A sequence has its first token, ``seconds`` after its request arrived."""
        self._first_token.labels(endpoint).observe(seconds)

    def step_seen(self, tokens: int) -> None:
        """An engine step delivered ``tokens`` to a request."""
        self._generated_tokens.inc(tokens)
        self._engine.observe()

    def audio_heard(self, endpoint: str, seconds: float, reason: str) -> None:
        """A recording has ended; ``reason`` as for :meth:`sequence_finished`."""
        self._audio.labels(endpoint).inc(seconds)
        self._finished.labels(endpoint, reason).inc()

    def sequence_finished(self, endpoint: str, reason: str) -> None:
        """A sequence has ended; ``reason`` is its finish reason, ``cancelled`` or ``error``."""
        self._finished.labels(endpoint, reason).inc()

    def sequence_timed(
        self, endpoint: str, *, duration: float, queued: float | None, per_token: float | None
    ) -> None:
        """What a sequence that came to its own end took, in seconds; ``None`` is not known."""
        self._duration.labels(endpoint).observe(duration)
        if queued is not None:
            self._queue.labels(endpoint).observe(queued)
        if per_token is not None:
            self._per_token.labels(endpoint).observe(per_token)

    def render(self) -> bytes:
        """The page that Prometheus scrapes, in its text format."""
        return generate_latest(self._registry)


class _EngineCollector(Collector):
    """Gauges as of the scrape, and counters made monotonic over engine restarts."""

    def __init__(self, engine: Callable[[], tuple[EngineStats, int]]) -> None:
        self._engine = engine
        self._last = EngineStats()
        self._last_restarts = 0
        self._totals = dict.fromkeys(_ENGINE_TOTALS, 0)

    def observe(self) -> None:
        """Take in the newest snapshot. Called often enough that little is lost with an engine."""
        stats, restarts = self._engine()
        if stats == self._last:
            return
        reborn = restarts != self._last_restarts or stats.steps < self._last.steps
        before = EngineStats() if reborn else self._last
        for name in self._totals:
            self._totals[name] += getattr(stats, name) - getattr(before, name)
        self._last, self._last_restarts = stats, restarts

    def collect(self) -> Iterator[Metric]:
        self.observe()
        stats, restarts = self._last, self._engine()[1]
        for field, (name, meaning) in _ENGINE_TOTALS.items():
            yield CounterMetricFamily(name, meaning, value=self._totals[field])
        yield CounterMetricFamily("galley_engine_restarts", "Engine restarts", value=restarts)
        yield GaugeMetricFamily("galley_requests_running", "Sequences running", stats.running)
        yield GaugeMetricFamily("galley_requests_waiting", "Sequences waiting", stats.waiting)
        blocks = GaugeMetricFamily("galley_kv_blocks", "KV blocks by state", labels=["state"])
        used, cached, total = stats.kv_used_blocks, stats.kv_cached_blocks, stats.kv_total_blocks
        blocks.add_metric(["used"], used)
        blocks.add_metric(["cached"], cached)
        blocks.add_metric(["free"], total - used - cached)
        yield blocks
        yield GaugeMetricFamily(
            "galley_kv_usage_ratio", "Share of the KV blocks in use", used / total if total else 0.0
        )
