"""Draw tokens from logits. This is the specification, in numpy.

``native/runtime/draws.cpp`` does the same faster.

Probabilities are integers. A logit x has the weight ``2 ** ((x - greatest) * scale)`` in units of 2 ** -30,
rounded down, computed by single float32 operations, which every machine rounds alike. Sums of integers are
exact, so the drawn token depends neither on the order of summation nor on the instruction set or threads.

Random numbers are a counter-based function of (seed, position): Philox-4x64 (Salmon et al., SC 2011) keyed
by the seed, with the token's absolute position as its counter. So the same seed gives the same text
regardless of batching, chunking, caching and restarts.
"""

import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from galley.ops.rows import Ids, Row

NO_TOKEN: Final = -1
"""Returned instead of a token if none can be drawn: logits are NaN or infinite, or all are excluded."""

WEIGHT_BITS: Final = 30
"""The greatest logit has the weight ``2 ** WEIGHT_BITS``."""

SAMPLING_RECORD: Final = np.dtype(
    [("seed", "<u8"), ("scale", "<f8"), ("top_k", "<i8"), ("reach", "<f8"), ("top_p", "<f8")]
)
"""A request's sampling parameters as executors use them. ``scale`` is log2(e) / temperature, 0 for greedy;
``top_k`` candidates are kept, 0 keeps all; candidates whose logit is more than ``-reach`` below the
greatest are dropped (min_p); ``top_p`` is the nucleus mass that is kept."""

GREEDY: Final = bytes(SAMPLING_RECORD.itemsize)
"""The record of greedy sampling: the greatest logit is chosen."""
_STEEPEST: Final = 1e30
"""Upper bound of ``scale``, so that ``scale * 0`` is 0."""

_POWER: Final = tuple(
    np.float32(c)
    for c in (
        1.54035297e-4,
        1.33333579e-3,
        9.61812865e-3,
        5.55041097e-2,
        0.240226507,
        0.693147182,
        1.0,
    )
)
"""Coefficients of ``2 ** f`` for f in [-0.5, 0.5]: ``log(2) ** k / k!`` for k from 6 down to 0."""


class Draws(NamedTuple):
    """The draws of one step.

    Attributes:
        rows: rows of the logits.
        positions: absolute positions of the tokens in their sequences.
        records: the sampling records of all draws, concatenated (see :func:`sampling_record`).
    """

    rows: Sequence[int]
    positions: Sequence[int]
    records: bytes


def sampling_record(
    *, seed: int, temperature: float, top_k: int, top_p: float, min_p: float
) -> bytes:
    """Return the record of a request's parameters, explained in :class:`galley.types.SamplingParams`."""
    if not temperature:
        return GREEDY
    scale = np.float32(min(1 / (math.log(2) * temperature), _STEEPEST))
    reach = temperature * math.log(min_p) if min_p else -math.inf
    record = (seed & (2**64 - 1), scale, max(top_k, 0), reach, top_p)
    return np.array(record, dtype=SAMPLING_RECORD).tobytes()


def draw_all(logits: npt.NDArray[np.float32], draws: Draws) -> list[int]:
    """Return a token, or NO_TOKEN, for each draw."""
    records = np.frombuffer(draws.records, dtype=SAMPLING_RECORD)
    return [
        draw(logits[row], record, position)
        for row, record, position in zip(draws.rows, records, draws.positions, strict=True)
    ]


def draw(row: Row, record: Any, position: int) -> int:
    """Draw the token at ``position`` from logits [vocab]; return NO_TOKEN if they allow none."""
    greatest = int(row.argmax())
    if not math.isfinite(row[greatest]):
        return NO_TOKEN
    if not record["scale"]:
        return greatest
    ids, sums = candidates(row, record)
    drawn = noise(int(record["seed"]), position) * int(sums[-1]) >> 64
    return int(ids[sums.searchsorted(drawn, side="right")])


def noise(seed: int, position: int) -> int:
    """Return 64 random bits."""
    return int(np.random.Philox(key=seed, counter=position).random_raw())


def candidates(row: Row, record: Any) -> tuple[Ids, Ids]:
    """Return (ids, running sums of their weights) after min_p, top_k and top_p, applied in that order.

    transformers applies min_p last; here it is applied to the whole distribution. The best id is first,
    and equal logits are in order of id; if only min_p applies, ids are in vocabulary order.
    """
    most, top_p = row.max(), float(record["top_p"])
    top_k = int(record["top_k"]) if record["top_k"] < len(row) else 0
    with np.errstate(over="ignore"):
        bar = np.float32(float(most) + float(record["reach"]))
    # An excluded token (-inf) is never a candidate, however many may stay.
    bar = max(bar, np.finfo(np.float32).min)
    ids = np.argsort(-row, kind="stable")
    ids = ids[row[ids] >= bar]
    if top_k:
        ids = ids[:top_k]
    if top_p == 1.0 and len(ids) != top_k:
        ids.sort()
    sums = weights(row[ids], most, record["scale"]).cumsum()
    if top_p < 1.0:
        # The token that crosses the mass is kept.
        count = int(sums.searchsorted(math.ceil(top_p * float(sums[-1])))) + 1
        ids, sums = ids[:count], sums[:count]
    return ids, sums


def weights(row: Row, most: np.float32, scale: float) -> Ids:
    """Return the integer weights of logits relative to ``most``, the greatest logit."""
    with np.errstate(over="ignore"):
        exponent = np.maximum((row - most) * np.float32(scale), np.float32(-WEIGHT_BITS - 1))
    whole = np.rint(exponent)
    rest = exponent - whole
    power = np.full_like(row, _POWER[0])
    for coefficient in _POWER[1:]:
        power = power * rest + coefficient
    whole_weights: Ids = np.ldexp(power, whole.astype(np.int32) + WEIGHT_BITS).astype(np.int64)
    return whole_weights
