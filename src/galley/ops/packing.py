"""From canonical weights to matrices in the layout of the native kernels."""

from typing import Any

import numpy as np

from galley import _native
from galley.formats.weights import Weight, Weights
from galley.quant.rtn import quantise_int4, quantise_int8
from galley.quant.weights import IntWeight, bf16_bits, to_float32


class Matrices:
    """A model's packed matrices, each packed once, when it is first asked for.

    Attributes:
        kind: of all of them: float32, bf16, int8 or int4.
    """

    def __init__(self, weights: Weights, kind: str) -> None:
        self.kind = kind
        self._weights = weights
        self._packed: dict[tuple[str, ...], _native.Packed] = {}

    def packed(self, *names: str) -> _native.Packed:
        """One matrix with the outputs of the named tensors one after another; all have one depth."""
        if names not in self._packed:
            self._packed[names] = pack(_joined([self._weights[name] for name in names]), self.kind)
        return self._packed[names]


def _joined(parts: list[Weight]) -> Weight:
    if len(parts) == 1:
        return parts[0]
    values = np.concatenate([to_float32(part) for part in parts])
    return Weight(parts[0].name, "F32", values.shape, values.reshape(-1).view(np.uint8))


def pack(weight: Weight, kind: str) -> _native.Packed:
    """A checkpoint's matrix in the layout of ``kind``: float32, bf16, int8 or int4."""
    if kind == "int8":
        return pack_integers(quantise_int8(weight))
    if kind == "int4":
        return pack_integers(quantise_int4(weight))
    outputs, depth = weight.shape
    packed = _native.Packed(kind, outputs, depth)
    packed.fill_dense(np.ascontiguousarray(weight.data), weight.dtype)
    return packed


def pack_integers(weight: IntWeight) -> _native.Packed:
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
    packed.fill_integer(_raw(weight.q), _raw(scales), _raw(weight.zeros))
    return packed


def _raw(values: Any) -> Any:
    """Flat bytes; None stays None."""
    return None if values is None else np.ascontiguousarray(values).reshape(-1).view(np.uint8)
