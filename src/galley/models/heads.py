"""Output layers of checkpoints whose config wrongly declares the embedding as the output layer, too."""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from galley.formats.values import to_float32
from galley.formats.weights import DenseWeight, Weights
from galley.graph.program import Program

_HEADS: Final = ("lm_head.weight", "proj_out.weight", "embed_out.weight")
"""Names without the prefix of a model with several parts."""

_CHUNK: Final = 1 << 22
"""Number of bytes compared at a time."""


def is_head(name: str) -> bool:
    """Return whether a tensor is an output layer."""
    return f".{name}".endswith(tuple(f".{head}" for head in _HEADS))


def own_head(program: Program, weights: Weights) -> str | None:
    """Return the checkpoint's output layer that a program with a tied embedding does not read.

    Return None if the program reads one, the checkpoint has none, or it is a copy of the embedding.
    This is as in transformers, which does not tie a head whose values differ from the embedding's.
    A head with another weight type than the embedding, such as a quantized one, counts as
    different.
    """
    tables = {op.tensor("weight") for op in program.ops if op.name == "embed"}
    if len(tables) != 1:
        return None
    [table] = tables
    heads = [name for name in weights if is_head(name) and name not in program.shapes]
    if table not in weights or len(heads) != 1 or not _reads_twice(program, table):
        return None
    return None if _equal(weights, table, heads[0]) else heads[0]


def untied(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config.json of a model whose output layer is separate from the embedding."""
    text = config.get("text_config")
    inner = {"text_config": {**text, **_UNTIED}} if isinstance(text, Mapping) else {}
    return {**config, **inner, **_UNTIED}


_UNTIED: Final = {"tie_word_embeddings": False}


def _reads_twice(program: Program, table: str) -> bool:
    """Return whether the embedding is the output layer, too."""
    return any(op.name == "linear" and table in op.weights["weight"] for op in program.ops)


def _equal(weights: Weights, one: str, other: str) -> bool:
    a, b = weights.info(one), weights.info(other)
    if a.shape != b.shape or not a.kind.is_dense or not b.kind.is_dense:
        return False
    left, right = weights[one], weights[other]
    assert isinstance(left, DenseWeight)
    assert isinstance(right, DenseWeight)
    if a.kind != b.kind:
        return np.array_equal(to_float32(left), to_float32(right))
    steps = range(0, left.data.nbytes, _CHUNK)
    return all(np.array_equal(left.data[i : i + _CHUNK], right.data[i : i + _CHUNK]) for i in steps)
