"""The recipe of `galley-demo-speech`, the small Whisper: `python -m recipes.speech.train`."""

from __future__ import annotations

from pathlib import Path

DATA_DIR: Path = Path(__file__).parent / "data"
"""Folder of the fixed held-out sets and of some of their items as recordings."""

CALL_DIR: Path = Path(__file__).parents[2] / "examples"
"""Folder of the recorded call, `call.opus`, and of its transcript and ticket, `call.json`."""

__all__ = ["CALL_DIR", "DATA_DIR"]
