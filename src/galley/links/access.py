"""The credentials of both sides of a connection between machines: the token, and certificates for TLS."""

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from galley.errors import SettingsError

SHORTEST_TOKEN: Final = 16
"""Minimum length of a token in bytes."""

UNENCRYPTED: Final = (
    "%s is reachable from other machines without encryption: set cluster_ca, cluster_cert and "
    "cluster_key, or keep the network private"
)
"""Warning of a process that listens at an address."""


class LinkFiles(Protocol):
    """The paths of the files; the names are those of the files."""

    @property
    def cluster_token_file(self) -> str:
        """Path of the file with the secret."""

    @property
    def cluster_ca(self) -> str:
        """Path of the certificate authority; empty for connections without TLS, as the next two."""

    @property
    def cluster_cert(self) -> str:
        """Path of this machine's certificate."""

    @property
    def cluster_key(self) -> str:
        """Path of its private key."""


@dataclass(frozen=True, repr=False)
class Access:
    """The token, and the TLS contexts of each side; None without certificates."""

    token: bytes
    as_replica: ssl.SSLContext | None
    as_caller: ssl.SSLContext | None


def read_access(files: LinkFiles) -> Access:
    """Read the files.

    Raises:
        SettingsError: a file is missing, cannot be read or is not valid.
    """
    if not files.cluster_token_file:
        raise SettingsError(
            "connections between machines need cluster_token_file: a file with a secret of at least "
            f"{SHORTEST_TOKEN} bytes, the same on all machines"
        )
    token = _read("cluster_token_file", files.cluster_token_file).strip()
    if len(token) < SHORTEST_TOKEN:
        raise SettingsError(
            f"cluster_token_file {files.cluster_token_file} has {len(token)} bytes; at least "
            f"{SHORTEST_TOKEN} are needed (openssl rand -hex 32)"
        )
    names = ("cluster_ca", "cluster_cert", "cluster_key")
    given = [name for name in names if getattr(files, name)]
    if not given:
        return Access(token, None, None)
    if len(given) < len(names):
        missing = ", ".join(name for name in names if name not in given)
        raise SettingsError(
            f"TLS between machines needs all of {', '.join(names)}; missing: {missing}"
        )
    return Access(
        token,
        _context(files, ssl.PROTOCOL_TLS_SERVER),
        _context(files, ssl.PROTOCOL_TLS_CLIENT),
    )


def _context(files: LinkFiles, protocol: int) -> ssl.SSLContext:
    for name in ("cluster_ca", "cluster_cert", "cluster_key"):
        _read(name, getattr(files, name))
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        context.load_cert_chain(files.cluster_cert, files.cluster_key)
        context.load_verify_locations(files.cluster_ca)
    except ssl.SSLError as error:
        raise SettingsError(
            f"cluster_ca, cluster_cert and cluster_key are not valid certificates and a key in PEM: "
            f"{error.reason or error}"
        ) from None
    # Both sides show a certificate of this authority.
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def _read(name: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise SettingsError(f"cannot read {name} {path}: {error.strerror}") from error
