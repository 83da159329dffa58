"""Tickets: a served model fills in the schema; what goes wrong says whether to try again."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import jsonschema_rs
import pytest

from galley.calls.ticket import SCHEMA, TicketWriter
from galley.errors import RequestError, SettingsError, Unavailable
from tests.cli.command import free_port
from tests.server.serving import Server

pytestmark = pytest.mark.xdist_group("ticket")

SHORT = {
    "type": "object",
    "properties": {"topic": {"enum": ["billing", "delivery"]}, "resolved": {"type": "boolean"}},
    "required": ["topic", "resolved"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server("galley-demo", tmp_path_factory.mktemp("server") / "log", threads=1) as running:
        yield running


@pytest.mark.parametrize("path", ["", "/v1", "/"])
def test_a_ticket_is_as_the_schema_says(server: Server, path: str) -> None:
    writer = TicketWriter(url=f"{server.url}{path}", model="galley-demo", schema=SHORT)
    ticket = writer.write("A: Where is my parcel?\nB: It comes today.")
    assert jsonschema_rs.is_valid(SHORT, ticket)


def test_the_schema_of_tickets_is_one() -> None:
    jsonschema_rs.validator_for(SCHEMA)


def test_a_refused_request_is_not_tried_again(server: Server) -> None:
    writer = TicketWriter(url=server.url, model="no-such-model", schema=SHORT)
    with pytest.raises(RequestError, match="answered 404"):
        writer.write("A: Hello")


def test_a_server_that_is_not_there_may_come_back() -> None:
    writer = TicketWriter(url=f"http://127.0.0.1:{free_port()}", model="m", schema=SHORT)
    with pytest.raises(Unavailable, match="refused"):
        writer.write("A: Hello")


@pytest.mark.parametrize("url", ["", "file:///etc/passwd", "127.0.0.1:8000"])
def test_other_addresses_are_refused(url: str) -> None:
    with pytest.raises(SettingsError, match="is not a URL"):
        TicketWriter(url=url, model="m", schema=SHORT)


def test_a_key_that_no_header_takes_is_not_shown() -> None:
    writer = TicketWriter(url="http://127.0.0.1:9", model="m", schema=SHORT, api_key="secret\n")
    with pytest.raises(Unavailable, match="a line's end") as error:
        writer.write("A: Hello")
    assert "secret" not in str(error.value)


def test_a_redirect_does_not_get_the_key() -> None:
    seen = []

    class Moved(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            seen.append(self.path)
            self.send_response(302)
            self.send_header("Location", "/other")
            self.end_headers()

        def do_GET(self) -> None:
            seen.append(self.path)
            self.send_error(404)

        def log_message(self, format: str, *args: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Moved) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        writer = TicketWriter(url=url, model="m", schema=SCHEMA, api_key="secret")
        with pytest.raises(RequestError, match="answered 302"):
            writer.write("A: hello")
        server.shutdown()
    assert seen == ["/v1/chat/completions"]
