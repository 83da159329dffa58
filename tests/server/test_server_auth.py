"""Keys, Host headers and the requirements of a public address."""

import gc
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import httpx
import openai
import pytest
from starlette.routing import Route

from galley.errors import SettingsError
from galley.gateway.caller import Caller
from galley.gateway.key_file import Tenant
from galley.gateway.registry import Registry
from galley.gateway.tenants import Account, Tenants
from galley.protocols.http.openapi import document
from galley.server import page_files, run
from galley.server.app import create_app
from galley.server.auth import ADMIN_PATHS, check_exposure
from galley.settings.config import Settings
from tests.server.conftest import CONTEXT
from tests.server.serving import Server

pytestmark = pytest.mark.xdist_group("server_auth")

KEYS = ["sk-first-key", "sk-second-key"]
OPEN = {"/health", "/ready", "/v2/health/live", "/v2/health/ready"} | page_files.PATHS


@pytest.fixture(scope="module")
def locked(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("locked")
    (folder / "keys").write_text(f"{KEYS[1]}\n\n")
    settings: dict[str, Any] = {"kv_cache_tokens": CONTEXT, "threads": 1, "log_level": "debug"}
    settings |= {"api_key": KEYS[0], "api_key_file": folder / "keys", "allowed_host": "proxy.test"}
    with Server(model, folder / "log", **settings) as running:
        yield running


def routes() -> list[tuple[str, str]]:
    """Return method and path of every route."""
    app = create_app(Registry(Settings()), tenants=Tenants({}))
    described = [
        (method.upper(), path)
        for path, methods in document(app.routes)["paths"].items()
        for method in methods
    ]
    pages = [("GET", route.path) for route in app.routes if isinstance(route, Route)]
    assert ("POST", "/v1/chat/completions") in described
    assert ("GET", "/openapi.json") in pages
    return [
        (method, path)
        for method, path in described + pages
        if not any(path == own or path.startswith(f"{own}/") for own in ADMIN_PATHS)
    ]


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.mark.parametrize(("method", "path"), routes())
def test_every_route_asks_for_a_key(locked: Server, method: str, path: str) -> None:
    url = locked.url + path.replace("{model}", "tiny")
    wrong = ["", "Bearer", "Bearer wrong", f"Basic {KEYS[0]}", KEYS[0], f"Bearer {KEYS[0]}x"]
    for value in wrong:
        answer = httpx.request(method, url, headers={"Authorization": value})
        if path in OPEN:
            assert answer.status_code == 200
            continue
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        error = answer.json()["error"]
        # In Ollama's, the Open Inference Protocol's and KServe's format the error is a text.
        of_tensors = path.startswith(("/v2", "/v1/config"))
        of_tensors |= path.endswith((":predict", "/metadata", "{version}"))
        if path.startswith("/api/") or (of_tensors and path != "/v2/rerank"):
            assert "API key" in error
            continue
        assert error["type"] == "authentication_error"
        assert path.startswith("/v1/messages") or error["code"] == "invalid_api_key"
    for key in KEYS:
        assert httpx.request(method, url, headers=bearer(key)).status_code not in (401, 403)


def test_unknown_routes_are_hidden_without_a_key(locked: Server) -> None:
    assert httpx.get(f"{locked.url}/nowhere").status_code == 401
    assert httpx.get(f"{locked.url}/nowhere", headers=bearer(KEYS[0])).status_code == 404


def test_the_sdk_raises_its_authentication_error(locked: Server) -> None:
    with pytest.raises(openai.AuthenticationError) as error:
        locked.openai("sk-wrong").models.list()
    assert error.value.code == "invalid_api_key"
    assert [model.id for model in locked.openai(KEYS[1]).models.list()] == ["tiny"]


def test_keys_are_never_logged(locked: Server) -> None:
    for key in [*KEYS, "sk-not-a-key-but-secret"]:
        httpx.get(f"{locked.url}/v1/models", headers=bearer(key))
    assert "GET /v1/models 200" in locked.log
    assert "GET /v1/models 401" in locked.log
    assert not any(key in locked.log for key in [*KEYS, "sk-not-a-key-but-secret"])


def test_keys_do_not_share_cached_prefixes(locked: Server) -> None:
    def cached(key: str, **extra: str) -> int:
        answer = locked.openai(key).completions.create(
            model="tiny", prompt="the cat sat on the mat " * 9, max_tokens=1, extra_body=extra
        )
        assert answer.usage is not None
        assert answer.usage.prompt_tokens_details is not None
        return answer.usage.prompt_tokens_details.cached_tokens or 0

    assert cached(KEYS[0]) == 0
    assert cached(KEYS[0]) > 0
    assert cached(KEYS[1]) == 0
    assert cached(KEYS[0], cache_salt="s") == 0
    assert cached(KEYS[1], cache_salt="s") == 0
    assert cached(KEYS[1], cache_salt="s") > 0


@pytest.mark.parametrize("host", ["evil.test", "127.0.0.1.evil.test", "localhost.evil.test:80", ""])
def test_a_foreign_host_header_is_refused(locked: Server, host: str) -> None:
    for path in ("/health", "/v1/models"):
        answer = httpx.get(locked.url + path, headers=bearer(KEYS[0]) | {"Host": host})
        assert answer.status_code == 403
        assert answer.json()["error"]["code"] == "host_not_allowed"


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:1", "127.0.0.1:9", "[::1]", "[::1]:8000", "proxy.test:443"]
)
def test_names_of_this_machine_are_answered(locked: Server, host: str) -> None:
    answer = httpx.get(f"{locked.url}/v1/models", headers=bearer(KEYS[0]) | {"Host": host})
    assert answer.status_code == 200


def test_metrics_can_be_open(model: Path, tmp_path: Path) -> None:
    with Server(
        model, tmp_path / "log", wait=False, api_key="k", metrics_without_key=True
    ) as open_:
        assert httpx.get(f"{open_.url}/metrics").status_code == 200
        assert httpx.get(f"{open_.url}/v1/models").status_code == 401


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", ""])
def test_a_public_bind_needs_a_key(host: str) -> None:
    with pytest.raises(SettingsError, match="GALLEY_API_KEY"):
        check_exposure(Settings(host=host), Tenants.load(Settings(admin_key=("a",))))
    check_exposure(Settings(host=host), Tenants.load(Settings(api_key=("k",))))


def test_key_files_must_hold_keys(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n \n")
    for name in ("empty", "missing"):
        with pytest.raises(SettingsError, match="api_key_file"):
            Tenants.load(Settings(api_key_file=str(tmp_path / name)))


def test_the_running_server_holds_no_plain_key(monkeypatch: pytest.MonkeyPatch) -> None:
    class Started(Exception):
        pass

    def start(
        models: Registry,
        tenants: Tenants,
        listener: socket.socket,
        encryption: None,
        tracing: None,
        reread: object,
    ) -> NoReturn:
        assert tenants.identify("sk-first-key")
        raise Started(models.settings)

    monkeypatch.setattr(run, "_Run", start)
    monkeypatch.setattr(run, "_configure_logging", lambda level: None)
    monkeypatch.setattr(gc, "set_threshold", lambda *thresholds: None)
    with pytest.raises(Started) as started:
        run.serve(Settings(port=0, api_key=("sk-first-key",), admin_key=("sk-admin",), max_queue=7))
    assert started.value.args == (Settings(port=0, max_queue=7),)


@pytest.mark.parametrize(
    "key", ["schlüssel", "\U0001f511", "x\ty", " sk-1", "sk-1 ", "\udcff", "\x7f"]
)
def test_keys_that_no_header_can_carry_are_refused(tmp_path: Path, key: str) -> None:
    with pytest.raises(SettingsError, match=r"^api_key: a key contains a character") as error:
        Tenants.load(Settings(api_key=("good", key)))
    assert key.strip() not in str(error.value)


def test_keys_may_hold_what_a_header_can() -> None:
    ring = Tenants.load(Settings(api_key=("a b~!,=",)))
    assert ring.identify("a b~!,=")
    assert not ring.identify("a b")


def test_salts_of_different_tenants_differ() -> None:
    pairs = [("", None), ("", "a"), ("a", None), ("a", "a"), ("aa", "a"), ("a", "aa"), ("b", None)]
    salts = {Caller("id", Account(Tenant(name=tenant))).cache_salt(salt) for tenant, salt in pairs}
    assert len(salts) == len(pairs)
    assert Caller("id").cache_salt() == ""
