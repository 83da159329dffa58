"""From logits to a token. Composed once per request; greedy returns early.

Noise is a counter-based function of (seed, position): Philox-4x64 (Salmon et al., SC 2011) keyed by the
seed, with the token's absolute position as its counter. So the same seed gives the same text whatever
the batch, the chunking, the cache or a restart did.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from galley.ops.executor import Logits
from galley.types import SamplingParams, TokenLogprob

Row = npt.NDArray[np.float64]


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
        self._seen = set(prompt) | set(output) if params.repetition_penalty != 1.0 else None

    @property
    def is_pure_argmax(self) -> bool:
        """No logit needs changing before the greatest is taken, now."""
        p = self._params
        untouched = not (p.logit_bias or self._penalised_output or self._seen is not None)
        return p.temperature == 0.0 and untouched and self._generated >= p.min_tokens

    def __call__(self, logits: Logits, position: int) -> int:
        """The token at ``position`` given its logits [vocab]."""
        if self.is_pure_argmax:
            return int(np.argmax(logits))
        row = self._adjust(logits.astype(np.float64))
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
            self._seen.add(token)

    def _adjust(self, row: Row) -> Row:
        p = self._params
        if self._seen is not None and p.repetition_penalty is not None:
            ids = np.fromiter(self._seen, dtype=np.int64)
            seen = row[ids]
            row[ids] = np.where(seen > 0, seen / p.repetition_penalty, seen * p.repetition_penalty)
        if self._penalised_output and self._output:
            ids = np.fromiter(self._output.keys(), dtype=np.int64)
            counts = np.fromiter(self._output.values(), dtype=np.float64)
            row[ids] -= p.presence_penalty + p.frequency_penalty * counts
        row[self._bias_ids] += self._bias
        if self._generated < p.min_tokens:
            row[self._stop_ids] = -np.inf
        return row


def candidates(row: Row, params: SamplingParams) -> tuple[npt.NDArray[np.int64], Row]:
    """(token ids, unnormalised probabilities) that temperature, min_p, top_k and top_p leave.

    Applied in that order, as transformers does apart from min_p, which here sees the whole
    distribution. Without top_k and top_p the ids are in vocabulary order, else best first.
    """
    assert params.temperature
    row = row / params.temperature
    p = np.exp(row - row.max())
    ids = np.arange(len(p))
    if params.min_p:
        ids = ids[p >= params.min_p]
    top_k = params.top_k if params.top_k and 0 < params.top_k < len(ids) else 0
    top_p = params.top_p if params.top_p is not None and params.top_p < 1.0 else 0.0
    if not (top_k or top_p):
        return ids, p[ids]
    ids = ids[np.lexsort((ids, -p[ids]))]
    if top_k:
        ids = ids[:top_k]
    if top_p:
        cumulative = np.cumsum(p[ids])
        # The token that crosses the mass is kept.
        keep = int(np.searchsorted(cumulative, top_p * cumulative[-1], side="left")) + 1
        ids = ids[:keep]
    return ids, p[ids]


def token_logprob(logits: Logits, token: int, top: int) -> TokenLogprob:
    """Log-softmax of ``logits`` [vocab] at ``token``, and the ``top`` best alternatives."""
    row = logits.astype(np.float64)
    best = row.max()
    norm = best + np.log(np.exp(row - best).sum())
    if not top:
        return TokenLogprob(token, float(row[token] - norm))
    ids: Any = np.argpartition(-row, min(top, len(row) - 1))[:top]
    ids = ids[np.lexsort((ids, -row[ids]))]
    return TokenLogprob(
        token, float(row[token] - norm), tuple((int(i), float(row[i] - norm)) for i in ids)
    )
