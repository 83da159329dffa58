"""A certificate authority for tests, and certificates of machines."""

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from galley.links.access import Access, read_access
from galley.settings.cluster import ClusterSettings

DAY = datetime.timedelta(days=1)


@dataclass
class Authority:
    """A certificate authority that writes its files to a folder."""

    folder: Path
    name: str

    def __post_init__(self) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, self.name)])
        constraints = x509.BasicConstraints(ca=True, path_length=0)
        made = _certificate(self.subject, self.subject, self.key.public_key(), DAY)
        signed = made.add_extension(constraints, critical=True).sign(self.key, hashes.SHA256())
        self.file = self.folder / f"{self.name}-ca.pem"
        self.file.write_bytes(signed.public_bytes(serialization.Encoding.PEM))

    def access(
        self, token: Path, *, valid: datetime.timedelta = DAY, address: str = "127.0.0.1"
    ) -> Access:
        """Return what a machine with a certificate of this authority needs to connect."""
        return read_access(ClusterSettings(**self.files(token, valid=valid, address=address)))

    def files(
        self, token: Path, *, valid: datetime.timedelta = DAY, address: str = "127.0.0.1"
    ) -> dict[str, Any]:
        """Write a machine's certificate; return the settings that name its files."""
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
        return {
            "cluster_token_file": str(token),
            "cluster_ca": str(self.file),
            "cluster_cert": str(cert),
            "cluster_key": str(private),
        }


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
        .not_valid_before(now - 3 * DAY)
        .not_valid_after(now + valid)
    )
