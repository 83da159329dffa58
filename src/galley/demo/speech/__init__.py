"""The bundled speech model, for callers' sentences spoken by espeak-ng over a telephone line."""

from __future__ import annotations

from pathlib import Path

SPEECH_MODEL_DIR: Path = Path(__file__).parent / "model"
"""Folder of the packaged checkpoint, in Hugging Face layout."""

CALL: Path = Path(__file__).parent / "call.opus"
"""A recorded call that the model did not see; ``call.json`` has its ``text``."""

__all__ = ["CALL", "SPEECH_MODEL_DIR"]
