"""From a recording to text: decoding, features, speech detection, windows, captions.

Needs the extra ``galley[speech]``; nothing of it is imported before it is used.
"""

import importlib
from typing import Final

from galley.errors import SettingsError

_NEEDED: Final = ("av", "jiwer", "onnxruntime", "python_multipart", "soxr", "websockets")


def require_extra() -> None:
    """Raises SettingsError if a package of ``galley[speech]`` cannot be imported."""
    for name in _NEEDED:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise SettingsError(
                f"speech needs {name}, which cannot be imported ({error}): "
                "pip install 'galley[speech]'"
            ) from error
