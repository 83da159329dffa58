"""What the access log reveals about a request, in both formats, and what it does not."""

import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from galley.observe.logs import JsonLines, TextLines, readable
from tests.server.serving import Server, until

pytestmark = pytest.mark.xdist_group("observe_logs")

PLAIN = "/v1/completions"
BODY = {"model": "tiny", "prompt": "xylophone quagmire", "max_tokens": 5, "ignore_eos": True}


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that logs JSON."""
    log = tmp_path_factory.mktemp("server") / "log"
    with Server(
        model, log, threads=1, kv_cache_tokens=4096, log_format="json", max_queue=0, max_running=1
    ) as running:
        yield running


def line_of(server: Server, request_id: str) -> dict[str, Any]:
    """Return the log's line of a request."""

    def found() -> dict[str, Any] | None:
        lines = [json.loads(line) for line in server.log.splitlines()]
        return next((line for line in lines if line.get("id") == request_id), None)

    line = until(found)
    assert line is not None
    return line


def post(server: Server, body: dict[str, Any], path: str = PLAIN, **headers: str) -> dict[str, Any]:
    """Send a request and return its line in the log."""
    answer = httpx.post(server.url + path, json=body, headers=headers)
    return line_of(server, answer.headers["x-request-id"])


def test_every_line_is_json_from_the_first(server: Server) -> None:
    first, *_, last = [json.loads(line) for line in server.log.splitlines()]
    assert "listens on" in first["message"]
    assert {"time", "level", "logger"} <= last.keys()


def test_the_start_is_logged_in_fields_and_single_lines(server: Server) -> None:
    lines = [json.loads(line) for line in server.log.splitlines()]
    assert all("\n" not in line["message"] for line in lines)
    phases = {line["phase"]: line for line in lines if "phase" in line}
    assert {"resolve", "spawn", "import", "load", "warm-up"} <= phases.keys()
    assert all(line["model"] == "tiny" and line["seconds"] >= 0 for line in phases.values())
    [expected] = [line for line in lines if "ledger" in line]
    assert expected["ledger"]["weights"] > 0
    assert expected["message"].startswith("tiny: llama, ")


def test_a_request_is_logged_in_one_line(server: Server) -> None:
    line = post(server, BODY)
    assert (line["method"], line["path"], line["status"]) == ("POST", PLAIN, 200)
    assert (line["model"], line["client"], line["finish"]) == ("tiny", "127.0.0.1", "length")
    assert line["generated"] == 5
    assert 0 < line["ttft_ms"] < 1000 * line["seconds"]
    assert line["queue_ms"] + line["prefill_ms"] + line["decode_ms"] < 1000 * line["seconds"]
    assert line["logger"] == "galley.access"


def test_a_sane_request_id_is_kept(server: Server) -> None:
    for given in ("req_1", "0b9f6f54-6d5c-4b2e-9f0a-1de5f4b6a1c7", "a" * 128):
        answer = httpx.post(server.url + PLAIN, json=BODY, headers={"X-Request-Id": given})
        assert answer.headers["x-request-id"] == given
        # The engine's own id of the request is unique, whatever clients send.
        line = line_of(server, given)
        assert answer.json()["id"] == f"cmpl-{line['request']}"
    for odd in ("", "a b", "a" * 129, "ä", 'x"y', "x\ty"):
        headers = {b"X-Request-Id": odd.encode()}
        answer = httpx.get(f"{server.url}/v1/models", headers=headers)
        assert answer.headers["x-request-id"] not in (odd, "")


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        (PLAIN, BODY | {"temperature": -1}, {"status": 400, "param": "temperature"}),
        (PLAIN, BODY | {"model": "quagmire"}, {"status": 404, "error": "model_not_found"}),
        (PLAIN, BODY | {"max_tokens": 10**6}, {"error": "context_length_exceeded"}),
        (PLAIN, BODY | {"quagmire": 1}, {"status": 400}),
        ("/v1/v1/completions", BODY, {"path": "/v1/v1/completions", "error": "unknown_url"}),
        ("/api/quagmire", BODY, {"path": "/api/*", "status": 404}),
    ],
)
def test_the_cause_of_a_refusal_is_logged(
    server: Server, path: str, body: dict[str, Any], expected: dict[str, Any]
) -> None:
    line = post(server, body, path)
    assert line.items() >= expected.items()
    assert "error" in line
    assert "quagmire" not in json.dumps(line)


def test_an_error_in_the_midst_of_a_stream_is_no_200(server: Server) -> None:
    body = BODY | {"stream": True, "max_tokens": 3000}
    line = post(server, body, **{"x-request-timeout": "0.05"})
    assert (line["status"], line["error"]) == (504, "deadline_exceeded")


def test_prompts_are_logged_on_request_alone(server: Server, model: Path, tmp_path: Path) -> None:
    post(server, BODY)
    assert "xylophone" not in server.log
    with Server(
        model, tmp_path / "log", threads=1, kv_cache_tokens=4096, log_prompts=True
    ) as telling:
        httpx.post(telling.url + PLAIN, json=BODY)
        httpx.post(telling.url + "/nowhere", json=BODY)
        httpx.post(telling.url + PLAIN, json=BODY | {"quagmire": 1})
        until(lambda: "quagmire" in telling.log.splitlines()[-1])
        assert f"POST {PLAIN} 200" in telling.log
        assert "prompt_text=" in telling.log
        assert "xylophone quagmire" in telling.log
        assert "POST /nowhere 404" in telling.log


FORGED = "/x 200 0.001s id=1\n2026-01-01 00:00:00,000 INFO    galley.access: GET /forged 200"
STEERING = ["\x1b[2J", "\x9b31m", "\x7f", "\r", "\u2028", "\u202e", "\x00", "\x85"]


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_no_request_forges_a_line_or_steers_a_terminal(
    model: Path, tmp_path: Path, log_format: str
) -> None:
    settings: dict[str, Any] = {
        "log_format": log_format,
        "log_prompts": True,
        "kv_cache_tokens": 4096,
    }
    with Server(model, tmp_path / "log", threads=1, **settings) as telling:
        for text in (FORGED, *STEERING):
            quoted = text.replace("/", "%2F").encode().hex("%")
            assert httpx.get(f"{telling.url}/%{quoted}").status_code == 404
            httpx.post(telling.url + PLAIN, json=BODY | {"prompt": text, "user": text})
            httpx.post(telling.url + PLAIN, json=BODY | {"temperature": text})
        assert httpx.get(telling.url + "/last").status_code == 404
        until(lambda: "/last" in telling.log)
        lines = telling.log.split("\n")
    assert [line for line in lines if not line.isprintable()] == []
    if log_format == "text":
        assert not any(line.startswith("2026-01-01") for line in lines)
        assert not any(" /x 200 " in line and '"' not in line for line in lines)


def test_a_traceback_is_indented_and_escaped() -> None:
    for form in (TextLines(), JsonLines()):
        try:
            raise ValueError(f"\x1b[2J\n{FORGED}")
        except ValueError:
            info = sys.exc_info()
        record = logging.LogRecord("x", logging.ERROR, "", 0, f"{FORGED}\x1b", None, info)
        first, *others = form.format(record).split("\n")
        assert first.isprintable()
        assert all(line.startswith("  ") and line.isprintable() for line in others)


def test_a_field_stays_on_its_line() -> None:
    fields = {"id": "a-1", "cost": 0.5, "reason": 'two words="x"\nPOST / 200'}
    assert readable(fields) == 'id=a-1 cost=0.5 reason="two words=\\"x\\"\\nPOST / 200"'
