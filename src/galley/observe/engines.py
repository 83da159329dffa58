"""Metrics of engines, from the statistics that their processes report, as of the scrape."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Protocol

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from galley.observe.engine_counters import COUNTERS
from galley.observe.tally import COUNTS, Tally
from galley.types.engine_stats import EngineStats, ReplicaStatus
from galley.types.model_info import ModelInfo

_HOUR: Final = 3600.0

_REPLICA_TOTALS: Final = (
    ("restarts", "galley_replica_restarts", "Replacements of the replica's engine"),
    ("prefill_tokens", "galley_replica_prefill_tokens", "Prompt tokens computed"),
    ("decode_tokens", "galley_replica_decode_tokens", "Output tokens fed back through the model"),
    (
        "prefix_query_tokens",
        "galley_replica_prefix_cache_query_tokens",
        "Prompt tokens looked up in the prefix cache",
    ),
    (
        "prefix_hit_tokens",
        "galley_replica_prefix_cache_hit_tokens",
        "Prompt tokens found in the prefix cache",
    ),
)
"""Counters of replicas, of models that have several: field, metric name (without ``_total``) and help."""


_PROPOSERS: Final = ("prompt", "recent", "grammar", "draft")
_GUESS_FIELDS: Final = tuple(
    f"{proposer}_{kind}_tokens" for proposer in _PROPOSERS for kind in ("proposed", "accepted")
)
_STEP_FIELDS: Final = ("schedule_seconds", "forward_seconds", "sample_seconds", "emit_seconds")


class ServedEngine(Protocol):
    """The model properties that the metrics read at each scrape."""

    @property
    def stats(self) -> EngineStats:
        """The sums of its engines' latest statistics."""

    @property
    def replicas(self) -> Sequence[ReplicaStatus]:
        """The status of each of its engines."""

    @property
    def restarts(self) -> int:
        """How often its engine's process was replaced."""

    @property
    def killed_starts(self) -> int:
        """How often its engine's process was killed while it loaded."""

    @property
    def info(self) -> ModelInfo | None:
        """The description of the loaded model; None before it is loaded."""

    @property
    def is_ready(self) -> bool | None:
        """Whether the engine accepts requests now; None if the model has yet to be loaded on request."""

    @property
    def token_budget(self) -> int:
        """The maximum number of tokens of a step."""

    @property
    def processes(self) -> Mapping[str, Sequence[int]]:
        """Kind of process, such as ``engine`` or ``text`` -> process ids of those that run."""


class ReplicaTotals:
    """Counters of one replica's engines, made monotonic over restarts.

    Attributes:
        last: the latest snapshot.
    """

    def __init__(self) -> None:
        """Create it before the first engine."""
        self.last = EngineStats()
        self._restarts = 0
        self._before = dict.fromkeys((*COUNTERS, *_GUESS_FIELDS, *_STEP_FIELDS), 0.0)
        """Totals of the engines before the current one."""

    def observe(self, stats: EngineStats, restarts: int) -> bool:
        """Record a snapshot of the engine after ``restarts`` others; return whether a step ended."""
        last = self.last
        if stats == last:
            return False
        if restarts != self._restarts or stats.steps < last.steps:
            for name in self._before:
                self._before[name] += getattr(last, name)
            self._restarts, last = restarts, EngineStats()
        self.last = stats
        return stats.steps != last.steps

    def total(self, field: str) -> float:
        """Return the total over all engines so far; ``field`` is a counter of EngineStats."""
        latest: float = getattr(self.last, field)
        return self._before[field] + latest


class EngineTotals:
    """Counters of one model's engines, and histograms of their steps."""

    def __init__(self, engine: ServedEngine) -> None:
        self.engine = engine
        self.batch_sequences, self.batch_tokens = Tally(COUNTS), Tally(COUNTS)
        self._replicas: dict[str, ReplicaTotals] = {}

    def observe(self, replica: ReplicaStatus) -> None:
        """Record a snapshot. Called after each step, so that little is lost when an engine dies."""
        totals = self.of(replica)
        # The counters of a remote replica continue when the connection to it is lost.
        restarts = 0 if replica.remote else replica.restarts
        if totals.observe(replica.stats, restarts):
            self.batch_sequences.observe(replica.stats.batch_sequences)
            self.batch_tokens.observe(replica.stats.batch_tokens)

    def of(self, replica: ReplicaStatus) -> ReplicaTotals:
        """Return the totals of a replica."""
        totals = self._replicas.get(replica.name)
        if totals is None:
            totals = self._replicas[replica.name] = ReplicaTotals()
        return totals

    def total(self, field: str) -> float:
        """Return the total over all engines so far; ``field`` is a counter of EngineStats."""
        return sum(one.total(field) for one in self._replicas.values())

    def step_seconds(self) -> dict[str, float]:
        """Return the seconds of all steps by phase."""
        sample = self.total("sample_seconds")
        return {
            "schedule": self.total("schedule_seconds"),
            "execute": self.total("forward_seconds") - sample,
            "sample": sample,
            "emit": self.total("emit_seconds"),
        }


class EngineCollector(Collector):
    """Collects the metrics of all engines of a server.

    Attributes:
        models: model name -> totals of its engines.
    """

    def __init__(self, price_per_hour: float | None) -> None:
        """Create the collector; ``price_per_hour``: the machine's price; None: no costs are reported."""
        self.models: dict[str, EngineTotals] = {}
        self._price_per_hour = price_per_hour

    def collect(self) -> Iterator[Metric]:
        """See :class:`prometheus_client.registry.Collector`."""
        for engine in self.models.values():
            for replica in engine.engine.replicas:
                engine.observe(replica)
        for field, (name, meaning) in COUNTERS.items():
            counter = CounterMetricFamily(name, meaning, labels=["model"])
            for model, engine in self.models.items():
                counter.add_metric([model], engine.total(field))
            yield counter
        yield from self._draft_tokens()
        yield from self._states()
        yield from self._replicas()
        yield from self._blocks()
        yield from self._steps()
        yield from self._models()
        yield from self._costs()

    def _draft_tokens(self) -> Iterator[Metric]:
        for kind, meaning in (
            ("proposed", "Draft tokens that were verified"),
            ("accepted", "Draft tokens that were accepted"),
        ):
            name = f"galley_speculation_{kind}_tokens"
            counter = CounterMetricFamily(name, meaning, labels=["model", "proposer"])
            for model, engine in self.models.items():
                for proposer in _PROPOSERS:
                    value = engine.total(f"{proposer}_{kind}_tokens")
                    counter.add_metric([model, proposer], value)
            yield counter

    def _states(self) -> Iterator[Metric]:
        restarts = CounterMetricFamily(
            "galley_engine_restarts", "Engine restarts", labels=["model"]
        )
        killed = CounterMetricFamily(
            "galley_engine_killed_starts",
            "Engines that were killed while loading",
            labels=["model"],
        )
        ready = _gauge("galley_engine_ready", "1 if the engine accepts requests, else 0")
        running = _gauge("galley_requests_running", "Sequences running")
        waiting = _gauge("galley_requests_waiting", "Sequences waiting")
        adapters = _gauge("galley_adapters_loaded", "LoRA adapters in memory")
        experts = _gauge("galley_expert_cache_bytes", "Memory of the cache for experts on disk")
        prefixes = _gauge("galley_prefix_disk_bytes", "Bytes of the files in prefix_cache_dir")
        for model, engine in self.models.items():
            restarts.add_metric([model], engine.engine.restarts)
            killed.add_metric([model], engine.engine.killed_starts)
            if (is_ready := engine.engine.is_ready) is not None:
                ready.add_metric([model], float(is_ready))
            stats = engine.engine.stats
            running.add_metric([model], stats.running)
            waiting.add_metric([model], stats.waiting)
            adapters.add_metric([model], stats.adapters_loaded)
            experts.add_metric([model], stats.expert_cache_bytes)
            prefixes.add_metric([model], stats.prefix_disk_bytes)
        yield from (restarts, killed, ready, running, waiting, adapters, experts, prefixes)

    def _replicas(self) -> Iterator[Metric]:
        ready = _gauge(
            "galley_replica_ready", "1 if the replica accepts requests, else 0", "replica"
        )
        running = _gauge("galley_replica_requests_running", "Sequences running", "replica")
        waiting = _gauge("galley_replica_requests_waiting", "Sequences waiting", "replica")
        usage = _gauge("galley_replica_kv_usage_ratio", "Share of its KV blocks in use", "replica")
        counters = {
            field: CounterMetricFamily(name, meaning, labels=["model", "replica"])
            for field, name, meaning in _REPLICA_TOTALS
        }
        for model, engine in self.models.items():
            replicas = engine.engine.replicas
            for replica in replicas if len(replicas) > 1 else ():
                labels, stats = [model, replica.name], replica.stats
                ready.add_metric(labels, float(replica.state == "ready"))
                running.add_metric(labels, stats.running)
                waiting.add_metric(labels, stats.waiting)
                usage.add_metric(labels, stats.kv_usage)
                totals = engine.of(replica)
                for field, counter in counters.items():
                    value = replica.restarts if field == "restarts" else totals.total(field)
                    counter.add_metric(labels, value)
        yield from (ready, running, waiting, usage, *counters.values())

    def _blocks(self) -> Iterator[Metric]:
        blocks = _gauge("galley_kv_blocks", "KV blocks by state", "state")
        usage = _gauge("galley_kv_usage_ratio", "Share of the KV blocks in use")
        for model, engine in self.models.items():
            stats = engine.engine.stats
            used, cached = stats.kv_used_blocks, stats.kv_cached_blocks
            blocks.add_metric([model, "used"], used)
            blocks.add_metric([model, "cached"], cached)
            blocks.add_metric([model, "free"], stats.kv_total_blocks - used - cached)
            usage.add_metric([model], stats.kv_usage)
        yield from (blocks, usage)

    def _steps(self) -> Iterator[Metric]:
        seconds = CounterMetricFamily(
            "galley_step_seconds", "Time of engine steps by phase", labels=["model", "phase"]
        )
        sequences = _histogram("galley_batch_sequences", "Sequences computed in a step")
        tokens = _histogram("galley_batch_tokens", "Tokens and encoder rows computed in a step")
        budget = _gauge("galley_batch_token_budget", "Maximum tokens per step")
        for model, engine in self.models.items():
            for phase, spent in engine.step_seconds().items():
                seconds.add_metric([model, phase], spent)
            for family, tally in (
                (sequences, engine.batch_sequences),
                (tokens, engine.batch_tokens),
            ):
                family.add_metric([model], tally.buckets(), tally.sum)
            budget.add_metric([model], engine.engine.token_budget)
        yield from (seconds, sequences, tokens, budget)

    def _models(self) -> Iterator[Metric]:
        about = InfoMetricFamily("galley_model", "The loaded model", labels=["model"])
        context = _gauge("galley_model_context_tokens", "Context limit")
        cache = _gauge("galley_kv_cache_tokens", "Capacity of the KV cache in tokens")
        weights = _gauge("galley_model_weight_bytes", "Bytes of weights that a step reads")
        for model, engine in self.models.items():
            info = engine.engine.info
            if info is None:
                continue
            about.add_metric([model], _described(info))
            if info.text is not None:
                context.add_metric([model], info.text.max_model_len)
                cache.add_metric([model], info.text.kv_cache_tokens)
            if info.program is not None:
                weights.add_metric([model], info.program.costs.weight_bytes)
        yield from (about, context, cache, weights)

    def _costs(self) -> Iterator[Metric]:
        cost = CounterMetricFamily(
            "galley_cost", "Engine time at the machine's price", labels=["model"]
        )
        price = GaugeMetricFamily("galley_price_per_hour", "Price of the machine per hour")
        if self._price_per_hour is not None:
            price.add_metric([], self._price_per_hour)
            for model, engine in self.models.items():
                spent = engine.total("busy_seconds") / _HOUR
                cost.add_metric([model], spent * self._price_per_hour)
        yield from (cost, price)


def _described(info: ModelInfo) -> dict[str, str]:
    labels = {"family": info.family, "executor": info.executor, "tasks": ",".join(info.tasks)}
    labels["adapters"] = str(info.text.adapters if info.text is not None else 0)
    for name in ("dtype", "weight_dtype", "activations", "kv_dtype"):
        labels[name] = "" if info.program is None else getattr(info.program, name)
    if info.weights is not None:
        labels |= {"weights": info.weights.kind, "method": info.weights.method}
        labels["calibration"] = info.weights.calibration
        for name in ("kl", "kl99", "top1"):
            loss = getattr(info.weights, name)
            labels[name] = "" if loss is None else f"{loss:.3g}"
    return labels


def _gauge(name: str, meaning: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, meaning, labels=["model", *labels])


def _histogram(name: str, meaning: str) -> HistogramMetricFamily:
    return HistogramMetricFamily(name, meaning, labels=["model"])
