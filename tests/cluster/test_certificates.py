"""TLS between machines: each side shows a certificate of the one authority; no other is accepted."""

import asyncio
import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from galley.cluster.channel import receive
from galley.cluster.remote import remote_source
from galley.errors import SettingsError
from galley.links.access import Access, read_access
from galley.settings.cluster import ClusterSettings

_DAY = datetime.timedelta(days=1)


@dataclass
class Authority:
    """A certificate authority that writes its files to a folder."""

    folder: Path
    name: str

    def __post_init__(self) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, self.name)])
        constraints = x509.BasicConstraints(ca=True, path_length=0)
        made = _certificate(self.subject, self.subject, self.key.public_key(), _DAY)
        signed = made.add_extension(constraints, critical=True).sign(self.key, hashes.SHA256())
        self.file = self.folder / f"{self.name}-ca.pem"
        self.file.write_bytes(signed.public_bytes(serialization.Encoding.PEM))

    def access(
        self, token: Path, *, valid: datetime.timedelta = _DAY, address: str = "127.0.0.1"
    ) -> Access:
        """Return what a machine with a certificate of this authority needs to connect."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "machine")])
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))])
        made = _certificate(subject, self.subject, key.public_key(), valid)
        signed = made.add_extension(names, critical=False).sign(self.key, hashes.SHA256())
        stem = self.folder / f"{self.name}-{address}-{valid.total_seconds():.0f}"
        cert, private = stem.with_suffix(".pem"), stem.with_suffix(".key")
        cert.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        private.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return read_access(
            ClusterSettings(
                cluster_token_file=str(token),
                cluster_ca=str(self.file),
                cluster_cert=str(cert),
                cluster_key=str(private),
            )
        )


def _certificate(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    valid: datetime.timedelta,
) -> x509.CertificateBuilder:
    """Return a certificate whose time ends ``valid`` from now."""
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - 3 * _DAY)
        .not_valid_after(now + valid)
    )


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
        "time": lambda: ours.access(token, valid=-_DAY),
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
