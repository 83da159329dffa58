"""Prometheus metrics of one server, fed by events.

Each :class:`Metrics` has a separate registry, so several servers can run in one process. The engine's
counters restart from zero with a new engine process; the totals exposed here do not.
"""

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, ProcessCollector, generate_latest

from galley.observe.engines import EngineCollector, EngineTotals, ServedEngine
from galley.observe.resources import ResourceCollector
from galley.observe.responses import ResponseFamilies, ResponseMetrics, StoreCollector, WatchedStore
from galley.observe.tally import FACTORS, SECONDS, TOKEN_SECONDS, Sum, SumFamily, Tally, TallyFamily
from galley.observe.tenants import TenantMetrics
from galley.observe.vllm_names import VllmNamesCollector
from galley.types.engine_stats import ReplicaStatus
from galley.types.model_info import Ledger

_CANCELLED: Final = 499
_PLANNED: Final = (
    "weights",
    "experts",
    "adapters",
    "kv",
    "states",
    "buffers",
    "reserve",
    "available",
)
"""Parts of the ledger that are exposed."""
_OUTCOMES: Final = {
    _CANCELLED: "cancelled",
    408: "timeout",
    504: "timeout",
    429: "refused",
    503: "refused",
}


class Metrics:
    """All metrics of one server. Metrics of a model have the label ``model``."""

    def __init__(self, price_per_hour: float | None = None, *, vllm_names: bool = False) -> None:
        """Create and register the metrics.

        Args:
            price_per_hour: the machine's price, in any currency.
            vllm_names: add gauges by vLLM's names.
        """
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._requests = SumFamily(
            "galley_requests", "HTTP requests answered, by route and status", ["endpoint", "status"]
        )
        self._outcomes = SumFamily(
            "galley_request_outcomes",
            "HTTP requests answered, by route and outcome",
            ["endpoint", "outcome"],
        )
        self._registry.register(self._requests)
        self._registry.register(self._outcomes)
        self.tenants = TenantMetrics(self._registry)
        self._families = _Families(self._registry)
        self._responses = ResponseFamilies(self._registry, price_per_hour)
        self._store = StoreCollector()
        self._registry.register(self._store)
        self._engines = EngineCollector(price_per_hour)
        self._registry.register(self._engines)
        if vllm_names:
            self._registry.register(VllmNamesCollector(self._engines.models))
        self._registry.register(
            ResourceCollector(
                lambda: {n: m.engine.processes for n, m in self._engines.models.items()}
            )
        )

    def model(self, name: str, engine: ServedEngine) -> "ModelMetrics":
        """Return the metrics of one more model.

        Args:
            name: the value of the label ``model``; unique.
            engine: read at each scrape.
        """
        totals = self._engines.models[name] = EngineTotals(engine)
        return ModelMetrics(name, self._families, totals, self.tenants, self._responses.of(name))

    def watch_responses(self, store: WatchedStore) -> None:
        """Show what the response cache holds."""
        self._store.store = store

    def request_answered(self, endpoint: str, status: int, tenant: str | None = None) -> None:
        """Count a completed HTTP response; ``tenant``: the tenant's name; None: no key was required."""
        self._requests.labels(endpoint, str(status)).inc()
        self._outcomes.labels(endpoint, _outcome(status)).inc()
        if tenant is not None:
            self.tenants.answered(tenant, status)

    def render(self) -> bytes:
        """Return the page that Prometheus scrapes, in its text format."""
        return generate_latest(self._registry)


class ModelMetrics:
    """The metrics of one model. Created by :meth:`Metrics.model`.

    Attributes:
        tenants: metrics of all models, per tenant.
        inter_token: seconds from one Output of a sequence to its next.
        generated: counter of generated tokens.
        responses: what the response cache does.
    """

    def __init__(
        self,
        name: str,
        families: "_Families",
        engine: EngineTotals,
        tenants: TenantMetrics,
        responses: ResponseMetrics,
    ) -> None:
        self.tenants = tenants
        self.responses = responses
        self.inter_token: Tally = families.inter_token.labels(name)
        self.generated: Sum = families.generated_tokens.labels(name)
        self._name = name
        self._families = families
        self._engine = engine
        self._prompt_tokens = families.prompt_tokens.labels(name)
        self._cached_tokens = families.cached_tokens.labels(name)

    def phase_ended(self, phase: str, seconds: float) -> None:
        """Record the duration of a start-up phase."""
        self._families.startup.labels(self._name, phase).set(seconds)

    def planned(self, ledger: Ledger) -> None:
        """Record the memory plan of an engine that starts."""
        for part in _PLANNED:
            self._families.planned.labels(self._name, part).set(getattr(ledger, part))

    def step_ended(self, replica: ReplicaStatus) -> None:
        """Record the statistics of a replica after a step of its engine."""
        self._engine.observe(replica)

    def prompts_taken(self, tokens: int) -> None:
        """Count the ``tokens`` of all prompts of an admitted request."""
        self._prompt_tokens.inc(tokens)

    def prefixes_reused(self, tokens: int) -> None:
        """Count the ``tokens`` of a request's prompts that the prefix cache held."""
        self._cached_tokens.inc(tokens)

    def first_token(self, endpoint: str, seconds: float) -> None:
        """Record a sequence's first token, ``seconds`` after its request arrived."""
        self._families.first_token.labels(self._name, endpoint).observe(seconds)

    def sequence_finished(self, endpoint: str, reason: str) -> None:
        """Count a sequence that has ended; ``reason``: its finish reason, ``cancelled`` or ``error``."""
        self._families.finished.labels(self._name, endpoint, reason).inc()

    def sequence_timed(self, endpoint: str, *, duration: float, per_token: float | None) -> None:
        """Record the times in seconds of a sequence that ran to completion; ``None``: unknown."""
        self._families.duration.labels(self._name, endpoint).observe(duration)
        if per_token is not None:
            self._families.per_token.labels(self._name, endpoint).observe(per_token)

    def request_timed(self, endpoint: str, *, queue: float, prefill: float, decode: float) -> None:
        """Record the times in seconds on the receipt of a request that was answered."""
        labels = (self._name, endpoint)
        self._families.queue.labels(*labels).observe(queue)
        self._families.prefill.labels(*labels).observe(prefill)
        self._families.decode.labels(*labels).observe(decode)

    def release_finished(
        self, release: str, reason: str, tokens: int, first_token: float, duration: float
    ) -> None:
        """Record a sequence that a release of the model has finished.

        Args:
            release: the release.
            reason: the finish reason.
            tokens: the number of its tokens.
            first_token: seconds from its submission to the first token.
            duration: seconds from its submission to the end.
        """
        families = self._families
        families.release_sequences.labels(self._name, release, reason).inc()
        families.release_tokens.labels(self._name, release).inc(tokens)
        families.release_first_token.labels(self._name, release).observe(first_token)
        families.release_duration.labels(self._name, release).observe(duration)

    def audio_transcribed(self, endpoint: str, seconds: float, reason: str) -> None:
        """Count a recording or live stream that has ended; ``reason``: see :meth:`sequence_finished`."""
        self._families.audio.labels(self._name, endpoint).inc(seconds)
        self.sequence_finished(endpoint, reason)

    def speech_begun(self, endpoint: str, seconds: float) -> None:
        """Record a spoken text's first audio, ``seconds`` after its request arrived."""
        self._families.first_audio.labels(self._name, endpoint).observe(seconds)

    def speech_ended(self, endpoint: str, *, audio: float, work: float, reason: str) -> None:
        """Count a spoken text that has ended.

        Args:
            endpoint: the route.
            audio: seconds of its audio.
            work: seconds that the engine worked for it.
            reason: see :meth:`sequence_finished`.
        """
        self._families.spoken.labels(self._name, endpoint).inc(audio)
        if audio and reason == "stop":
            self._families.speech_factor.labels(self._name, endpoint).observe(work / audio)
        self.sequence_finished(endpoint, reason)

    def recording_done(self, endpoint: str, *, audio: float, work: float) -> None:
        """Record that ``audio`` seconds were transcribed ``work`` seconds after the request arrived."""
        self._families.real_time.labels(self._name, endpoint).observe(work / audio)


class _Families:
    """All metrics that are updated by events, for all models."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, help: str, *labels: str) -> Counter:
            return Counter(name, help, ["model", *labels], registry=registry)

        def histogram(
            name: str,
            help: str,
            bounds: tuple[float, ...] = SECONDS,
            labels: tuple[str, ...] = ("model", "endpoint"),
        ) -> TallyFamily:
            family = TallyFamily(name, help, labels, bounds)
            registry.register(family)
            return family

        self.finished = SumFamily(
            "galley_finished_sequences",
            "Sequences ended, by reason",
            ["model", "endpoint", "finish_reason"],
        )
        registry.register(self.finished)
        self.prompt_tokens = counter("galley_prompt_tokens", "Prompt tokens of requests")
        self.cached_tokens = counter(
            "galley_cached_prompt_tokens", "Prompt tokens served from the prefix cache"
        )
        self.generated_tokens = SumFamily("galley_generated_tokens", "Tokens generated", ["model"])
        registry.register(self.generated_tokens)
        self.audio = counter("galley_audio_seconds", "Audio transcribed", "endpoint")
        self.real_time = histogram(
            "galley_audio_real_time_factor",
            "Request duration per second of audio",
            FACTORS,
        )
        self.spoken = counter("galley_speech_seconds", "Audio of spoken texts", "endpoint")
        self.speech_factor = histogram(
            "galley_speech_real_time_factor", "Engine time per second of spoken audio", FACTORS
        )
        self.first_audio = histogram(
            "galley_time_to_first_audio_seconds", "From arrival to the first audio of a spoken text"
        )
        self.first_token = histogram(
            "galley_time_to_first_token_seconds", "From arrival to the first token"
        )
        self.per_token = histogram(
            "galley_time_per_output_token_seconds",
            "Mean time between the tokens of a sequence after its first",
            TOKEN_SECONDS,
        )
        self.inter_token = histogram(
            "galley_inter_token_seconds",
            "Time between two deliveries of tokens of a sequence",
            TOKEN_SECONDS,
            ("model",),
        )
        self.duration = histogram(
            "galley_request_duration_seconds", "From arrival to the last token"
        )
        self.queue = histogram(
            "galley_queue_seconds", "From arrival in the engine to the first step"
        )
        self.prefill = histogram("galley_prefill_seconds", "From the first step to the first token")
        self.decode = histogram("galley_decode_seconds", "From the first token to the end")
        self.release_sequences = counter(
            "galley_release_sequences",
            "Sequences ended, by release and reason",
            "release",
            "finish_reason",
        )
        self.release_tokens = counter(
            "galley_release_generated_tokens", "Tokens generated, by release", "release"
        )
        self.release_first_token = histogram(
            "galley_release_time_to_first_token_seconds",
            "From submission to the first token, by release",
            labels=("model", "release"),
        )
        self.release_duration = histogram(
            "galley_release_duration_seconds",
            "From submission to the last token, by release",
            labels=("model", "release"),
        )
        self.startup = Gauge(
            "galley_startup_phase_seconds",
            "Duration of each phase of the latest engine start",
            ["model", "phase"],
            registry=registry,
        )
        self.planned = Gauge(
            "galley_planned_memory_bytes",
            "Memory ledger of the latest engine start, by part",
            ["model", "part"],
            registry=registry,
        )


def _outcome(status: int) -> str:
    """Return ``ok``, ``refused``, ``timeout``, ``cancelled``, ``client_error`` or ``error``."""
    if status < 400:
        return "ok"
    return _OUTCOMES.get(status, "client_error" if status < 500 else "error")
