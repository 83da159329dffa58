"""Matrices to quantize, and inputs dominated by a few directions and columns."""

import numpy as np

from galley.formats.weights import Floats
from galley.quant.grid import Scheme

SCHEMES = (Scheme(4, 32), Scheme(4, 32, symmetric=False), Scheme(4), Scheme(8), Scheme(8, 64))


def matrix(outputs: int = 48, depth: int = 128) -> Floats:
    return np.random.default_rng(1).standard_t(5, (outputs, depth)).astype(np.float32)


def correlated(rows: int = 1024, depth: int = 128) -> Floats:
    """Return inputs in which a few directions and a few columns have most of the magnitude."""
    random = np.random.default_rng(2)
    mixed = random.standard_normal((rows, depth // 4)) @ random.standard_normal((depth // 4, depth))
    inputs = mixed + 0.3 * random.standard_normal((rows, depth))
    inputs[:, ::37] *= 8
    return inputs.astype(np.float32)


def hessian() -> Floats:
    inputs = correlated()
    return inputs.T @ inputs
