"""Pack typed weights into matrices in the layout of the native kernels."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from galley import _native
from galley.errors import UnsupportedModel
from galley.formats.values import bf16_bits, dequantize, to_float32
from galley.formats.weights import (
    BlockWeight,
    DenseWeight,
    Floats,
    IntWeight,
    Kinds,
    ScaleType,
    SmallFloats,
    Weight,
    WeightKind,
    Weights,
)
from galley.ops.packed_files import Bytes, Key, Names
from galley.ops.weight_cache import WeightCache
from galley.quant.rtn import QUANTIZERS, not_finite
from galley.types.weight_dtypes import WEIGHT_DTYPES

_GROUP_MULTIPLE: Final = 16
"""Groups have a multiple of this many columns, a whole register of activations."""


class Matrices:
    """A model's packed matrices, each packed once, when it is first requested.

    Args:
        weights: the model's tensors.
        kinds: the weight type of each matrix.
        threads: number of threads that pack.
        cache: where matrices may be packed already.
        experts: the matrices of experts, which follow the others in the cache's file.

    Attributes:
        expert_cache: reads experts from that file when they are chosen; None if they are in memory.
    """

    expert_cache: _native.ExpertCache | None = None

    def __init__(
        self,
        weights: Weights,
        kinds: Kinds,
        *,
        threads: int = 1,
        cache: WeightCache | None = None,
        experts: frozenset[Names] = frozenset(),
    ) -> None:
        self._weights = weights
        self._experts = experts
        self._kinds = kinds
        self._threads = threads
        self._cache = cache
        self._packed: dict[Key, _native.Packed] = {}
        self._all_cached = True

    def keep_experts_on_disk(
        self, sizes: Mapping[Names, int], *, slots: int, slot_bytes: int
    ) -> None:
        """Write all matrices to the cache's file, and load experts only when they are chosen.

        Args:
            sizes: bytes of each packed matrix.
            slots: number of experts that are in memory at the same time.
            slot_bytes: bytes of the largest expert.

        Raises:
            SettingsError: the file cannot be written.
            EngineFailed: the weights or the file changed meanwhile.
            UnsupportedModel: integers cannot represent a value.
        """
        assert self._cache is not None
        ordered = sorted(sizes, key=self._experts.__contains__)
        self._cache.fill(
            {self._key(n): sizes[n] for n in ordered}, lambda key: self._pack(key).memory
        )
        assert self._cache.file is not None
        self.expert_cache = _native.ExpertCache(self._cache.file.fileno(), slots, slot_bytes)

    def packed(self, names: Names) -> _native.Packed:
        """Return one matrix with the outputs of the named tensors, one after another.

        All tensors have the same depth and weight type.

        Raises:
            UnsupportedModel: integers cannot represent a value.
        """
        key = self._key(names)
        if key not in self._packed:
            self._packed[key] = self._made(key)
        return self._packed[key]

    def _key(self, names: Names) -> Key:
        return Key(names, str(self._kinds[names[0]]))

    def _made(self, key: Key) -> _native.Packed:
        if self.expert_cache is not None and key.names in self._experts:
            assert self._cache is not None
            return self._view(key, file_offset=self._cache.place(key))
        memory = None if self._cache is None else self._cache.get(key)
        if memory is not None:
            return self._view(key, memory=memory)
        self._all_cached = False
        return self._pack(key)

    def _pack(self, key: Key) -> _native.Packed:
        parts = [self._weights[name] for name in key.names]
        return pack(parts, self._kinds[key.names[0]], threads=self._threads)

    def _view(
        self, key: Key, memory: Bytes | None = None, file_offset: int | None = None
    ) -> _native.Packed:
        shapes = [self._weights.info(name).shape for name in key.names]
        outputs, kind = sum(shape[0] for shape in shapes), self._kinds[key.names[0]]
        return _packed(kind, outputs, shapes[0][1], memory, file_offset)

    def vector(self, name: str) -> Floats:
        """Return a tensor that is not a matrix, such as a norm's weight or a bias, as float32.

        Raises:
            UnsupportedModel: it is not dense.
        """
        weight = self._weights[name]
        if not isinstance(weight, DenseWeight):
            raise _no_kernel(name, weight.kind)
        return to_float32(weight)

    def keep(self) -> None:
        """Write the requested matrices to the cache in the background, unless it has all of them."""
        if self._cache is not None and not self._all_cached:
            ordered = sorted(self._packed, key=lambda key: key.names in self._experts)
            self._cache.keep({key: self._packed[key].memory for key in ordered})


def has_kernel(kind: WeightKind) -> bool:
    """Return whether the native executor multiplies such matrices as they are."""
    known = WEIGHT_DTYPES.get(kind.name)
    return known is not None and "cpu" in known.executors and kind.group % _GROUP_MULTIPLE == 0


def check_kind(name: str, kind: WeightKind, depth: int) -> None:
    """Raise UnsupportedModel if the native executor has no kernel for such a matrix."""
    if not has_kernel(kind):
        raise _no_kernel(name, kind)
    if kind.is_integer and (kind.group or depth) > _native.LONGEST_GROUP:
        raise UnsupportedModel(
            f"tensor {name} has {kind.group or depth} columns per scale, but {kind.name} weights allow "
            f"at most {_native.LONGEST_GROUP}; use a checkpoint with smaller groups, or with dense weights"
        )


def _no_kernel(name: str, kind: WeightKind) -> UnsupportedModel:
    return UnsupportedModel(
        f"tensor {name} is kept as {kind}, for which executor 'cpu' has no kernel; use a checkpoint "
        f"with dense, int8 or int4 weights (groups of a multiple of {_GROUP_MULTIPLE} columns)"
    )


def packed_bytes(kind: WeightKind, outputs: int, depth: int) -> int:
    """Return the bytes of a packed matrix, including padding, without packing it."""
    return _native.packed_bytes(
        kind.name, outputs, depth, kind.group, kind.scale_type or "F32", kind.zeros, kind.minima
    )


def pack(parts: Sequence[Weight], kind: WeightKind, *, threads: int = 1) -> _native.Packed:
    """Pack checkpoint tensors [outputs, depth], one after another, as one matrix.

    Args:
        parts: tensors of one depth. Integer tensors of this type are packed as they are; those of other
            types are first converted to the floats that they represent.
        kind: of a type that executor "cpu" runs. Dense tensors are rounded to nearest, as in
            ``quant/rtn.py``.
        threads: number of threads that pack.

    Raises:
        UnsupportedModel: the type cannot represent a value, or 32 bits cannot hold sums of integers.
    """
    parts = [_as_floats(part, kind) for part in parts]
    dense = [part for part in parts if isinstance(part, DenseWeight)]
    if len(dense) < len(parts):
        return pack_integers([_integers(part, kind) for part in parts], threads=threads)
    outputs, depth = sum(part.shape[0] for part in dense), dense[0].shape[1]
    check_kind(parts[0].name, kind, depth)
    packed = _packed(kind, outputs, depth)
    unusable = packed.fill([(part.data, part.dtype) for part in dense], threads)
    if unusable >= 0:
        raise not_finite(dense[unusable])
    return packed


def _as_floats(part: Weight, kind: WeightKind) -> Weight:
    """Convert a matrix of integers of another type to float32; no value changes."""
    if not isinstance(part, IntWeight) or part.kind == kind:
        return part
    return DenseWeight(part.name, "F32", part.shape, _raw(dequantize(part)))


def _integers(part: Weight, kind: WeightKind) -> IntWeight:
    """Return an integer tensor as it is, or a dense one rounded as the native packing rounds it."""
    if isinstance(part, BlockWeight | SmallFloats):
        raise _no_kernel(part.name, part.kind)
    if isinstance(part, DenseWeight):
        return QUANTIZERS[kind.name](part)
    assert part.kind == kind, (part.name, part.kind, kind)
    return part


def pack_integers(parts: Sequence[IntWeight], *, threads: int = 1) -> _native.Packed:
    """Pack integer matrices of one type and depth, one after another, without changing any value.

    Raises:
        UnsupportedModel: there is no kernel for the type.
    """
    kind = parts[0].kind
    check_kind(parts[0].name, kind, parts[0].shape[1])
    outputs = sum(part.shape[0] for part in parts)
    packed = _packed(kind, outputs, parts[0].shape[1])
    scales, minima = (_kept(parts, i) for i in (0, 1))
    packed.fill_integer(
        _raw(np.concatenate([part.q for part in parts])),
        scales[0],
        _joined([part.zeros for part in parts]),
        threads,
        minima=minima[0],
        super_scales=scales[1],
        super_minima=minima[1],
    )
    return packed


def _kept(parts: Sequence[IntWeight], which: int) -> tuple[Any, Bytes | None]:
    """Return the scales (0) or minima (1) as they are packed and, if they are nested, their units."""
    if parts[0].nested is None:
        floats = [(part.scales, part.minima)[which] for part in parts]
        scale_type = parts[0].scale_type
        return _joined([None if f is None else _scales(f, scale_type) for f in floats]), None
    nested = [None if part.nested is None else part.nested[which] for part in parts]
    return (
        _joined([None if n is None else n.steps for n in nested]),
        _joined([None if n is None else n.units for n in nested]),
    )


def _joined(arrays: Sequence[npt.NDArray[Any] | None]) -> Bytes | None:
    """Return the arrays concatenated, as bytes; None if there are none."""
    there = [array for array in arrays if array is not None]
    return _raw(np.concatenate(there)) if there else None


def _packed(
    kind: WeightKind,
    outputs: int,
    depth: int,
    memory: Bytes | None = None,
    file_offset: int | None = None,
) -> _native.Packed:
    """Return an empty matrix, a view of packed ``memory``, or a matrix that stays in a file."""
    return _native.Packed(
        kind.name,
        outputs,
        depth,
        group=kind.group,
        scale_type=kind.scale_type or "F32",
        zeros=kind.zeros,
        minima=kind.minima,
        memory=memory,
        file_offset=file_offset,
    )


def _scales(scales: Floats, scale_type: ScaleType) -> Any:
    if scale_type == "BF16":
        return bf16_bits(scales)
    return scales.astype(np.float16) if scale_type == "F16" else scales


def _raw(values: Any) -> Bytes:
    """Return the values as flat bytes."""
    flat: Bytes = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
    return flat
