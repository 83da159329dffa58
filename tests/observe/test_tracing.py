"""Spans of requests as received by a collector."""

import http.server
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from tests.cli.command import environment
from tests.missing import without
from tests.server.serving import Server, until

pytestmark = pytest.mark.xdist_group("observe_tracing")

CHAT = "/v1/chat/completions"
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
BODY = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "xylophone"}],
    "max_tokens": 6,
    "ignore_eos": True,
    "temperature": 0.5,
}


class Collector:
    """An OTLP collector that keeps what it receives."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.services: set[str] = set()
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                assert self.path == "/v1/traces"
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.take(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def take(self, request: ExportTraceServiceRequest) -> None:
        for resource in request.resource_spans:
            self.services |= {
                attribute.value.string_value
                for attribute in resource.resource.attributes
                if attribute.key == "service.name"
            }
            for scope in resource.scope_spans:
                self.spans += scope.spans

    def span(self, kind: str, trace: str) -> Span:
        """Wait for the span of that name and trace, and return it."""

        def found() -> Span | None:
            named = (s for s in self.spans if s.name == kind and s.trace_id.hex() == trace)
            return next(named, None)

        span = until(found)
        assert span is not None
        return span

    def close(self) -> None:
        self._server.shutdown()


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    running = Collector()
    yield running
    running.close()


@pytest.fixture(scope="module")
def server(
    model: Path, collector: Collector, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("server") / "log"
    with Server(
        model,
        log,
        environ={"OTEL_BSP_SCHEDULE_DELAY": "100"},
        threads=1,
        kv_cache_tokens=4096,
        price_per_hour=1.0,
        log_format="json",
        otlp_endpoint=collector.url,
    ) as running:
        yield running


def attributes(span: Span) -> dict[str, Any]:
    found = {}
    for attribute in span.attributes:
        kind = attribute.value.WhichOneof("value")
        value = getattr(attribute.value, kind)
        if kind == "array_value":
            value = [item.string_value for item in value.values]
        found[attribute.key] = value
    return found


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/responses", {"input": "x", "max_output_tokens": 2}),
        ("/v1/messages", {"messages": BODY["messages"], "max_tokens": 2}),
        ("/api/chat", {"messages": BODY["messages"], "options": {"num_predict": 2}}),
    ],
)
def test_requests_of_every_protocol_have_a_span(
    server: Server, collector: Collector, path: str, body: dict[str, Any]
) -> None:
    trace = f"{len(path):032x}"
    headers = {"traceparent": f"00-{trace}-{PARENT}-01"}
    answer = httpx.post(server.url + path, json={"model": "tiny", **body}, headers=headers)
    assert answer.status_code == 200, answer.text
    recorded = attributes(collector.span("chat tiny", trace))
    assert recorded["http.route"] == path
    assert recorded["gen_ai.usage.output_tokens"] == 2


def test_a_span_continues_the_clients_trace(server: Server, collector: Collector) -> None:
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "X-Request-Id": "traced-1"}
    usage = httpx.post(server.url + CHAT, json=BODY, headers=headers).json()["usage"]
    span = collector.span("chat tiny", TRACE)
    assert span.parent_span_id.hex() == PARENT
    assert span.kind == Span.SPAN_KIND_SERVER
    assert collector.services == {"galley"}
    recorded = attributes(span)
    assert (
        recorded.items()
        >= {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "galley",
            "gen_ai.request.model": "tiny",
            "gen_ai.request.temperature": 0.5,
            "gen_ai.request.max_tokens": 6,
            "gen_ai.usage.input_tokens": usage["prompt_tokens"],
            "gen_ai.usage.output_tokens": 6,
            "gen_ai.response.finish_reasons": ["length"],
            "galley.cost": usage["cost"],
            "galley.request.id": "traced-1",
            "http.response.status_code": 200,
        }.items()
    )
    assert "xylophone" not in str(span)
    for name in ("queue", "prefill", "decode"):
        child = collector.span(name, TRACE)
        assert child.parent_span_id == span.span_id
        took = (child.end_time_unix_nano - child.start_time_unix_nano) / 1e6
        assert took == pytest.approx(usage[f"{name}_ms"], abs=0.01)
        assert span.start_time_unix_nano <= child.start_time_unix_nano
        assert child.end_time_unix_nano <= span.end_time_unix_nano
    lines = [json.loads(line) for line in server.log.splitlines()]
    [line] = [line for line in lines if line.get("id") == "traced-1"]
    assert line["trace_id"] == TRACE


def test_an_error_is_recorded_and_unsampled_traces_are_not_sent(
    server: Server, collector: Collector
) -> None:
    unsampled, failing = "1" * 32, "2" * 32
    quiet = {"traceparent": f"00-{unsampled}-{PARENT}-00"}
    httpx.post(server.url + CHAT, json=BODY, headers=quiet)
    late = {"traceparent": f"00-{failing}-{PARENT}-01", "x-request-timeout": "0.02"}
    httpx.post(server.url + CHAT, json=BODY | {"max_tokens": 480}, headers=late)
    span = collector.span("chat tiny", failing)
    assert span.status.code == Status.STATUS_CODE_ERROR
    assert attributes(span)["error.type"] == "deadline_exceeded"
    assert not any(span.trace_id.hex() == unsampled for span in collector.spans)


def test_routes_without_a_model_have_no_span(server: Server, collector: Collector) -> None:
    httpx.get(f"{server.url}/metrics")
    httpx.post(server.url + CHAT, json=BODY, headers={"traceparent": f"00-{'3' * 32}-{PARENT}-01"})
    collector.span("chat tiny", "3" * 32)
    assert {span.name for span in collector.spans} == {"chat tiny", "queue", "prefill", "decode"}


def test_without_an_endpoint_nothing_is_imported() -> None:
    code = "import sys, galley.server.run; print('opentelemetry' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert answer.stdout.strip() == "False"


def test_a_missing_extra_is_named(tmp_path: Path) -> None:
    answer = subprocess.run(
        [*(sys.executable, "-m", "galley"), "serve", "--otlp-endpoint", "http://127.0.0.1:1"],
        env=environment() | without(tmp_path, "opentelemetry"),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert answer.returncode == 2
    assert "galley-inference[otel]" in answer.stderr
    assert "Traceback" not in answer.stderr
