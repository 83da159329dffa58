"""References for products of linear layers: float64 over the values that the layers use."""

from typing import Any

import numpy as np

from galley.formats.values import dequantize
from galley.formats.weights import IntWeight
from galley.quant.int8_inputs import dynamic_int8, input_group
from tests.native.harness import Floats, round_bf16


def random_matrix(seed: int, rows: int, columns: int) -> Floats:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((rows, columns)).astype(np.float32)


def close(got: Floats, expected: Any, magnitude: Any) -> bool:
    """Check within the rounding of float32 sums; ``magnitude`` is the sum of the terms' sizes."""
    return bool((np.abs(got - expected) <= 1e-5 * magnitude + 1e-30).all())


def as_taken(x: Floats, activations: str) -> Any:
    """Return the float inputs that a layer multiplies."""
    return (round_bf16(x) if activations == "bfloat16" else x).astype(np.float64)


def expected_integer(x: Floats, weight: IntWeight, activations: str) -> tuple[Any, Any]:
    """Return x, rounded to int8 by groups or as floats, times the weights; and the magnitude."""
    w = dequantize(weight)
    if activations != "int8":
        taken = as_taken(x, activations)
        return taken @ w.T, np.abs(taken) @ np.abs(w).T
    rounded = dynamic_int8(x, input_group(weight.kind, x.shape[1])).astype(np.float64)
    return rounded @ w.T, np.abs(rounded) @ np.abs(w).T + np.abs(rounded).sum(1, keepdims=True)
