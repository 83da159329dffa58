"""Prometheus metrics of one server, fed by events.

A :class:`Metrics` has a registry of its own, so several servers can live in one process. The engine's own
counters restart from zero with a new engine process; the totals exposed here do not.
"""

import platform
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, Literal, TypeAlias

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from galley import __version__
from galley.machine import Memory, memory
from galley.types import EngineStats, Ledger

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

TokenKind: TypeAlias = Literal["prompt", "cached", "generated"]

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
    """All metrics of one server. Metrics of a model have the label ``model``."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        Info("galley_build", "The running version", registry=self._registry).info(
            {"version": __version__, "python": platform.python_version()}
        )
        self._requests = Counter(
            "galley_requests",
            "HTTP requests answered, by route and status",
            ["endpoint", "status"],
            registry=self._registry,
        )
        for part in Memory._fields:
            gauge = Gauge(
                f"galley_memory_{part}_bytes",
                f"Memory of the container, or of the machine: {part}",
                registry=self._registry,
            )
            gauge.set_function(partial(_memory, part))
        self.tenants = TenantMetrics(self._registry)
        self._families = _Families(self._registry)
        self._engines = _EngineCollector()
        self._registry.register(self._engines)

    def model(self, name: str, engine: Callable[[], tuple[EngineStats, int]]) -> "ModelMetrics":
        """Those of one more model.

        Args:
            name: the value of the label; unique.
            engine: the newest engine snapshot and the number of restarts so far; called at each scrape.
        """
        totals = self._engines.models[name] = _EngineTotals(engine)
        return ModelMetrics(name, self._families, totals, self.tenants)

    def request_answered(self, endpoint: str, status: int, tenant: str | None = None) -> None:
        """An HTTP response is complete. ``tenant``: its name; None: nobody was asked for a key."""
        self._requests.labels(endpoint, str(status)).inc()
        if tenant is not None:
            self.tenants.answered(tenant, status)

    def render(self) -> bytes:
        """The page that Prometheus scrapes, in its text format."""
        return generate_latest(self._registry)


class ModelMetrics:
    """What is counted for one model. Made by :meth:`Metrics.model`.

    Attributes:
        tenants: what is counted of all models, by tenant.
    """

    def __init__(
        self, name: str, families: "_Families", engine: "_EngineTotals", tenants: "TenantMetrics"
    ) -> None:
        self.tenants = tenants
        self._name = name
        self._families = families
        self._engine = engine
        self._prompt_tokens = families.prompt_tokens.labels(name)
        self._cached_tokens = families.cached_tokens.labels(name)
        self._generated_tokens = families.generated_tokens.labels(name)

    def phase_ended(self, phase: str, seconds: float) -> None:
        """A start-up phase is over."""
        self._families.startup.labels(self._name, phase).set(seconds)

    def planned(self, ledger: Ledger) -> None:
        """An engine that starts will take so much of the memory."""
        for part in ("weights", "kv", "buffers", "reserve", "available"):
            self._families.planned.labels(self._name, part).set(getattr(ledger, part))

    def prompts_taken(self, tokens: int) -> None:
        """A request was admitted; its prompts have ``tokens`` together."""
        self._prompt_tokens.inc(tokens)

    def prefixes_reused(self, tokens: int) -> None:
        """The prefix cache held this many tokens of a request's prompts."""
        self._cached_tokens.inc(tokens)

    def first_token(self, endpoint: str, seconds: float) -> None:
        """A sequence has its first token, ``seconds`` after its request arrived."""
        self._families.first_token.labels(self._name, endpoint).observe(seconds)

    def step_seen(self, tokens: int) -> None:
        """An engine step delivered ``tokens`` to a request."""
        self._generated_tokens.inc(tokens)
        self._engine.observe()

    def audio_heard(self, endpoint: str, seconds: float, reason: str) -> None:
        """A recording has ended; ``reason`` as for :meth:`sequence_finished`."""
        self._families.audio.labels(self._name, endpoint).inc(seconds)
        self.sequence_finished(endpoint, reason)

    def sequence_finished(self, endpoint: str, reason: str) -> None:
        """A sequence has ended; ``reason`` is its finish reason, ``cancelled`` or ``error``."""
        self._families.finished.labels(self._name, endpoint, reason).inc()

    def sequence_timed(
        self, endpoint: str, *, duration: float, queued: float | None, per_token: float | None
    ) -> None:
        """What a sequence that came to its own end took, in seconds; ``None`` is not known."""
        self._families.duration.labels(self._name, endpoint).observe(duration)
        if queued is not None:
            self._families.queue.labels(self._name, endpoint).observe(queued)
        if per_token is not None:
            self._families.per_token.labels(self._name, endpoint).observe(per_token)


class TenantMetrics:
    """What is counted by tenant. The names are those of the key file, so there are few."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, help: str, *labels: str) -> Counter:
            return Counter(name, help, ["tenant", *labels], registry=registry)

        self._requests = counter(
            "galley_tenant_requests", "HTTP requests answered, by tenant and status", "status"
        )
        self._tokens = counter("galley_tenant_tokens", "Tokens of requests, by tenant", "kind")
        self._limited = counter(
            "galley_tenant_rate_limited", "Requests that a tenant's limit refused", "limit"
        )
        self._running = Gauge(
            "galley_tenant_requests_running",
            "Requests running, by tenant",
            ["tenant"],
            registry=registry,
        )

    def answered(self, tenant: str, status: int) -> None:
        """An HTTP response to one of the tenant's requests is complete."""
        self._requests.labels(tenant, str(status)).inc()

    def begun(self, tenant: str) -> None:
        """A request of the tenant's begins."""
        self._running.labels(tenant).inc()

    def ended(self, tenant: str) -> None:
        """It has ended."""
        self._running.labels(tenant).dec()

    def tokens(self, tenant: str, kind: TokenKind, count: int) -> None:
        """So many tokens; those "cached" are among those of the "prompt"."""
        self._tokens.labels(tenant, kind).inc(count)

    def limited(self, tenant: str, limit: str) -> None:
        """A limit, of "requests", "tokens" or "concurrency", has refused a request."""
        self._limited.labels(tenant, limit).inc()


class _Families:
    """Every metric that events feed, for all models."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, help: str, *labels: str) -> Counter:
            return Counter(name, help, ["model", *labels], registry=registry)

        def histogram(name: str, help: str, buckets: tuple[float, ...] = _SECONDS) -> Histogram:
            return Histogram(name, help, ["model", "endpoint"], buckets=buckets, registry=registry)

        self.finished = counter(
            "galley_finished_sequences", "Sequences ended, by reason", "endpoint", "finish_reason"
        )
        self.prompt_tokens = counter("galley_prompt_tokens", "Prompt tokens of requests")
        self.cached_tokens = counter(
            "galley_cached_prompt_tokens", "Prompt tokens served from the prefix cache"
        )
        self.generated_tokens = counter("galley_generated_tokens", "Tokens generated")
        self.audio = counter("galley_audio_seconds", "Audio that was transcribed", "endpoint")
        self.first_token = histogram(
            "galley_time_to_first_token_seconds", "From arrival to the first token"
        )
        self.per_token = histogram(
            "galley_time_per_output_token_seconds",
            "Mean time between the tokens of a sequence after its first",
            _TOKEN_SECONDS,
        )
        self.duration = histogram(
            "galley_request_duration_seconds", "From arrival to the last token"
        )
        self.queue = histogram(
            "galley_queue_seconds", "From arrival in the engine to the first step"
        )
        self.startup = Gauge(
            "galley_startup_phase_seconds",
            "What each phase of the latest engine start took",
            ["model", "phase"],
            registry=registry,
        )
        self.planned = Gauge(
            "galley_planned_memory_bytes",
            "The memory ledger of the latest engine start, by part",
            ["model", "part"],
            registry=registry,
        )


class _EngineTotals:
    """Counters of one model's engines, made monotonic over restarts."""

    def __init__(self, engine: Callable[[], tuple[EngineStats, int]]) -> None:
        self._engine = engine
        self._last_restarts = 0
        self.last = EngineStats()
        self.totals = dict.fromkeys(_ENGINE_TOTALS, 0)

    @property
    def restarts(self) -> int:
        """So far."""
        return self._engine()[1]

    def observe(self) -> None:
        """Take in the newest snapshot. Called often enough that little is lost with an engine."""
        stats, restarts = self._engine()
        if stats == self.last:
            return
        reborn = restarts != self._last_restarts or stats.steps < self.last.steps
        before = EngineStats() if reborn else self.last
        for name in self.totals:
            self.totals[name] += getattr(stats, name) - getattr(before, name)
        self.last, self._last_restarts = stats, restarts


class _EngineCollector(Collector):
    """What the engines say, as of the scrape."""

    def __init__(self) -> None:
        self.models: dict[str, _EngineTotals] = {}

    def collect(self) -> Iterator[Metric]:
        """See :class:`prometheus_client.registry.Collector`."""
        for engine in self.models.values():
            engine.observe()
        for field, (name, meaning) in _ENGINE_TOTALS.items():
            counter = CounterMetricFamily(name, meaning, labels=["model"])
            for model, engine in self.models.items():
                counter.add_metric([model], engine.totals[field])
            yield counter
        yield from self._states()

    def _states(self) -> Iterator[Metric]:
        """What the newest snapshots say of now."""
        restarts = CounterMetricFamily(
            "galley_engine_restarts", "Engine restarts", labels=["model"]
        )
        running = _gauge("galley_requests_running", "Sequences running")
        waiting = _gauge("galley_requests_waiting", "Sequences waiting")
        blocks = _gauge("galley_kv_blocks", "KV blocks by state", "state")
        usage = _gauge("galley_kv_usage_ratio", "Share of the KV blocks in use")
        for model, engine in self.models.items():
            stats = engine.last
            restarts.add_metric([model], engine.restarts)
            running.add_metric([model], stats.running)
            waiting.add_metric([model], stats.waiting)
            used, cached, total = (
                stats.kv_used_blocks,
                stats.kv_cached_blocks,
                stats.kv_total_blocks,
            )
            blocks.add_metric([model, "used"], used)
            blocks.add_metric([model, "cached"], cached)
            blocks.add_metric([model, "free"], total - used - cached)
            usage.add_metric([model], used / total if total else 0.0)
        yield from (restarts, running, waiting, blocks, usage)


def _gauge(name: str, meaning: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, meaning, labels=["model", *labels])


def _memory(part: str) -> float:
    return float(getattr(memory(), part))
