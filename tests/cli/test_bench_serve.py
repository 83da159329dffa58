"""galley bench serve, as a process, against a real server with the bundled models."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from galley.cli.bench_serve import serve
from galley.errors import EngineError, SettingsError
from tests.server.serving import Server
from tests.speech.recordings import CALL

from .command import free_port, galley

pytestmark = pytest.mark.xdist_group("bench_serve")

SHORT = ("--prompt-tokens", "30-60", "--output-tokens", 8, "--warmup", 2)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("server") / "log"
    models = ["chat=galley-demo", "speech=galley-demo-speech"]
    with Server(models, log, threads=1, kv_cache_tokens=8192) as running:
        yield running


def bench(server: Server, file: Path, *args: str | float | Path) -> dict[str, Any]:
    done = galley("bench", "serve", server.url, *map(str, args), "--json", file)
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(file.read_text())
    return report


def counted(server: Server) -> tuple[float, float]:
    """Return prompt tokens and generated tokens, as counted by the server."""
    metrics = server.metrics("chat")
    return metrics["galley_prompt_tokens_total"], metrics["galley_generated_tokens_total"]


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_tokens_are_those_that_the_server_counts(
    server: Server, tmp_path: Path, endpoint: str
) -> None:
    before = counted(server)
    flags = ("--endpoint", endpoint, "--prompt-tokens", 90, "--output-tokens", 8, "--warmup", 2)
    report = bench(server, tmp_path / "a.json", *flags, "--concurrency", "1,3", "--requests", 6)
    assert [point["load"] for point in report["points"]] == [1, 3]
    for point in report["points"]:
        assert (point["completed"], point["errors"], point["counted"]) == (6, {}, True)
        # Prompts are built to their length exactly, the chat template included.
        assert (point["prompt_tokens"], point["output_tokens"]) == (90, 8)
        assert 0 < point["ttft_s"]["p50"] <= point["latency_s"]["p50"]
        assert point["tpot_s"]["p50"] > 0
        assert point["goodput_per_s"] is None
    after = counted(server)
    requests = 2 * (2 + 6)
    assert (after[0] - before[0], after[1] - before[1]) == (90 * requests, 8 * requests)


def test_an_open_loop_has_goodput_cost_and_a_page(server: Server, tmp_path: Path) -> None:
    file, page = tmp_path / "a.json", tmp_path / "a.html"
    goals = ("--slo", "ttft=1us,tpot=60s", "--price-per-hour", 2, "--html", page)
    report = bench(server, file, *SHORT, "--rate", "20", "--requests", 10, *goals)
    [point] = report["points"]
    assert point["completed"] == 10
    assert point["goodput_share"] == 0
    assert point["cost_per_million"] < point["cost_per_million_output"]
    assert point["lag_s"]["max"] >= 0
    assert "Latency against throughput" in page.read_text()
    both = galley("bench", "serve", "--compare", file, file, "--html", page)
    assert both.returncode == 0, both.stderr
    assert "TTFT P50, ms" in both.stdout


def test_a_trace_is_sent_as_it_says(server: Server, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    lines = [
        {"timestamp": 0.3 * i, "prompt_tokens": 40 + i, "output_tokens": 2 + i} for i in range(4)
    ]
    trace.write_text("\n".join(map(json.dumps, lines)))
    [point] = bench(server, tmp_path / "a.json", "--trace", trace)["points"]
    assert (point["kind"], point["requests"], point["completed"]) == ("trace", 4, 4)
    assert (point["prompt_tokens"], point["output_tokens"]) == (41.5, 3.5)
    assert point["duration_s"] >= 0.5


def test_a_shared_prefix_is_found_in_the_cache(server: Server, tmp_path: Path) -> None:
    flags = ("--prompt-tokens", 200, "--output-tokens", 2, "--concurrency", 1, "--requests", 6)
    share = "--shared-prefix"
    [none] = bench(server, tmp_path / "a.json", *flags, share, 0, "--seed", 5)["points"]
    [most] = bench(server, tmp_path / "b.json", *flags, share, 0.9, "--seed", 6)["points"]
    # Even without it, all prompts share the template's beginning.
    assert none["cached_share"] < 0.3
    assert most["cached_share"] > 0.6


def test_recordings_are_transcribed(server: Server, tmp_path: Path) -> None:
    flags = ("--endpoint", "transcriptions", "--data", CALL, "--model", "speech")
    load = ("--concurrency", 1, "--requests", 2, "--warmup", 1)
    [point] = bench(server, tmp_path / "a.json", *flags, *load)["points"]
    assert (point["completed"], point["errors"]) == (2, {})
    assert point["audio_seconds_per_s"] > 0
    assert point["ttft_s"] is None


def test_errors_are_counted_by_kind(server: Server, tmp_path: Path) -> None:
    # The first line counts as warm: warm-up prompts are synthetic.
    file = tmp_path / "data.jsonl"
    file.write_text('{"prompt": "hi"}\n{"prompt": "hi", "output_tokens": 1000000}\n')
    flags = ("--data", file, "--output-tokens", 2, "--concurrency", 1, "--requests", 4)
    done = galley("bench", "serve", server.url, *flags, "--json", tmp_path / "a.json")
    assert done.returncode == 0, done.stderr
    [point] = json.loads((tmp_path / "a.json").read_text())["points"]
    assert (point["completed"], point["errors"]) == (2, {"http 400": 2})
    assert "max_tokens" in point["details"]["http 400"]


def test_a_server_of_our_own_is_started_measured_and_ended(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    flags = (*SHORT, "--concurrency", 2, "--requests", 4, "--json", file)
    done = galley("bench", "serve", "galley-demo", *flags, "--", "--threads", 1)
    assert done.returncode == 0, done.stderr
    report = json.loads(file.read_text())
    assert report["target"] == "galley serve galley-demo --threads 1"
    assert report["points"][0]["completed"] == 4


def test_a_server_with_keys_asks_for_one(tmp_path: Path) -> None:
    with Server(
        "galley-demo", tmp_path / "log", threads=1, api_key="a-key-of-the-server"
    ) as locked:
        done = galley("bench", "serve", locked.url, "--requests", 1)
    assert done.returncode == 2
    assert "requires an API key" in done.stderr
    assert "--api-key or the variable" in done.stderr


def test_errors_are_reported(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    for args, error, match in (
        ((url,), EngineError, "cannot measure .*: connect"),
        ((), SettingsError, "give a server's URL, a model"),
        ((url, "--", "--threads", "1"), SettingsError, "need a MODEL"),
        ((url, "--rate", "1", "--concurrency", "1"), SettingsError, "--rate and --concurrency"),
        ((url, "--concurrency", "1.5"), SettingsError, "'1.5', expected whole numbers"),
        ((url, "--endpoint", "transcriptions"), SettingsError, "--data with recordings"),
        ((url, "--body", "[]"), SettingsError, "--body"),
        ((url, "--json", str(tmp_path / "no" / "a.json")), SettingsError, "does not exist"),
        (("no/such-folder/here",), EngineError, "before it was ready"),
    ):
        with pytest.raises(error, match=match):
            serve.main(list(args), standalone_mode=False)
