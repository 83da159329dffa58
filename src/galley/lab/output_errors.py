"""The errors that roundings cause in the outputs of single layers, which predict their losses."""

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np

from galley.calibration.held_out import Texts
from galley.calibration.layerwise import Layerwise
from galley.calibration.quantize import Method
from galley.calibration.rounding import trials_of
from galley.engine.read_model import Model
from galley.formats.values import dequantize, to_float32
from galley.formats.weights import DenseWeight, Floats
from galley.ops.executor import ExecutorFactory
from galley.quant.awq import clipped, input_scales, output_error, rounded
from galley.quant.grid import Scheme

METHODS: Final[tuple[Method, ...]] = ("rtn", "awq", "gptq")


def output_errors(
    model: Model, factory: ExecutorFactory, texts: Texts, schemes: Mapping[str, Scheme]
) -> dict[str, float]:
    """Return method -> mean squared error of a layer's outputs, as a share of their mean square.

    Each layer is rounded by itself, with inputs of the model as it is.

    Args:
        model: with dense weights.
        factory: of the executor that computes the layers' inputs.
        texts: to calibrate with, and to measure on.
        schemes: matrix -> how it is rounded; all that read the same inputs alike.
    """
    runs = [
        Layerwise(model.program, model.weights, windows, factory, model.options)
        for windows in texts
    ]
    shares: dict[str, list[float]] = {method: [] for method in METHODS}
    for buffer in runs[0].kept:
        seen, measured = (run.advance(buffer) for run in runs)
        linears = [name for op in runs[0].linears(buffer) for name in op.weights["weight"]]
        names = [name for name in linears if name in schemes]
        if not names:
            continue
        own = {name: _matrix(model, name) for name in names}
        hessian = measured.T @ measured
        for method, name, matrix in _rounded(model, own, seen, schemes[names[0]]):
            error = output_error(own[name], matrix, hessian)
            size = output_error(own[name], np.zeros_like(own[name]), hessian)
            shares[method].append(error / size if size else 0.0)
    return {method: float(np.mean(found)) for method, found in shares.items()}


def _rounded(
    model: Model, own: Mapping[str, Floats], seen: Floats, scheme: Scheme
) -> Iterator[tuple[str, str, Floats]]:
    """Yield (method, name, rounded matrix) for matrices that read the rows ``seen``."""
    hessian = seen.T @ seen
    scales = input_scales([*own.values()], hessian, scheme)
    scaled_hessian = hessian / np.outer(scales, scales)
    for name, matrix in own.items():
        yield "rtn", name, rounded(matrix, scheme)
        scaled = matrix * scales
        yield "awq", name, rounded(scaled, scheme, clipped(scaled, scaled_hessian, scheme)) / scales
    for weight in trials_of(model, [*own], seen)(scheme):
        yield "gptq", weight.name, dequantize(weight)


def _matrix(model: Model, name: str) -> Floats:
    weight = model.weights[name]
    assert isinstance(weight, DenseWeight)
    return to_float32(weight)
