"""From canonical weights to matrices in the layout of the native kernels."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from galley import _native
from galley.errors import UnsupportedModel
from galley.formats.weights import Weight, Weights
from galley.ops.packed_files import Bytes, Names
from galley.ops.weight_cache import WeightCache
from galley.quant.rtn import default_group
from galley.quant.weights import IntWeight, bf16_bits, not_finite


class Matrices:
    """A model's packed matrices, each made once, when it is first asked for.

    Attributes:
        kind: of all of them: float32, bf16, int8 or int4.
    """

    def __init__(
        self, weights: Weights, kind: str, *, threads: int = 1, cache: WeightCache | None = None
    ) -> None:
        self.kind = kind
        self._weights = weights
        self._threads = threads
        self._cache = cache
        self._packed: dict[Names, _native.Packed] = {}
        self._all_cached = True

    def packed(self, *names: str) -> _native.Packed:
        """One matrix with the outputs of the named tensors one after another; all have one depth.

        Raises:
            UnsupportedModel: integers cannot stand for a value.
        """
        if names not in self._packed:
            parts = [self._weights[name] for name in names]
            memory = None if self._cache is None else self._cache.get(names)
            if memory is None:
                self._all_cached = False
                self._packed[names] = pack(parts, self.kind, threads=self._threads)
            else:
                self._packed[names] = _matrix(parts, self.kind, memory)
        return self._packed[names]

    def keep(self) -> None:
        """Have the cache keep what was asked for, unless it had all of it; goes on in the background."""
        if self._cache is not None and not self._all_cached:
            self._cache.keep({names: packed.memory for names, packed in self._packed.items()})


def pack(parts: Sequence[Weight], kind: str, *, threads: int = 1) -> _native.Packed:
    """Checkpoint tensors [outputs, depth], one after another, as one matrix.

    Args:
        parts: of one depth.
        kind: float32, bf16, int8 or int4. Integers are rounded to nearest, as ``quant/rtn.py`` does.
        threads: to work with.

    Raises:
        UnsupportedModel: integers cannot stand for a value, or 32 bits cannot hold their sums.
    """
    packed = _matrix(parts, kind, None)
    unusable = packed.fill([(part.data, part.dtype) for part in parts], threads)
    if unusable >= 0:
        raise not_finite(parts[unusable])
    return packed


def _matrix(parts: Sequence[Weight], kind: str, memory: Bytes | None) -> _native.Packed:
    """Empty, or a view of packed ``memory``."""
    outputs, depth = sum(part.shape[0] for part in parts), parts[0].shape[1]
    if kind == "int8" and depth > _native.LONGEST_GROUP:
        raise UnsupportedModel(
            f"tensor {parts[0].name} is {depth} wide, but int8 weights {_native.LONGEST_GROUP} at most; "
            "set quantize to int4 or bf16"
        )
    if kind != "int4":
        return _native.Packed(kind, outputs, depth, memory=memory)
    group = default_group(depth)
    return _native.Packed(
        kind,
        outputs,
        depth,
        group=group if group < depth else 0,
        scale_type="BF16",
        memory=memory,
    )


def pack_integers(weight: IntWeight, *, threads: int = 1) -> _native.Packed:
    """A canonical integer matrix in the native layout."""
    whole = weight.group >= weight.shape[1]
    packed = _native.Packed(
        f"int{weight.bits}",
        *weight.shape,
        group=0 if whole else weight.group,
        scale_type=weight.scale_type,
        zeros=weight.zeros is not None,
    )
    scales: Any = weight.scales
    if weight.scale_type == "BF16":
        scales = bf16_bits(scales)
    elif weight.scale_type == "F16":
        scales = scales.astype(np.float16)
    packed.fill_integer(_raw(weight.q), _raw(scales), _raw(weight.zeros), threads)
    return packed


def _raw(values: Any) -> Any:
    """Flat bytes; None stays None."""
    return None if values is None else np.ascontiguousarray(values).reshape(-1).view(np.uint8)
