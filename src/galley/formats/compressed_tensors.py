"""compressed-tensors checkpoints, as llm-compressor writes them and vLLM reads them.

A module has ``weight_packed`` (integers of up to 8 bits or E2M1 values, in words) or ``weight`` (int8 or
FP8), and ``weight_scale``; it may have ``weight_zero_point``, ``weight_shape`` and ``weight_g_idx``. The
schemes of ``config_groups`` define what the tensors mean. The scheme of a module is determined from its
tensors: modules that are in ``ignore``, or that no target matches, are dense in the files. Thus patterns of
names (``re:``) are never run.

Source: https://github.com/vllm-project/compressed-tensors, ``compressors/``.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from galley.errors import CheckpointError
from galley.formats.float_tables import FP8
from galley.formats.fp8 import fp8_matrix
from galley.formats.mxfp4 import mxfp4_matrix
from galley.formats.packed_integers import PackedIntegers, column_groups, unpack
from galley.formats.quantization import Section
from galley.formats.safetensors import StoredTensor
from galley.formats.scaled_floats import scales_of
from galley.formats.stored import Bytes, Matrix, Stored, array, read_floats, scale_type
from galley.formats.weights import MXFP4_GROUP, Floats

_FORMATS: Final = (
    "dense",
    "float-quantized",
    "int-quantized",
    "mixed-precision",
    "mxfp4-pack-quantized",
    "naive-quantized",
    "pack-quantized",
)

_STRATEGIES: Final = ("tensor", "channel", "group", "block")


class _Scheme(NamedTuple):
    """How the weights of some modules are stored.

    ``group`` is how many columns share a scale; 0 means all of a row, or of the tensor.
    """

    type: str
    bits: int
    group: int
    block: tuple[int, int] | None


def read_compressed_tensors(section: Section, stored: Stored) -> dict[str, Matrix]:
    """Return the matrices of all modules that have scales.

    Raises:
        CheckpointError: tensors contradict the config or each other.
        UnsupportedModel: a format or transformation is not supported.
    """
    schemes = _schemes(section)
    matrices = {}
    for name in stored.modules(".weight_packed"):
        wide = stored.take(f"{name}.weight_packed")
        packed = _packed_fp4 if wide.dtype == "U8" else _packed_integers
        matrices[f"{name}.weight"] = packed(name, wide, schemes, stored)
    for name in stored.modules(".weight_scale"):
        weight = stored.take(f"{name}.weight")
        make = _fp8 if weight.dtype in FP8 else _integers
        matrices[f"{name}.weight"] = make(name, weight, schemes, stored)
    return matrices


def _schemes(section: Section) -> list[_Scheme]:
    section.choice("format", "dense", _FORMATS)
    sparse = section.section("sparsity_config")
    if sparse is not None:
        sparse.choice("format", "dense", ("dense",))
    if section.section("transform_config") is not None:
        raise section.unsupported("transform_config", "its transformations are not implemented")
    schemes = []
    for group in section.sections("config_groups"):
        group.choice("format", "dense", _FORMATS)
        weights = group.section("weights")
        if weights is not None:
            schemes.append(_scheme(weights))
    return schemes


def _scheme(weights: Section) -> _Scheme:
    kind = weights.choice("type", "int", ("int", "float"))
    bits = weights.whole("num_bits", 8, least=1)
    if bits > 8:
        raise weights.wrong("num_bits", "1 to 8")
    group = weights.whole("group_size", -1, least=-1)
    strategy = weights.choice("strategy", "group" if group > 0 else "tensor", _STRATEGIES)
    if (strategy == "group") != (group > 0):
        raise weights.wrong("group_size", f"what strategy {strategy!r} has")
    return _Scheme(kind, bits, max(group, 0), _block(weights) if strategy == "block" else None)


def _block(weights: Section) -> tuple[int, int]:
    size = weights.raw.get("block_structure")
    if not isinstance(size, list) or [type(n) for n in size] != [int, int] or min(size) < 1:
        raise weights.wrong("block_structure", "two positive whole numbers")
    return size[0], size[1]


def _packed_integers(
    name: str, packed: StoredTensor, schemes: list[_Scheme], stored: Stored
) -> Matrix:
    words = array(packed, "I32", (None, None))
    outputs, depth = _shape(stored.take(f"{name}.weight_shape"))
    fitting = [s for s in schemes if -(-depth * s.bits // 32) == words.shape[1]]
    if outputs != len(words) or not fitting:
        raise packed.wrong(
            f"has {list(words.shape)} words for {[outputs, depth]} integers, which does not match "
            "num_bits of the config"
        )
    scale = stored.take(f"{name}.weight_scale")
    scheme = _fitting(fitting, "int", scale, depth)
    q = partial(unpack, words, scheme.bits, depth)
    return _matrix(name, packed, (outputs, depth), scheme, scale, q, stored).matrix()


def _shape(tensor: StoredTensor) -> tuple[int, int]:
    values = array(tensor, "I64" if tensor.dtype == "I64" else "I32", (2,))
    outputs, depth = int(values[0]), int(values[1])
    if not (0 < outputs < 2**31 and 0 < depth < 2**31):
        raise tensor.wrong(f"has shape {[outputs, depth]}, expected the shape of a matrix")
    return outputs, depth


def _integers(name: str, weight: StoredTensor, schemes: list[_Scheme], stored: Stored) -> Matrix:
    if weight.dtype != "I8":
        known = ", ".join(["I8", *FP8])
        raise weight.wrong(f"is {weight.dtype} but has a scale, expected {known}")
    values = array(weight, "I8", (None, None))
    scale = stored.take(f"{name}.weight_scale")
    scheme = _fitting(schemes, "int", scale, values.shape[1])
    q = partial(_unsigned, weight, values, scheme.bits)
    return _matrix(name, weight, values.shape, scheme, scale, q, stored).matrix()


def _matrix(
    name: str,
    weight: StoredTensor,
    shape: tuple[int, int],
    scheme: _Scheme,
    scale: StoredTensor,
    q: Callable[[], Bytes],
    stored: Stored,
) -> PackedIntegers:
    """Return integers whose scales and zero points have one of the shapes that the library writes."""
    outputs, depth = shape
    group = min(scheme.group or depth, depth)
    groups = -(-depth // group)
    if scale.shape != (outputs, groups) and not (
        groups == 1 and scale.shape in ((), (1,), (1, 1), (outputs,))
    ):
        raise scale.wrong(f"has shape {list(scale.shape)}, expected {[outputs, groups]}")
    g_idx = stored.take_any(f"{name}.weight_g_idx")
    order = None
    if g_idx is not None and not _unused(g_idx):
        order = column_groups(g_idx, array(g_idx, "I32", (depth,)), group, groups)
    zero = stored.take_any(f"{name}.weight_zero_point")
    grid = (outputs, groups)
    return PackedIntegers(
        name=f"{name}.weight",
        weight=weight,
        bits=scheme.bits,
        shape=shape,
        group=group,
        scale_type=scale_type(scale),
        q=q,
        scales=partial(_spread, scale, grid),
        zeros=None if zero is None else _zeros(zero, scheme.bits, grid),
        order=order,
        floats=stored.floats,
    )


def _unused(g_idx: StoredTensor) -> bool:
    """Return whether no column is assigned to a group, which is the state before columns are ordered."""
    return bool((g_idx.data == 0xFF).all())


def _fitting(schemes: list[_Scheme], type: str, scale: StoredTensor, depth: int) -> _Scheme:
    """Return the scheme that matches the tensors of a module.

    Raises:
        CheckpointError: no scheme matches, or several that differ.
    """
    groups = scale.shape[1] if len(scale.shape) == 2 else 1
    found = {
        (scheme.bits, min(scheme.group or depth, depth)): scheme
        for scheme in schemes
        if scheme.type == type
        and scheme.block is None
        and -(-depth // (scheme.group or depth)) == groups
    }
    if len(found) != 1:
        raise scale.wrong(
            f"has shape {list(scale.shape)} for {depth} columns of type {type}, which {len(found) or 'no'} "
            "config_groups match"
        )
    return next(iter(found.values()))


def _zeros(zero: StoredTensor, bits: int, grid: tuple[int, int]) -> Callable[[], Bytes] | None:
    """Return a reader of unsigned zero points [outputs, groups]; None if all are the middle."""
    outputs, groups = grid
    if zero.dtype == "I8":
        values = array(zero, "I8", zero.shape)
        if zero.shape != grid and not (groups == 1 and zero.shape in ((1,), (outputs,), ())):
            raise zero.wrong(f"has shape {list(zero.shape)}, expected {list(grid)}")
        if not values.any():
            return None
        return lambda: _filled(_unsigned(zero, values, bits), grid)
    packed: npt.NDArray[np.int32] = array(zero, "I32", (-(-outputs * bits // 32), groups))
    return lambda: np.ascontiguousarray(unpack(np.ascontiguousarray(packed.T), bits, outputs).T)


def _unsigned(tensor: StoredTensor, values: npt.NDArray[np.int8], bits: int) -> Bytes:
    middle = 1 << (bits - 1)
    if bits < 8 and (values.min() < -middle or values.max() >= middle):
        raise tensor.wrong(
            f"has integers from {values.min()} to {values.max()}, which exceed {bits} bits"
        )
    return values.view(np.uint8) + np.uint8(middle)


def _spread(scale: StoredTensor, grid: tuple[int, int]) -> Floats:
    scales: Floats = _filled(read_floats(scale), grid)
    return scales


def _filled(values: npt.NDArray[Any], grid: tuple[int, int]) -> npt.NDArray[Any]:
    """Expand one value, or one for each row, to the whole grid."""
    if values.size == grid[0] * grid[1]:
        return values.reshape(grid)
    return np.ascontiguousarray(np.broadcast_to(values.reshape(1, 1), grid))


def _fp8(name: str, weight: StoredTensor, schemes: list[_Scheme], stored: Stored) -> Matrix:
    scale = stored.take(f"{name}.weight_scale")
    stored.take_any(f"{name}.weight_zero_point")
    floats = [scheme for scheme in schemes if scheme.type == "float" and scheme.bits == 8]
    if not floats:
        raise weight.wrong(f"is {weight.dtype}, which no config_groups match")
    blocks: list[tuple[int, int] | None] = [None]
    blocks += [scheme.block for scheme in floats if scheme.block is not None]
    blocks += [(1, scheme.group) for scheme in floats if scheme.group]
    for block in blocks:
        try:
            return fp8_matrix(weight, scale, stored, block=block).matrix()
        except CheckpointError as error:
            wrong = error
    raise wrong


def _packed_fp4(name: str, packed: StoredTensor, schemes: list[_Scheme], stored: Stored) -> Matrix:
    codes = array(packed, "U8", (None, None))
    outputs, depth = codes.shape[0], 2 * codes.shape[1]
    scale = stored.take(f"{name}.weight_scale")
    scheme = _fitting(schemes, "float", scale, depth)
    if (scheme.bits, scheme.group) != (4, MXFP4_GROUP):
        raise packed.wrong(f"is {scheme.bits}-bit floats in groups of {scheme.group}, not MXFP4")
    if scale.dtype not in ("U8", "F8_E8M0") or scale.shape != (outputs, -(-depth // MXFP4_GROUP)):
        raise scale.wrong(f"is {scale.dtype} {list(scale.shape)}, expected scales of groups as U8")
    scales = partial(scales_of, scale)
    made = mxfp4_matrix(f"{name}.weight", packed, (outputs, depth), scales, stored)
    return made.matrix(change="no value changes")
