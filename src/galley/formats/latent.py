"""Latent attention's ``kv_b_proj`` (arXiv:2405.04434) as the matrices of single heads.

The matrix computes a head's keys and values from the latent. Attention over the latent itself splits it: a
query is multiplied by the transposed part of the keys, the attention output by the part of the values. They
are named ``NAME.kv_b_proj.3.key.weight`` [latent, key columns] and ``NAME.kv_b_proj.3.value.weight``
[value columns, latent].
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from galley.errors import CheckpointError, UnsupportedModel
from galley.formats.values import bf16_bits, dequantize
from galley.formats.weights import (
    DENSE_KINDS,
    WEIGHT_TYPES,
    DenseWeight,
    IntWeight,
    SmallFloats,
    TensorInfo,
    Weight,
    Weights,
)

FAMILIES: Final = frozenset({"deepseek_v2", "deepseek_v3"})

_SOURCE: Final = ".kv_b_proj.weight"


class Part(NamedTuple):
    """One head's rows of a matrix, ``first`` to ``first + rows``; those of keys are transposed."""

    source: str
    first: int
    rows: int
    of_keys: bool


class HeadMatrices(Weights):
    """The tensors of other weights, with ``kv_b_proj`` split. Its integers are converted to bfloat16.

    Args:
        weights: all tensors.
        config: config.json, for heads and their columns.

    Raises:
        CheckpointError: a tensor's shape is not what config.json implies.
    """

    def __init__(self, weights: Weights, config: Mapping[str, Any]) -> None:
        self._weights = weights
        self._parts: dict[str, Part] = {}
        self._others: dict[str, None] = {}
        self._last: DenseWeight | None = None
        self._rounded = False
        names = ("num_attention_heads", "qk_nope_head_dim", "v_head_dim")
        sizes = [config.get(name) for name in names]
        for name in weights:
            if not name.endswith(_SOURCE):
                self._others[name] = None
                continue
            for size, field in zip(sizes, names, strict=True):
                if type(size) is not int or size < 1:
                    raise CheckpointError(f"is {size!r}", file="config.json", field=field)
            self._add(name, *(size for size in sizes if isinstance(size, int)))
        self.notes = weights.notes
        if self._rounded:
            self.notes += ("kv_b_proj is kept as bfloat16, because attention splits it into heads",)

    def _add(self, name: str, heads: int, keys: int, values: int) -> None:
        shape, kind = self._weights.info(name)
        if len(shape) != 2 or shape[0] != heads * (keys + values):
            raise CheckpointError(
                f"has shape {list(shape)}, expected {heads * (keys + values)} rows: {heads} heads of "
                f"{keys} + {values}",
                file="config.json",
                field=name,
            )
        if not (kind.is_dense or kind.is_integer):
            raise UnsupportedModel(f"tensor {name} is {kind}, which cannot be read in parts")
        self._rounded |= kind.is_integer
        owner = name.removesuffix(".weight")
        for head in range(heads):
            first = head * (keys + values)
            self._parts[f"{owner}.{head}.key.weight"] = Part(name, first, keys, True)
            self._parts[f"{owner}.{head}.value.weight"] = Part(name, first + keys, values, False)

    def info(self, name: str) -> TensorInfo:
        """Return shape and kind; see :class:`Weights`."""
        part = self._parts.get(name)
        if part is None:
            if name not in self._others:
                raise KeyError(name)
            return self._weights.info(name)
        shape, kind = self._weights.info(part.source)
        mine = (shape[1], part.rows) if part.of_keys else (part.rows, shape[1])
        return TensorInfo(mine, kind if kind.is_dense else DENSE_KINDS["BF16"])

    def is_rounded(self, name: str) -> bool:
        """Return whether a tensor is rounded; see :class:`Weights`."""
        part = self._parts.get(name)
        return part is not None and not self._weights.info(part.source).kind.is_dense

    def __getitem__(self, name: str) -> Weight:
        part = self._parts.get(name)
        if part is None:
            if name not in self._others:
                raise KeyError(name)
            return self._weights[name]
        whole = self._whole(part.source)
        values = whole.data.view(f"<u{WEIGHT_TYPES[whole.dtype]}").reshape(whole.shape)
        values = values[part.first : part.first + part.rows]
        values = np.ascontiguousarray(values.T if part.of_keys else values)
        return DenseWeight(name, whole.dtype, values.shape, values.reshape(-1).view(np.uint8))

    def _whole(self, name: str) -> DenseWeight:
        """Return the matrix as floats, kept until another one is requested."""
        if self._last is None or self._last.name != name:
            self._last = None
            weight = self._weights[name]
            if isinstance(weight, IntWeight | SmallFloats):
                bits = bf16_bits(dequantize(weight)).reshape(-1).view(np.uint8)
                weight = DenseWeight(name, "BF16", weight.shape, bits)
            assert isinstance(weight, DenseWeight)
            self._last = weight
        return self._last

    def __iter__(self) -> Iterator[str]:
        yield from self._others
        yield from self._parts

    def __len__(self) -> int:
        return len(self._others) + len(self._parts)
