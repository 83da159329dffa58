"""TLS, cross-origin requests, and headers that every answer has."""

import json
import re
import shutil
import signal
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from galley.errors import SettingsError
from galley.server import tls
from galley.settings.config import Settings
from tests.server.conftest import CONTEXT
from tests.server.neighbor import Neighbor
from tests.server.raw import Raw
from tests.server.refusals import error_of
from tests.server.serving import Server, until

pytestmark = pytest.mark.xdist_group("server_front_door_exposure")

PAGE = "https://app.example.com"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for localhost, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    return certificate(folder, "localhost")


def certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """Create a self-signed certificate with openssl."""
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-days", "2", "-subj", f"/CN={name}", "-addext"]
    command += ["subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    subprocess.run(command, check=True, capture_output=True)
    return cert, key


class TlsServer(Server):
    """A server whose clients trust its certificate."""

    cert: Path

    def client(self, **options: object) -> httpx.Client:
        """Return a client that speaks TLS."""
        context = ssl.create_default_context(cafile=str(self.cert))
        url = f"https://127.0.0.1:{self.port}"
        return httpx.Client(base_url=url, timeout=60, verify=context, **options)  # type: ignore[arg-type]

    def wait_for_log(self, pattern: str) -> re.Match[str]:
        """Wait as for any server, but for an https URL."""
        return super().wait_for_log(pattern.replace("http:", "https:"))


@pytest.fixture(scope="module")
def server(
    model: Path, pair: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TlsServer]:
    """A server that speaks TLS and allows the pages of one origin."""
    log = tmp_path_factory.mktemp("server") / "log"
    cert, key = pair
    running = TlsServer(
        model,
        log,
        kv_cache_tokens=4 * CONTEXT,
        threads=1,
        tls_cert=cert,
        tls_key=key,
        cors_origin=PAGE,
        api_key="secret",
        header_timeout=1,
    )
    running.cert = cert
    with running:
        yield running


@pytest.fixture(scope="module")
def http(server: TlsServer) -> Iterator[httpx.Client]:
    with server.client(headers={"Authorization": "Bearer secret"}) as client:
        yield client


@pytest.fixture(autouse=True)
def neighbor(server: TlsServer, expected: str) -> Iterator[Neighbor]:
    """Run the stream with the key of the server."""
    with Neighbor(server, expected, Authorization="Bearer secret") as running:
        yield running


@pytest.mark.parametrize("path", ["/health", "/v1/models", "/docs", "/nothing", "/v1/completions"])
def test_every_answer_has_security_headers(http: httpx.Client, path: str) -> None:
    headers = http.get(path).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cache-control"] == "no-store"
    assert headers["strict-transport-security"] == "max-age=31536000"
    assert ("content-security-policy" in headers) == (path == "/docs")


def test_a_page_of_an_allowed_origin_may_send_requests(http: httpx.Client) -> None:
    asks = {
        "Origin": PAGE,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type",
        "Authorization": "",
    }
    allowed = http.options("/v1/chat/completions", headers=asks)
    assert allowed.status_code == 200
    assert allowed.headers["access-control-allow-origin"] == PAGE
    assert "authorization" in allowed.headers["access-control-allow-headers"]
    assert http.get("/v1/models", headers={"Origin": PAGE}).headers["access-control-allow-origin"]


def test_a_page_of_another_origin_may_not_send_requests(http: httpx.Client) -> None:
    asks = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    refused = http.options("/v1/chat/completions", headers=asks)
    assert refused.status_code == 400
    assert "access-control-allow-origin" not in refused.headers
    answer = http.get("/v1/models", headers={"Origin": "https://evil.example"})
    assert "access-control-allow-origin" not in answer.headers


def test_a_client_without_tls_learns_nothing(server: TlsServer) -> None:
    with Raw(server) as plain, Raw(server) as silent:
        plain.send("GET /health HTTP/1.1", "Host: localhost", "")
        assert b"HTTP/1.1 200" not in plain.rest()
        assert silent.rest() == b""
    assert "Traceback" not in server.log


def test_a_websocket_over_tls_is_answered(server: TlsServer) -> None:
    context = ssl.create_default_context(cafile=str(server.cert))
    url = f"wss://127.0.0.1:{server.port}/v1/realtime"
    for key, status in (("secret", 400), ("wrong", 401)):
        headers = {"Authorization": f"Bearer {key}"}
        with pytest.raises(InvalidStatus) as denied:
            connect(url, ssl=context, additional_headers=headers)
        assert denied.value.response.status_code == status
        assert json.loads(denied.value.response.body or b"")["error"]["message"]


def test_without_cors_origin_preflights_are_refused(model: Path, tmp_path: Path) -> None:
    asks = {"Origin": PAGE, "Access-Control-Request-Method": "POST"}
    with Server(model, tmp_path / "log", kv_cache_tokens=CONTEXT, threads=1) as plain:
        refused = httpx.options(f"{plain.url}/v1/chat/completions", headers=asks)
        headers = httpx.get(f"{plain.url}/health", headers={"Origin": PAGE}).headers
    assert error_of(refused, 405)
    assert not any(name.startswith("access-control-") for name in (*refused.headers, *headers))
    assert "strict-transport-security" not in headers
    assert headers["cross-origin-resource-policy"] == "same-origin"


def test_wrong_certificates_are_named(tmp_path: Path, pair: tuple[Path, Path]) -> None:
    cert, key = map(str, pair)
    _, foreign = map(str, certificate(tmp_path, "other"))
    nothing = tmp_path / "nothing.pem"
    nothing.write_text("nothing")
    secret = str(tmp_path / "secret.key")
    encrypt = ["openssl", "ec", "-in", key, "-aes128", "-passout", "pass:word", "-out", secret]
    subprocess.run(encrypt, check=True, capture_output=True)
    for certs, keys, says in (
        (cert, "", "tls_cert also needs tls_key"),
        ("", key, "tls_key also needs tls_cert"),
        ("/nowhere.pem", key, "cannot read tls_cert /nowhere.pem"),
        (cert, "/nowhere.key", "cannot read tls_key /nowhere.key"),
        (cert, foreign, "do not match"),
        (str(nothing), key, "not a certificate and key"),
        (cert, str(nothing), "not a certificate and key"),
        (cert, secret, "is encrypted"),
    ):
        with pytest.raises(SettingsError, match=says):
            tls.context(Settings(tls_cert=certs, tls_key=keys))


@pytest.mark.parametrize("origin", ["app.example.com", "https://a.example/", "null", "https://*"])
def test_wrong_origins_are_named(origin: str) -> None:
    with pytest.raises(SettingsError, match="cors_origin"):
        Settings(cors_origin=(origin,))


def test_a_renewed_certificate_is_used_after_sighup(
    server: TlsServer, pair: tuple[Path, Path], tmp_path: Path
) -> None:
    """The last test of this module: its other clients trust the first certificate."""
    cert, key = pair
    first = shown(server)
    assert first == ssl.PEM_cert_to_DER_cert(cert.read_text())
    new_cert, new_key = certificate(tmp_path, "renewed")
    with server.client() as client:
        assert client.get("/health").status_code == 200
        shutil.copy(new_cert, cert)
        server.process.send_signal(signal.SIGHUP)
        server.wait_for_log("the certificate is unchanged: .* do not match")
        assert shown(server) == first
        shutil.copy(new_key, key)
        server.process.send_signal(signal.SIGHUP)
        until(lambda: shown(server) == ssl.PEM_cert_to_DER_cert(new_cert.read_text()))
        assert client.get("/health").status_code == 200  # over its connection from before


def shown(server: TlsServer) -> bytes:
    """Return the certificate that a new connection gets."""
    return ssl.PEM_cert_to_DER_cert(ssl.get_server_certificate(("127.0.0.1", server.port)))
