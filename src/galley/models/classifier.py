"""Rerankers: the classifier of a checkpoint ``...ForSequenceClassification`` with one label."""

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from galley.errors import CheckpointError, UnsupportedModel, shown
from galley.formats.weights import Weights
from galley.models.embedding import Head, Layer, Pooling, floats_of
from galley.models.fields import FILE, Fields
from galley.models.sentence_files import longest_text, score_activation

ARCHITECTURE: Final = "ForSequenceClassification"


class _Linear(NamedTuple):
    """Names of a layer's tensors and of its norm's, without ``.weight``."""

    name: str
    activation: str = "identity"
    norm: str | None = None


_CLASSIFIERS: Final[Mapping[str, tuple[_Linear, ...]]] = {
    "bert": (_Linear("bert.pooler.dense", "tanh"), _Linear("classifier")),
    "modernbert": (_Linear("head.dense", "gelu", "head.norm"), _Linear("classifier")),
    "roberta": (_Linear("classifier.dense", "tanh"), _Linear("classifier.out_proj")),
    "xlm-roberta": (_Linear("classifier.dense", "tanh"), _Linear("classifier.out_proj")),
}
_DECODER: Final = (_Linear("score"),)


def is_classifier(config: Mapping[str, Any]) -> bool:
    """Return whether a config.json describes a checkpoint with a classifier."""
    architectures = config.get("architectures")
    return isinstance(architectures, list) and any(
        isinstance(name, str) and name.endswith(ARCHITECTURE) for name in architectures
    )


def read_classifier(
    folder: Path, config: Mapping[str, Any], weights: Weights, *, encoder: bool
) -> Head:
    """Read the classifier of a checkpoint as a head.

    Raises:
        CheckpointError: a tensor is missing or of a wrong shape.
        UnsupportedModel: it has more than one label, so it gives no score.
    """
    fields = Fields(config)
    family = str(config.get("model_type"))
    linears = _CLASSIFIERS.get(family) if encoder else _DECODER
    if linears is None:
        raise UnsupportedModel(
            f"{FILE}: classifiers of model_type {shown(family)} are not supported"
        )
    pooling: Pooling = "cls" if encoder else "last"
    if family == "modernbert":
        chosen = fields.choice(("classifier_pooling",), ("cls", "mean"), default="cls")
        pooling = "mean" if chosen == "mean" else "cls"
        fields.choice(("classifier_activation",), ("gelu",), default="gelu")
    layers = tuple(_layer(linear, weights, fields) for linear in linears)
    for before, after in itertools.pairwise(layers):
        if after.weight.shape[1] != len(before.weight):
            raise CheckpointError("classifier: the layers' widths do not match", file=FILE)
    labels = len(layers[-1].weight)
    if labels != 1:
        raise UnsupportedModel(
            f"the classifier has {labels} labels; Galley serves rerankers only, which have one"
        )
    tensors = frozenset(
        name
        for name in weights
        if any(name.startswith((f"{one.name}.", f"{one.norm}.")) for one in linears)
    )
    return Head(
        task="rerank",
        pooling=(pooling,),
        layers=layers,
        sigmoid=_sigmoid(folder, config),
        max_tokens=longest_text(folder),
        tensors=tensors,
    )


def _layer(linear: _Linear, weights: Weights, fields: Fields) -> Layer:
    name = f"{linear.name}.weight"
    if name not in weights or len(weights.info(name).shape) != 2:
        raise CheckpointError("matrix is missing", file=FILE, field=name)
    weight = floats_of(weights[name])
    vectors = []
    for vector in (f"{linear.name}.bias", f"{linear.norm}.weight"):
        found = floats_of(weights[vector]) if vector in weights else None
        if found is not None and found.shape != (len(weight),):
            raise CheckpointError(f"has shape {list(found.shape)}", file=FILE, field=vector)
        vectors.append(found)
    eps = fields.number("norm_eps", 1e-5)
    return Layer(weight, vectors[0], linear.activation, vectors[1], eps)


def _sigmoid(folder: Path, config: Mapping[str, Any]) -> bool:
    """Return whether scores go through a sigmoid, as in sentence-transformers' CrossEncoder.

    They do unless its files specify that scores are left as they are.
    """
    said, file = score_activation(folder, config)
    if said is None:
        return True
    kind = said.rpartition(".")[2]
    if kind not in ("Identity", "Sigmoid"):
        raise UnsupportedModel(f"{file}: activation_fn {shown(said)} is not supported for scores")
    return kind == "Sigmoid"
