"""The server's certificate and key, checked before anything is bound."""

import ssl
from pathlib import Path
from typing import NoReturn

from galley.errors import SettingsError
from galley.settings.config import Settings


def context(settings: Settings) -> ssl.SSLContext | None:
    """Return the TLS context of connections; None without ``tls_cert`` and ``tls_key``.

    The minimum version is TLS 1.2, and HTTP/1.1 the only protocol offered.

    Raises:
        SettingsError: one of the two is not given, cannot be read or is not valid, or they do not match.
    """
    if not settings.tls_cert and not settings.tls_key:
        return None
    if not (settings.tls_cert and settings.tls_key):
        given, other = ("tls_cert", "tls_key") if settings.tls_cert else ("tls_key", "tls_cert")
        raise SettingsError(f"{given} also needs {other}")
    for name in ("tls_cert", "tls_key"):
        path = getattr(settings, name)
        try:
            Path(path).read_bytes()
        except OSError as error:
            raise SettingsError(f"cannot read {name} {path}: {error.strerror}") from error
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    made.set_alpn_protocols(["http/1.1"])
    pair = f"tls_cert {settings.tls_cert} and tls_key {settings.tls_key}"

    def no_password() -> NoReturn:
        raise SettingsError(f"tls_key {settings.tls_key} is encrypted; store it without a password")

    try:
        made.load_cert_chain(settings.tls_cert, settings.tls_key, password=no_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise SettingsError(
                f"{pair} do not match: the key belongs to another certificate"
            ) from None
        raise SettingsError(
            f"{pair} are not a certificate and key in PEM: {error.reason or error}"
        ) from None
    return made
