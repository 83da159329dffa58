"""The metrics page, read by Prometheus' own parser."""

from itertools import pairwise
from typing import ClassVar

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from galley import __version__
from galley.observe.metrics import Metrics
from galley.observe.tally import COUNTS, FACTORS, SECONDS, TallyFamily
from galley.types.engine_stats import EngineStats, ReplicaStatus
from tests.server.conftest import CONTEXT
from tests.server.serving import Server, until

pytestmark = pytest.mark.xdist_group("default_server")

PLAIN = "/v1/completions"


def test_every_metric_is_there_and_counts(server: Server) -> None:
    before = server.metrics()
    body = {"model": "tiny", "prompt": "the cat sat " * 20, "max_tokens": 7, "ignore_eos": True}
    for _ in range(2):
        usage = httpx.post(server.url + PLAIN, json=body).json()["usage"]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    assert cached > 0
    httpx.post(server.url + PLAIN, json=body | {"temperature": -1})
    until(lambda: server.metrics()["galley_kv_blocks{state=used}"] == 0)
    after = server.metrics()

    def gained(name: str) -> float:
        return after[name] - before.get(name, 0)

    assert gained("galley_prompt_tokens_total") == 2 * usage["prompt_tokens"]
    assert gained("galley_cached_prompt_tokens_total") == cached
    assert gained("galley_generated_tokens_total") == 14
    assert gained("galley_prefix_cache_hit_tokens_total") == cached
    assert gained("galley_prefix_cache_query_tokens_total") >= 2 * usage["prompt_tokens"] - 2
    assert gained("galley_engine_steps_total") >= 14
    assert gained(f"galley_requests_total{{endpoint={PLAIN},status=200}}") == 2
    assert gained(f"galley_requests_total{{endpoint={PLAIN},status=400}}") == 1
    assert gained(f"galley_finished_sequences_total{{endpoint={PLAIN},finish_reason=length}}") == 2
    for name in (
        "time_to_first_token_seconds",
        "time_per_output_token_seconds",
        "request_duration_seconds",
        "queue_seconds",
        "prefill_seconds",
        "decode_seconds",
    ):
        assert gained(f"galley_{name}_count{{endpoint={PLAIN}}}") == 2
        assert gained(f"galley_{name}_sum{{endpoint={PLAIN}}}") > 0
    # There may be fewer than tokens: those of several steps may arrive at once.
    assert gained("galley_inter_token_seconds_count") <= 12
    assert gained("galley_batch_sequences_sum") == gained("galley_engine_steps_total")
    computed = gained("galley_prefill_tokens_total") + gained("galley_decode_tokens_total")
    assert gained("galley_batch_tokens_sum") == computed
    assert after["galley_batch_token_budget"] == 512
    phases = ("schedule", "execute", "sample", "emit")
    spent = [gained(f"galley_step_seconds_total{{phase={phase}}}") for phase in phases]
    assert min(spent) > 0
    # The rest is spent between steps, and on a busy machine that may be most of it. The last step's
    # results are emitted when the engine has no more work to charge for it.
    *computing, _ = spent
    assert sum(computing) <= gained("galley_engine_busy_seconds_total")
    assert gained(f"galley_request_outcomes_total{{endpoint={PLAIN},outcome=ok}}") == 2
    assert gained(f"galley_request_outcomes_total{{endpoint={PLAIN},outcome=client_error}}") == 1
    assert after["galley_engine_ready"] == 1
    assert after["galley_kv_cache_tokens"] == 4 * CONTEXT
    assert after["galley_model_context_tokens"] == CONTEXT
    [about] = [name for name in after if name.startswith("galley_model_info")]
    assert "executor=cpu" in about
    assert "family=llama" in about
    [build] = [name for name in after if name.startswith("galley_build_info")]
    assert f"version={__version__}" in build
    server_bytes = after["galley_process_resident_bytes{process=server}"]
    assert server_bytes == pytest.approx(after["process_resident_memory_bytes"], rel=0.1)
    assert after["galley_process_resident_bytes{process=engine}"] > 10_000_000
    assert after["galley_requests_running"] == after["galley_requests_waiting"] == 0
    assert after["galley_engine_restarts_total"] == after["galley_preemptions_total"] == 0
    blocks = [after[f"galley_kv_blocks{{state={state}}}"] for state in ("used", "cached", "free")]
    assert min(blocks) >= 0
    assert sum(blocks) == 4 * CONTEXT / 16
    assert after["galley_kv_usage_ratio"] == 0


class Engine:
    """An engine as seen by the metrics: its snapshots are supplied by the test."""

    stats = EngineStats()
    replicas: tuple[ReplicaStatus, ...] = ()
    restarts = 0
    killed_starts = 0
    info = None
    is_ready = True
    token_budget = 512
    processes: ClassVar[dict[str, list[int]]] = {}


def test_counters_survive_engine_restarts() -> None:
    snapshots = [
        (EngineStats(steps=5, preemptions=1), 0),
        (EngineStats(steps=9, preemptions=1), 0),
        (EngineStats(steps=9, preemptions=1), 1),  # the engine is dead, its last snapshot remains
        (EngineStats(steps=3, preemptions=2), 1),
        (EngineStats(steps=30, preemptions=2), 2),  # a new engine, already further
    ]
    engine, metrics = Engine(), Metrics()
    metrics.model("m", engine)
    totals = []
    for stats, engine.restarts in snapshots:
        status = ReplicaStatus(name="0", state="ready", stats=stats, restarts=engine.restarts)
        engine.replicas = (status,)
        page = metrics.render().decode()
        totals.append(float(page.split('\ngalley_engine_steps_total{model="m"} ')[1].split()[0]))
    assert totals == [5, 9, 9, 12, 42]
    assert all(earlier <= later for earlier, later in pairwise(totals))


@given(st.lists(st.floats(0, 100), max_size=50), st.sampled_from([SECONDS, COUNTS, FACTORS]))
def test_a_tally_counts_as_prometheus_does(values: list[float], bounds: tuple[float, ...]) -> None:
    theirs = CollectorRegistry()
    histogram = Histogram("seconds", "Help", ["a"], buckets=bounds, registry=theirs)
    ours = CollectorRegistry()
    family = TallyFamily("seconds", "Help", ["a"], bounds)
    ours.register(family)
    for value in values:
        histogram.labels("x").observe(value)
        family.labels("x").observe(value)
    if values:
        page = generate_latest(theirs).decode()
        kept = [line for line in page.splitlines(keepends=True) if "_created" not in line]
        assert generate_latest(ours).decode() == "".join(kept)
