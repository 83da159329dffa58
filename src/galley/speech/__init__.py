"""From a recording or live stream to text: audio decoding, speech detection, chunks, features, captions.

Needs the extra ``speech``, whose packages are imported only when they are used.
"""

import importlib
from typing import Final

from galley.errors import SettingsError, pip_install

_NEEDED: Final = ("av", "jiwer", "onnxruntime", "python_multipart", "soxr", "websockets")


def require_extra() -> None:
    """Raises SettingsError if a package of the extra ``speech`` cannot be imported."""
    for name in _NEEDED:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise SettingsError(
                f"speech needs {name}, which cannot be imported ({error}): {pip_install('speech')}"
            ) from error
