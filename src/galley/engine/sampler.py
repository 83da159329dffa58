"""From logits to a token. Composed once per request; greedy returns early.

Noise is a counter-based function of (seed, position): Philox-4x64 (Salmon et al., SC 2011) keyed by the
seed, with the token's absolute position as its counter. So the same seed gives the same text whatever
the batch, the chunking, the cache or a restart did.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from galley.ops.executor import Logits
from galley.types import SamplingParams, TokenLogprob

Row = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) with 53 random bits."""
    philox = np.random.Philox(key=seed & (2**64 - 1), counter=position)
    return float(philox.random_raw() >> 11) * 2.0**-53


class TokenSampler:
    """One request's way of choosing. Keeps counts of what was seen for the penalties."""

    def __init__(
        self,
        params: SamplingParams,
        prompt: Sequence[int],
        output: Sequence[int],
        stop_ids: Iterable[int],
    ) -> None:
        """``stop_ids`` are held off until ``min_tokens``; ``output`` is what was already generated."""
        assert params.seed is not None
        self._params = params
        self._seed = params.seed
        self._stop_ids = np.array(sorted(set(stop_ids)), dtype=np.int64)
        self._bias_ids = np.array(list(params.logit_bias), dtype=np.int64)
        self._bias = np.array(list(params.logit_bias.values()), dtype=np.float64)
        self._output = Counter(output)
        self._generated = len(output)
        self._penalised_output = bool(params.presence_penalty or params.frequency_penalty)
        self._seen = None
        if params.repetition_penalty != 1.0:
            self._seen = np.unique(np.array([*prompt, *output], dtype=np.int64))

    @property
    def is_pure_argmax(self) -> bool:
        """No logit needs changing before the greatest is taken, now."""
        p = self._params
        untouched = not (p.logit_bias or self._penalised_output or self._seen is not None)
        return p.temperature == 0.0 and untouched and self._generated >= p.min_tokens

    def __call__(self, logits: Logits, position: int) -> int | None:
        """The token at ``position`` given its logits [vocab]; None if they leave nothing to choose."""
        if self.is_pure_argmax:
            token = int(np.argmax(logits))
            return token if np.isfinite(logits[token]) else None
        row = self._adjust(logits.astype(np.float64))
        # NaN anywhere is the maximum; minus infinity is it only if every token is excluded.
        if not np.isfinite(row.max()):
            return None
        if self._params.temperature == 0.0:
            return int(np.argmax(row))
        ids, probabilities = candidates(row, self._params)
        cumulative = np.cumsum(probabilities)
        drawn = uniform(self._seed, position) * cumulative[-1]
        index = min(int(np.searchsorted(cumulative, drawn, side="right")), len(cumulative) - 1)
        return int(ids[index])

    def accept(self, token: int) -> None:
        """The token became part of the output."""
        self._generated += 1
        if self._penalised_output:
            self._output[token] += 1
        if self._seen is not None:
            self._seen = np.union1d(self._seen, [token])

    def _adjust(self, row: Row) -> Row:
        p = self._params
        if self._seen is not None and p.repetition_penalty is not None:
            seen = row[self._seen]
            row[self._seen] = np.where(
                seen > 0, seen / p.repetition_penalty, seen * p.repetition_penalty
            )
        if self._penalised_output and self._output:
            ids = np.fromiter(self._output.keys(), dtype=np.int64)
            counts = np.fromiter(self._output.values(), dtype=np.float64)
            row[ids] -= p.presence_penalty + p.frequency_penalty * counts
        row[self._bias_ids] += self._bias
        if self._generated < p.min_tokens:
            row[self._stop_ids] = -np.inf
        return row


def candidates(row: Row, params: SamplingParams) -> tuple[Ids, Row]:
    """(token ids, unnormalised probabilities) that temperature, min_p, top_k and top_p leave.

    Applied in that order, as transformers does apart from min_p, which here sees the whole
    distribution. Without top_k and top_p the ids are in vocabulary order, else best first.

    Args:
        row: [vocab], finite maximum.
    """
    assert params.temperature
    with np.errstate(over="ignore"):
        scaled = (row - row.max()) / params.temperature
    ids = np.arange(len(row))
    if params.min_p:
        ids = ids[scaled >= np.log(params.min_p)]
    top_k = params.top_k if params.top_k and 0 < params.top_k < len(ids) else 0
    top_p = params.top_p if params.top_p is not None and params.top_p < 1.0 else 0.0
    if top_k:
        ids = _best(scaled, ids, top_k)
    p = np.exp(scaled[ids])
    if top_p:
        return _nucleus(scaled, ids, top_p * p.sum())
    return ids, p


def _best(scaled: Row, ids: Ids, count: int) -> Ids:
    """The ``count`` best of ``ids``, best first, equals by id. Sorts no more than it must."""
    if count < len(ids):
        ids = ids[np.argpartition(-scaled[ids], count - 1)[:count]]
    return ids[np.lexsort((ids, -scaled[ids]))]


def _nucleus(scaled: Row, ids: Ids, mass: float) -> tuple[Ids, Row]:
    """The fewest best whose probabilities reach ``mass``; the token that crosses it is kept."""
    count = 64
    while True:
        best = _best(scaled, ids, count)
        p = np.exp(scaled[best])
        keep = int(np.searchsorted(np.cumsum(p), mass, side="left")) + 1
        if keep <= len(best) or len(best) == len(ids):
            return best[:keep], p[:keep]
        count *= 16


def token_logprob(logits: Logits, token: int, top: int) -> TokenLogprob:
    """Log-softmax of ``logits`` [vocab] at ``token``, and the ``top`` best alternatives."""
    row = logits.astype(np.float64)
    best = row.max()
    norm = best + np.log(np.exp(row - best).sum())
    if not top:
        return TokenLogprob(token, float(row[token] - norm))
    ids = _best(row, np.arange(len(row)), top)
    return TokenLogprob(
        token, float(row[token] - norm), tuple((int(i), float(row[i] - norm)) for i in ids)
    )
