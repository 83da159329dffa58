"""The bundled language model, a small call-centre assistant, and its held-out sets."""

from __future__ import annotations

from pathlib import Path

MODEL_DIR: Path = Path(__file__).parent / "model"
"""Folder of the packaged checkpoint, in Hugging Face layout."""

DATA_DIR: Path = Path(__file__).parent / "data"
"""Folder of the fixed held-out sets."""

__all__ = ["DATA_DIR", "MODEL_DIR"]
