"""What both sides of a connection to a replica elsewhere need: the token, and certificates for TLS."""

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from galley.errors import SettingsError
from galley.settings.cluster import ClusterSettings

SHORTEST_TOKEN: Final = 16
"""Minimum length of a token in bytes."""


@dataclass(frozen=True, repr=False)
class Access:
    """The token, and the TLS contexts of each side; None without certificates."""

    token: bytes
    as_replica: ssl.SSLContext | None
    as_caller: ssl.SSLContext | None


def read_access(settings: ClusterSettings) -> Access:
    """Read the files that the settings name.

    Raises:
        SettingsError: a file is missing, cannot be read or is not valid.
    """
    if not settings.cluster_token_file:
        raise SettingsError(
            "replicas on other machines need cluster_token_file: a file with a secret of at least "
            f"{SHORTEST_TOKEN} bytes, the same on all machines"
        )
    token = _read("cluster_token_file", settings.cluster_token_file).strip()
    if len(token) < SHORTEST_TOKEN:
        raise SettingsError(
            f"cluster_token_file {settings.cluster_token_file} has {len(token)} bytes; at least "
            f"{SHORTEST_TOKEN} are needed (openssl rand -hex 32)"
        )
    names = ("cluster_ca", "cluster_cert", "cluster_key")
    given = [name for name in names if getattr(settings, name)]
    if not given:
        return Access(token, None, None)
    if len(given) < len(names):
        missing = ", ".join(name for name in names if name not in given)
        raise SettingsError(
            f"TLS between machines needs all of {', '.join(names)}; missing: {missing}"
        )
    return Access(
        token,
        _context(settings, ssl.PROTOCOL_TLS_SERVER),
        _context(settings, ssl.PROTOCOL_TLS_CLIENT),
    )


def _context(settings: ClusterSettings, protocol: int) -> ssl.SSLContext:
    for name in ("cluster_ca", "cluster_cert", "cluster_key"):
        _read(name, getattr(settings, name))
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        context.load_cert_chain(settings.cluster_cert, settings.cluster_key)
        context.load_verify_locations(settings.cluster_ca)
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
