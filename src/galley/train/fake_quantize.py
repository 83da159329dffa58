"""Fake quantization: during training, a model computes with the values that its integers will represent.

Gradients pass the rounding unchanged (straight-through estimator: Y. Bengio et al., "Estimating or
Propagating Gradients Through Stochastic Neurons", arXiv:1308.3432). The rounding is exact: it is the one
by which the checkpoint is written, or by which an executor rounds it at load.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from galley.formats.values import as_dense, dequantize, to_float32
from galley.formats.weights import DenseWeight, Floats, IntWeight, WeightType
from galley.quant.grid import Scheme, nearest
from galley.quant.rtn import Quantize, quantize_int4, quantize_int8

Rounding = Callable[[str, Floats], IntWeight]
"""Tensor name and float32 values [outputs, depth] -> quantized matrix."""


def on_grid(scheme: Scheme) -> Rounding:
    """Return the rounding of ``galley quantize --method rtn`` (:mod:`galley.quant.grid`)."""
    return lambda name, values: nearest(name, values, scheme)


def at_load(weight_dtype: str, dtype: WeightType) -> Rounding:
    """Return the rounding of a dense checkpoint by ``--weight-dtype`` (:mod:`galley.quant.rtn`).

    Args:
        weight_dtype: "int8" or "int4".
        dtype: type of the tensors in the checkpoint ("BF16", "F16", "F32"), to which values are rounded
            first.
    """
    rounds: Quantize = quantize_int8 if weight_dtype == "int8" else quantize_int4
    return lambda name, values: rounds(as_dense(name, dtype, values))


class _StraightThrough(torch.autograd.Function):
    """Forward: other values. Backward: the unchanged gradient."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, rounded: Tensor) -> Tensor:
        return rounded

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


def fake_quantized(name: str, values: Tensor, rounding: Rounding) -> Tensor:
    """Return the matrix [outputs, depth] as its integers represent it, with the gradient of ``values``.

    Raises:
        UnsupportedModel: a value is infinite or NaN.
    """
    integers = rounding(name, values.detach().cpu().numpy())
    return _straight(values, torch.from_numpy(dequantize(integers)))


def fake_stored(values: Tensor, dtype: WeightType) -> Tensor:
    """Return the values as the checkpoint's type will store them, with the gradient of ``values``."""
    stored: DenseWeight = as_dense("", dtype, values.detach().cpu().numpy())
    return _straight(values, torch.from_numpy(to_float32(stored)))


def _straight(values: Tensor, rounded: Tensor) -> Tensor:
    result: Tensor = _StraightThrough.apply(values, rounded.to(values.device))  # type: ignore[no-untyped-call]
    return result
