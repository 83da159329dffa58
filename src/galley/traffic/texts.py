"""The texts of a record, encrypted: token ids of prompts and answers (extra ``record``).

AES-256-GCM under a key of the user's, with a random nonce for each line. The line's times and lengths are
authenticated with it, so that texts cannot be moved to another line.
"""

import base64
import binascii
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from galley.errors import SettingsError, pip_install

KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12
_MAKE_ONE: Final = "make one with: openssl rand -hex 32"


class Texts(msgspec.Struct, array_like=True, frozen=True):
    """The tokens of a recorded request: those of its prompt, and of each choice of its answer."""

    prompt: list[int]
    outputs: list[list[int]]


class TextCipher:
    """Encrypts and decrypts texts. For any thread."""

    def __init__(self, key_file: Path, setting: str) -> None:
        """Read the key.

        Args:
            key_file: has 64 hexadecimal digits.
            setting: the setting or option that names it, for error messages.

        Raises:
            SettingsError: the file has no such key, or the library is not installed.
        """
        try:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError as error:
            raise SettingsError(
                f"{setting} needs the package cryptography: {pip_install('record')}"
            ) from error
        self._cipher = AESGCM(_read_key(key_file, setting))
        self._setting = setting

    def encrypt(self, texts: Texts, line: str) -> str:
        """Return the texts as letters and digits; ``line`` says to which line they belong."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        sealed = self._cipher.encrypt(nonce, msgspec.msgpack.encode(texts), line.encode())
        return base64.b64encode(nonce + sealed).decode()

    def decrypt(self, sealed: str, line: str) -> Texts:
        """Return what :meth:`encrypt` was given.

        Raises:
            SettingsError: the key is another one, or the line was changed.
        """
        from cryptography.exceptions import InvalidTag

        try:
            data = base64.b64decode(sealed, validate=True)
            plain = self._cipher.decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], line.encode())
            return msgspec.msgpack.decode(plain, type=Texts)
        except (InvalidTag, ValueError, msgspec.DecodeError) as error:
            raise SettingsError(
                f"{self._setting}: the texts of the line of {line} cannot be decrypted: the key is not "
                "that of the record, or the line was changed"
            ) from error


def texts_of(
    prompts: Sequence[Sequence[int]], outputs: Sequence[Sequence[Sequence[int]]]
) -> list[Texts]:
    """Return the texts of each prompt with its choices."""
    return [
        Texts(list(prompt), [list(choice) for choice in choices])
        for prompt, choices in zip(prompts, outputs, strict=True)
    ]


def _read_key(file: Path, setting: str) -> bytes:
    try:
        with file.open("rb") as opened:
            key = binascii.unhexlify(opened.read(4 * KEY_BYTES).strip())
    except OSError as error:
        raise SettingsError(f"{setting}: {file}: {error.strerror}; {_MAKE_ONE}") from error
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise SettingsError(
            f"{setting}: {file} has no key of {2 * KEY_BYTES} hexadecimal digits; {_MAKE_ONE}"
        )
    return key
