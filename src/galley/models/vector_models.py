"""Models that make vectors or scores of whole texts: how to recognize and load their checkpoints."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from galley.formats.gguf_file import is_gguf
from galley.formats.json_file import read_json
from galley.formats.reader import CheckpointReader
from galley.formats.weights import Weights
from galley.graph.program import Program
from galley.models.classifier import is_classifier, read_classifier
from galley.models.embedding import Head
from galley.models.fields import FILE
from galley.models.registry import ENCODERS, build_program
from galley.models.sentence_files import MODULES_FILE, read_sentence_files
from galley.models.whole_texts import over_whole_texts

UNREAD: Final = re.compile(
    r"(\w+\.)?embeddings\.(position_ids|token_type_ids)"  # buffers saved by early versions of transformers
    r"|(\w+\.)?pooler\..*"  # trained, but not used by sentence-transformers
    r"|(cls|lm_head|head|decoder|score|classifier)\..*"  # heads of other tasks
)
"""Tensors of such checkpoints that do not affect vectors."""


class VectorModel(NamedTuple):
    """A model whose ``program`` makes rows of texts, and whose ``head`` makes vectors of rows."""

    program: Program
    head: Head


def makes_vectors(folder: Path) -> bool:
    """Return whether the checkpoint is an embedding model or a reranker, by its small files.

    Raises:
        CheckpointError: config.json is damaged.
    """
    if is_gguf(folder) or not (folder / FILE).exists():
        return False
    return is_vector_model(read_json(folder / FILE), folder)


def is_vector_model(config: Mapping[str, Any], folder: Path) -> bool:
    """Do the same as :func:`makes_vectors` for a config.json that has been read from ``folder``."""
    known = config.get("model_type") in ENCODERS or is_classifier(config)
    return known or (folder / MODULES_FILE).exists()


def read_vector_model(checkpoint: CheckpointReader, weights: Weights) -> VectorModel | None:
    """Load the model of a checkpoint; return None if it generates text or is a speech model.

    Raises:
        ModelError: it cannot be used.
    """
    config, folder = checkpoint.config, checkpoint.folder
    if is_gguf(folder) or not is_vector_model(config, folder):
        return None
    encoder = config.get("model_type") in ENCODERS
    if is_classifier(config):
        head = read_classifier(folder, config, weights, encoder=encoder)
    else:
        head = read_sentence_files(folder, config, "mean" if encoder else "last")
    program = build_program(config, weights)
    return VectorModel(over_whole_texts(program, weights, all_rows=head.all_rows), head)
