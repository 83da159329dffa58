"""Bad inputs 7, 8, 20, 47 and 48: keys, and data that must never leak from one request into another."""

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from websockets.exceptions import InvalidStatus

from galley.gateway.tenants import Tenants
from galley.settings.config import Settings
from tests.cli.command import galley
from tests.server.conftest import CONTEXT
from tests.server.key_files import KeyFile, bearer, complete, hashed, key_of
from tests.server.live_client import LiveClient
from tests.server.neighbor import Neighbor, alone
from tests.server.openapi import PAGE
from tests.server.refusals import error_of
from tests.server.serving import Server, until
from tests.speech.recordings import brief

pytestmark = pytest.mark.xdist_group("server_keys")

OPEN = {"/health", "/ready", "/v2/health/live", "/v2/health/ready"}
PLAIN_ERRORS = re.compile(r"/api/|/v2(?!/rerank)|/v1/models/.*(:predict|/metadata|\{version\})$")
"""Paths of protocols whose errors are a text without a type."""

SECRETS = ["hush-key", "hush-prompt", "hush-file", "hush-header", "hush-salt", "hush-query"]


@pytest.fixture(scope="module")
def server(
    model: Path, hearing: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("keys")
    tenants = KeyFile(
        folder / "keys",
        first={},
        second={},
        boss={"admin": True},
        one={"concurrency": 1, "requests_per_minute": 9},
    )
    with Server(
        [f"tiny={model}", f"hearing={hearing}"],
        folder / "log",
        kv_cache_tokens=4 * CONTEXT,
        threads=1,
        api_key_file=tenants.path,
        log_level="debug",
    ) as running:
        yield running


@pytest.fixture(scope="module")
def expected(server: Server) -> str:
    with server.client(headers=bearer(key_of("first"))) as client:
        return alone(client)


@pytest.fixture(autouse=True)
def neighbor(server: Server, expected: str) -> Iterator[Neighbor]:
    with Neighbor(server, expected, **bearer(key_of("first"))) as running:
        yield running


@pytest.mark.parametrize(
    ("method", "path"),
    [
        *((method, path) for path, methods in PAGE["paths"].items() for method in methods),
        ("get", "/docs"),
        ("get", "/openapi.json"),
        ("get", "/v1/realtime"),
        ("get", "/nowhere"),
    ],
)
def test_a_missing_or_wrong_key_is_401(server: Server, method: str, path: str) -> None:
    url = server.url + path.replace("{model}", "tiny")
    nothing = {"Authorization": "Bearer"}
    for given in ({}, nothing, bearer("wrong"), bearer(hashed(key_of("first")))):
        answer = httpx.request(method, url, headers=given)
        if path in OPEN:
            assert answer.status_code == 200
        else:
            assert answer.status_code == 401
            assert "authentication_error" in answer.text or PLAIN_ERRORS.match(path)
            assert "API key" in answer.text
    # An administrator's request for "tiny" might unload it.
    other = url.replace("/tiny", "/absent")
    assert httpx.request(method, other, headers=bearer(key_of("boss"))).status_code != 401


def test_keys_are_kept_as_hashes_and_compared_in_full(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import hmac

    tenants = KeyFile(tmp_path / "keys", **{f"tenant-{number}": {} for number in range(9)})
    table = Tenants.load(Settings(api_key=("sk-given",), api_key_file=str(tenants.path)))
    assert "sk-" not in repr(vars(table))
    compared: list[bytes] = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append(other)
        return one == other

    monkeypatch.setattr(hmac, "compare_digest", compare)
    for presented in (key_of("tenant-0"), key_of("tenant-8"), "sk-given", "sk-wrong"):
        compared.clear()
        table.identify(presented)
        assert len(set(compared)) == 10


def test_a_websocket_without_a_key_is_one_line_and_no_error(server: Server) -> None:
    before = len(server.log)
    for headers in ({}, bearer("wrong"), {"Origin": "https://evil.example"}):
        with pytest.raises(InvalidStatus), LiveClient(server, "?model=hearing", **headers):
            pass
    lines = until(lambda: _lines_of(server.log[before:], "WS /v1/realtime", 3))
    assert [re.findall(r"realtime (\d+)", line) for line in lines] == [["401"], ["401"], ["403"]]
    assert not re.search("ERROR|WARNING|Traceback", server.log[before:])


def _lines_of(log: str, what: str, count: int) -> list[str]:
    """Return the lines that contain ``what`` once there are ``count`` of them, else none."""
    found = [line for line in log.splitlines() if what in line]
    assert len(found) <= count
    return found if len(found) == count else []


def test_no_secret_is_in_answers_or_logs(server: Server) -> None:
    headers = bearer(key_of("second")) | {"X-Hush": "hush-header", "User-Agent": "hush-header"}
    json = {"Content-Type": "application/json"}
    with server.client(headers=headers) as client:
        body = {"model": "tiny", "prompt": "hush-prompt", "cache_salt": "hush-salt"}
        answers = [
            client.post("/v1/completions", json=body | {"max_tokens": 2}),
            client.post("/v1/completions", json=body | {"max_tokens": 10**9}),
            client.post("/v1/completions", content=b'{"prompt": "hush-prompt', headers=json),
            client.post("/v1/chat/completions", json={"messages": [{"role": "hush-prompt"}]}),
            client.post("/tokenize?hush-query=1", json=body),
            client.get("/hush-query", headers=bearer("hush-key")),
            client.get("/admin/tenants", headers=bearer("hush-key")),
            client.post(
                "/v1/audio/transcriptions",
                data={"model": "hearing", "prompt": "hush-prompt"},
                files={"file": ("hush-file.wav", b"RIFFhush-prompt")},
            ),
        ]
        log, metrics = server.log, client.get("/metrics").text
    assert [answer.status_code for answer in answers] == [200, 400, 400, 400, 400, 401, 401, 400]
    errors = "".join(answer.text for answer in answers[1:])
    keys = [key_of("first"), key_of("second"), hashed(key_of("second"))]
    for place in (log, metrics):
        assert not [secret for secret in [*SECRETS, *keys] if secret in place]
    assert not [secret for secret in ["hush-key", "hush-header", *keys] if secret in errors]
    assert "tenant=second" in log
    assert 'galley_tenant_requests_total{status="200",tenant="second"}' in metrics


def test_an_empty_cache_salt_is_refused(server: Server) -> None:
    error = error_of(complete(server, "first", [5], max_tokens=1, cache_salt=""))
    assert (error["type"], error["param"]) == ("invalid_request_error", "cache_salt")


def test_another_tenants_prefix_is_not_shared(server: Server) -> None:
    hits = "galley_prefix_cache_hit_tokens_total"

    def cached(tenant: str, **fields: str) -> int:
        """Return the cached tokens that the answer reports, checked against the engine's count."""
        before = server.metrics("tiny", **bearer(key_of("first")))[hits]
        answer = complete(server, tenant, [7] * 160, max_tokens=1, **fields)
        after = server.metrics("tiny", **bearer(key_of("first")))[hits]
        reported: int = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert reported == after - before
        return reported

    assert cached("first") == 0
    assert cached("first") > 0
    assert cached("second") == 0
    assert cached("first", cache_salt="a") == 0
    assert cached("second", cache_salt="a") == 0
    assert cached("second", cache_salt="a") > 0
    assert cached("second", cache_salt="b") == 0


@pytest.mark.parametrize("flags", [[], ["--admin-key", "sk-admin"]])
def test_a_public_bind_without_a_key_does_not_start(model: Path, flags: list[str]) -> None:
    ended = galley("serve", model, "--host", "0.0.0.0", *flags)
    assert ended.returncode == 2
    assert "an API key is required: set GALLEY_API_KEY, --api-key or --api-key-file" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_limits_hold_for_audio_before_it_is_read(server: Server) -> None:
    def transcribe() -> httpx.Response:
        return httpx.post(
            f"{server.url}/v1/audio/transcriptions",
            data={"model": "hearing"},
            files={"file": brief()},
            headers=bearer(key_of("one")),
            timeout=60,
        )

    answer = transcribe()
    assert answer.status_code == 200
    assert answer.headers["x-ratelimit-remaining-requests"] == "8"
    query = "?model=hearing"
    with LiveClient(server, query, **bearer(key_of("one"))) as live:
        live.until("session.created")
        assert live.socket.response is not None
        assert live.socket.response.headers["x-ratelimit-limit-requests"] == "9"
        assert error_of(transcribe(), 429)["code"] == "rate_limit_exceeded"
        again = LiveClient(server, query, **bearer(key_of("one")))
        with pytest.raises(InvalidStatus) as denied, again:
            pass
        assert denied.value.response.status_code == 429
        assert "Retry-After" in denied.value.response.headers
    limited = "galley_tenant_rate_limited_total{limit=concurrency,tenant=one}"
    assert server.metrics("tiny", **bearer(key_of("first")))[limited] == 2
    running = "galley_tenant_requests_running{tenant=one}"
    until(lambda: server.metrics("tiny", **bearer(key_of("first")))[running] == 0)
    assert transcribe().status_code == 200
    reported = server.metrics("tiny", **bearer(key_of("first")))
    assert reported["galley_tenant_tokens_total{kind=generated,tenant=one}"] > 0
    assert reported[running] == 0


@pytest.mark.parametrize("name", ["x - at `$.y", "x` - at `$.y", "x - at `$"])
def test_a_fields_name_that_looks_like_a_place(server: Server, name: str) -> None:
    error = error_of(complete(server, "first", [5], **{name: 1}))
    assert error["param"] == name
