"""Invalid WebSocket frames: a close code reports the error, and the connection is not reset."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed

from tests.server.conftest import CONTEXT
from tests.server.live_client import LiveClient
from tests.server.raw import connections
from tests.server.serving import Server, until

pytestmark = pytest.mark.xdist_group("server_front_door_websockets")

MOST = 100_000


@pytest.fixture(scope="module")
def server(
    model: Path, hearing: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A server with a low limit on the size of messages."""
    log = tmp_path_factory.mktemp("server") / "log"
    models = [f"tiny={model}", f"hearing={hearing}", f"tiny.kv_cache_tokens={4 * CONTEXT}"]
    with Server(models, log, threads=1, max_body_bytes=MOST) as running:
        yield running


@pytest.mark.parametrize(
    ("data", "code"),
    [(b'{"type": "\xff"}', 1007), (b"x" * (MOST + 1), 1009), (b"x" * 10_000_000, 1009)],
    ids=["utf-8", "large", "huge"],
)
def test_malformed_websocket_messages_close_the_connection(
    server: Server, data: bytes, code: int
) -> None:
    before = connections(server)
    with LiveClient(server) as client:
        client.until("session.created", "transcription_session.created")
        with pytest.raises(ConnectionClosed) as closed:
            exchange(client, data)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == code
    assert "Traceback" not in server.log
    until(lambda: connections(server) <= before)


def exchange(client: LiveClient, data: bytes | list[bytes]) -> None:
    """Send a message or its fragments, and wait for the answer."""
    client.socket.send(data, text=True)
    client.socket.recv(timeout=30)


def test_fragments_count_together(server: Server) -> None:
    with LiveClient(server) as client:
        client.until("session.created", "transcription_session.created")
        with pytest.raises(ConnectionClosed) as closed:
            exchange(client, [b"x" * 1000] * 1000)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1009
