"""The metrics page, read by Prometheus' own parser."""

from itertools import pairwise

import httpx
import pytest

from galley.observe.metrics import Metrics
from galley.types import EngineStats
from tests.server.conftest import CONTEXT
from tests.server.serving import Server, until

pytestmark = pytest.mark.xdist_group("server_metrics")

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
    ):
        assert gained(f"galley_{name}_count{{endpoint={PLAIN}}}") == 2
        assert gained(f"galley_{name}_sum{{endpoint={PLAIN}}}") > 0
    assert after["galley_requests_running"] == after["galley_requests_waiting"] == 0
    assert after["galley_engine_restarts_total"] == after["galley_preemptions_total"] == 0
    blocks = [after[f"galley_kv_blocks{{state={state}}}"] for state in ("used", "cached", "free")]
    assert min(blocks) >= 0
    assert sum(blocks) == 4 * CONTEXT / 16
    assert after["galley_kv_usage_ratio"] == 0


def test_counters_survive_engine_restarts() -> None:
    snapshots = [
        (EngineStats(steps=5, preemptions=1), 0),
        (EngineStats(steps=9, preemptions=1), 0),
        (EngineStats(steps=9, preemptions=1), 1),  # dead, its last snapshot still there
        (EngineStats(steps=3, preemptions=2), 1),
        (EngineStats(steps=30, preemptions=2), 2),  # a new one that got further unseen
    ]
    current = snapshots[0]
    metrics = Metrics()
    metrics.model("m", lambda: current)
    totals = []
    for current in snapshots:  # noqa: B007, the lambda reads it
        page = metrics.render().decode()
        totals.append(float(page.split('\ngalley_engine_steps_total{model="m"} ')[1].split()[0]))
    assert totals == [5, 9, 9, 12, 42]
    assert all(earlier <= later for earlier, later in pairwise(totals))
