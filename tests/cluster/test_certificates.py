"""TLS between machines: each side shows a certificate of the one authority; no other is accepted."""

import asyncio
from pathlib import Path

import pytest

from galley.cluster.channel import receive
from galley.cluster.remote import remote_source
from galley.errors import SettingsError
from galley.links.access import Access, read_access
from galley.settings.cluster import ClusterSettings
from tests.cluster.authority import DAY, Authority


async def connect(replica: Access, caller: Access) -> bytes:
    """Connect to a replica; return the frame that it gets, or raise what its caller meets."""
    got: asyncio.Queue[bytes] = asyncio.Queue()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            channel = await receive(reader, writer, replica.token)
            async for bodies in channel.frames():
                for body in bodies:
                    got.put_nowait(body)
        except (OSError, EOFError, SettingsError):
            pass
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=replica.as_replica)
    port = server.sockets[0].getsockname()[1]
    try:
        link = await remote_source(f"127.0.0.1:{port}", caller, 1).connect()
        link._channel.send(b"a frame")  # type: ignore[attr-defined]
        async with asyncio.timeout(5):
            return await got.get()
    finally:
        server.close()


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("a secret of both machines")
    return path


def test_machines_with_certificates_of_one_authority_connect(tmp_path: Path, token: Path) -> None:
    ours = Authority(tmp_path, "ours")
    assert asyncio.run(connect(ours.access(token), ours.access(token))) == b"a frame"


@pytest.mark.parametrize("side", ["replica", "caller"])
@pytest.mark.parametrize("wrong", ["authority", "time", "none"])
def test_other_certificates_are_refused_on_both_sides(
    tmp_path: Path, token: Path, side: str, wrong: str
) -> None:
    ours = Authority(tmp_path, "ours")
    other = {
        "authority": lambda: Authority(tmp_path, "others").access(token),
        "time": lambda: ours.access(token, valid=-DAY),
        "none": lambda: read_access(ClusterSettings(cluster_token_file=str(token))),
    }[wrong]()
    sides = (other, ours.access(token)) if side == "replica" else (ours.access(token), other)
    # The token is right, so only the certificates can be the reason.
    with pytest.raises((OSError, EOFError)):
        asyncio.run(connect(*sides))


def test_a_certificate_of_another_machine_is_refused(tmp_path: Path, token: Path) -> None:
    ours = Authority(tmp_path, "ours")
    elsewhere = ours.access(token, address="10.9.8.7")
    with pytest.raises(OSError, match="IP address mismatch"):
        asyncio.run(connect(elsewhere, ours.access(token)))
