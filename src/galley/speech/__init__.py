"""Recordings and live streams to text: audio decoding, speech detection, chunks, features, captions.

Needs the extra ``speech``, whose packages are imported only when they are used.
"""

import importlib
import importlib.util
import os
from typing import Final

from galley.errors import SettingsError, pip_install

_NEEDED: Final = ("av", "jiwer", "onnxruntime", "python_multipart", "soxr", "websockets")

# Otherwise onnxruntime 1.31 on Linux writes a device id and a queue of events for Microsoft to the user's
# cache folder. It reads the variable when it is first imported, which happens only in this package.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")


def require_installed() -> None:
    """Raise SettingsError if a package of the extra ``speech`` is not installed; import none of them."""
    for name in _NEEDED:
        try:
            found = importlib.util.find_spec(name) is not None
        except ImportError:
            found = False
        if not found:
            raise SettingsError(
                f"speech needs {name}, which is not installed: {pip_install('speech')}"
            )


def require_extra() -> None:
    """Raise SettingsError if a package of the extra ``speech`` cannot be imported. Takes a second."""
    for name in _NEEDED:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise SettingsError(
                f"speech needs {name}, which cannot be imported ({error}): {pip_install('speech')}"
            ) from error
