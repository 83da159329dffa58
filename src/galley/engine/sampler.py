"""From logits to a token. Composed once per request; greedy returns early.

Noise is a counter-based function of (seed, position): Philox-4x64 (Salmon et al., SC 2011) keyed by the
seed, with the token's absolute position as its counter. So the same seed gives the same text whatever
the batch, the chunking, the cache or a restart did.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from galley.engine.rules import TokenRules
from galley.ops.executor import Logits
from galley.ops.rows import EXP_BLOCK, Doubles, Ids, Row, best, exp_sums, log_sum, scaled
from galley.types import SamplingParams, TokenLogprob


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) with 53 random bits."""
    philox = np.random.Philox(key=seed & (2**64 - 1), counter=position)
    return float(philox.random_raw() >> 11) * 2.0**-53


class TokenSampler:
    """One request's way of choosing. Keeps counts of what was seen for the penalties.

    Attributes:
        score: log-probability of the last choice among what was left to choose from, at temperature 1;
            only if the request wants ``scores``.
    """

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
        self._rules = TokenRules.of(params, output)
        self.score: float | None = None
        self._seen = None
        if params.repetition_penalty != 1.0:
            self._seen = np.unique(np.array([*prompt, *output], dtype=np.int64))
        self._adjusts = bool(params.logit_bias or self._penalised_output or self._seen is not None)

    def __call__(self, logits: Logits, best: int, position: int) -> int | None:
        """The token at ``position``.

        Args:
            logits: [vocab].
            best: where they are greatest; where they are NaN, if they are anywhere.
            position: of the token in its sequence.

        Returns:
            None if the logits leave nothing to choose.
        """
        params = self._params
        row: Row = logits
        if self._adjusts or self._generated < params.min_tokens:
            row = self._adjust(logits.astype(np.float64))
        if self._rules is not None:
            row = row.copy() if row is logits else row
            self._rules.apply(row)
        if row is not logits:
            best = int(row.argmax())
        token = self._choose(row, best, position)
        if params.scores and token is not None:
            self.score = token_logprob(row, token, 0).logprob
        return token

    def _choose(self, row: Row, best: int, position: int) -> int | None:
        """From what bias, penalties and rules left of the logits."""
        params = self._params
        most = float(row[best])
        # NaN anywhere is the greatest; minus infinity is it only if every token is excluded.
        if not math.isfinite(most):
            return None
        if params.temperature == 0.0:
            return best
        share = uniform(self._seed, position)
        if not truncates(params, len(row)):
            assert params.temperature
            return _draw_from_all(row, most, params.temperature, share)
        ids, p = candidates(row, most, params)
        cumulative = p.cumsum()
        return int(ids[_place(cumulative, share * cumulative[-1])])

    def accept(self, token: int) -> None:
        """The token became part of the output."""
        self._generated += 1
        if self._rules:
            self._rules.accept(token)
        if self._penalised_output:
            self._output[token] += 1
        if self._seen is not None:
            self._seen = np.union1d(self._seen, [token])

    def _adjust(self, row: Doubles) -> Doubles:
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


def truncates(params: SamplingParams, vocab_size: int) -> bool:
    """Whether any token may be left out."""
    return bool(params.min_p or _top_k(params, vocab_size) or _top_p(params))


def candidates(row: Row, most: float, params: SamplingParams) -> tuple[Ids, Doubles]:
    """(token ids, unnormalised probabilities) that temperature, min_p, top_k and top_p leave.

    Applied in that order, as transformers does apart from min_p, which here sees the whole
    distribution. Best first, equals by id; in vocabulary order if min_p alone decided.

    Args:
        row: [vocab].
        most: its maximum, finite.
        params: of which one truncates.
    """
    assert params.temperature
    temperature, top_k, top_p = params.temperature, _top_k(params, len(row)), _top_p(params)

    def log_p(ids: Ids) -> Doubles:
        return scaled(row[ids], most, temperature)

    if params.min_p or top_k:
        floor = math.log(params.min_p) if params.min_p else -math.inf
        ids = _leading(row, top_k or len(row), lambda ids: bool(log_p(ids[-1:])[0] < floor))
        logs = log_p(ids)
        kept = int((logs >= floor).sum())
        ids, p = ids[:kept], np.exp(logs[:kept])
        mass = top_p * float(p.sum())
    else:
        mass = top_p * float(exp_sums(row, most, temperature).sum())
        ids = _leading(row, len(row), lambda ids: bool(np.exp(log_p(ids)).cumsum()[-1] >= mass))
        p = np.exp(log_p(ids))
    if top_p:
        # The token that crosses the mass is kept.
        count = int(p.cumsum().searchsorted(mass, side="left")) + 1
        return ids[:count], p[:count]
    if len(ids) == top_k:
        return ids, p
    order = ids.argsort()
    return ids[order], p[order]


def _leading(row: Row, limit: int, enough: Callable[[Ids], bool]) -> Ids:
    """The best ids, best first: as few as needed, roughly, and at most ``limit``."""
    count = 64
    while True:
        ids = best(row, min(count, limit))
        if len(ids) == limit or enough(ids):
            return ids
        count *= 16


def _draw_from_all(row: Row, most: float, temperature: float, share: float) -> int:
    """A token of the whole vocabulary: first the block it is in, then its place there."""
    blocks = exp_sums(row, most, temperature).cumsum()
    drawn = share * blocks[-1]
    block = _place(blocks, drawn)
    begin = block * EXP_BLOCK
    within = np.exp(scaled(row[begin : begin + EXP_BLOCK], most, temperature)).cumsum()
    return begin + _place(within, drawn - (blocks[block - 1] if block else 0.0))


def _place(cumulative: Doubles, drawn: float) -> int:
    """The first entry above ``drawn``; if rounding leaves none, the last that added anything."""
    index = int(cumulative.searchsorted(drawn, side="right"))
    if index < len(cumulative):
        return index
    return int(cumulative.searchsorted(cumulative[-1], side="left"))


def _top_k(params: SamplingParams, vocab_size: int) -> int:
    """How many tokens may stay; 0: all."""
    return params.top_k if params.top_k and 0 < params.top_k < vocab_size else 0


def _top_p(params: SamplingParams) -> float:
    """The share that must stay; 0: all."""
    return params.top_p if params.top_p is not None and params.top_p < 1.0 else 0.0


def token_logprob(logits: Row, token: int, top: int) -> TokenLogprob:
    """Log-softmax of ``logits`` [vocab] at ``token``, and the ``top`` best alternatives."""
    norm = log_sum(logits)
    ids = best(logits, top) if top else ()
    return TokenLogprob(
        token, float(logits[token]) - norm, tuple((int(i), float(logits[i]) - norm) for i in ids)
    )
