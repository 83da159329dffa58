"""The bundled call-center assistant, its draft model, an embedding model, and held-out sets."""

from __future__ import annotations

from pathlib import Path

MODEL_DIR: Path = Path(__file__).parent / "model"
"""Folder of the packaged checkpoint, in Hugging Face layout."""

DRAFT_DIR: Path = Path(__file__).parent / "draft"
"""Folder of the smaller draft model with the same vocabulary, for speculative decoding."""

EMBED_DIR: Path = Path(__file__).parent / "embed"
"""Folder of the embedding model, which finds the queue for a call and the entry for a question."""

DATA_DIR: Path = Path(__file__).parent / "data"
"""Folder of the fixed held-out sets."""

__all__ = ["DATA_DIR", "DRAFT_DIR", "EMBED_DIR", "MODEL_DIR"]
