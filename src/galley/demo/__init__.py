"""The bundled call-centre assistant, its draft model, a model of embeddings, and held-out sets."""

from __future__ import annotations

from pathlib import Path

MODEL_DIR: Path = Path(__file__).parent / "model"
"""Folder of the packaged checkpoint, in Hugging Face layout."""

DRAFT_DIR: Path = Path(__file__).parent / "draft"
"""Folder of a smaller model of the same vocabulary, which guesses for it."""

EMBED_DIR: Path = Path(__file__).parent / "embed"
"""Folder of a model of embeddings, which finds the queue of a call and the entry for a question."""

DATA_DIR: Path = Path(__file__).parent / "data"
"""Folder of the fixed held-out sets."""

__all__ = ["DATA_DIR", "DRAFT_DIR", "EMBED_DIR", "MODEL_DIR"]
