"""Shapes, values and float64 references shared by the tests of the speech models' ops."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from galley import _native
from tests.native.harness import ISAS, Floats, as_weight

Slot = tuple[int, int, int]
Doubles = npt.NDArray[np.float64]
odd = st.integers(1, 100)
seeds = st.integers(0, 2**32 - 1)
isas = st.sampled_from(ISAS)
dims = st.sampled_from([1, 8, 20, 64])


def slots_of(*widths: int) -> tuple[list[Slot], int]:
    """Return consecutive float buffers, and the bytes of a row of all of them."""
    strides = [-(-4 * width // 64) * 64 for width in widths]
    offsets = np.cumsum([0, *strides]).tolist()
    return [(at, stride, 0) for at, stride in zip(offsets, strides, strict=False)], offsets[-1]


def exact(values: Floats) -> _native.Packed:
    """Return rows that an embedding returns unchanged."""
    packed = _native.Packed("float32", *values.shape)
    packed.fill([(as_weight(values).data, "F32")], threads=1)
    return packed


@dataclass(frozen=True)
class Heads:
    """The shape of an attention: ``group`` query heads for each of ``kv_heads``."""

    kv_heads: int
    group: int
    key_dim: int
    value_dim: int

    @property
    def scale(self) -> float:
        return float(self.key_dim**-0.5)

    @property
    def widths(self) -> tuple[int, int, int]:
        """Return the columns of queries, keys and values."""
        keys = self.kv_heads * self.key_dim
        return self.group * keys, keys, self.kv_heads * self.value_dim

    @property
    def width(self) -> int:
        """Return the columns of the result."""
        return self.kv_heads * self.group * self.value_dim


def attend(
    heads: Heads, q: Floats, k: Floats, v: Floats, near: tuple[int, int] = (-1, -1)
) -> Doubles:
    """Return attention of every row of q to rows of k and v within ``near``, in float64; -1: all."""

    def split(x: Floats) -> Doubles:
        """[rows, kv_heads, ...]"""
        return x.reshape(len(x), heads.kv_heads, -1).astype(np.float64)

    queries = split(q).reshape(len(q), heads.kv_heads, heads.group, -1)
    scores = np.einsum("qhgd,khd->hgqk", queries, split(k), optimize=True) * heads.scale
    ahead = np.arange(len(k))[None] - np.arange(len(q))[:, None]
    before, after = (len(q) + len(k) if n < 0 else n for n in near)
    scores = np.where((ahead < -before) | (ahead > after), -np.inf, scores)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    mixed: Doubles = np.einsum("hgqk,khd->qhgd", weights, split(v), optimize=True)
    return mixed.reshape(len(q), -1)


def random_window(heads: Heads, rows: int, rng: np.random.Generator) -> Floats:
    """Return rows of which some are far larger or smaller than the others, and some all zeros."""
    x = rng.standard_normal((rows, sum(heads.widths)), dtype=np.float32)
    size = rng.choice([1.0, 1.0, 1.0, 4.0, 1e-3, 0.0], (rows, 1))
    window: Floats = (x * size).astype(np.float32)
    return window
