"""What a request changes about its logits before a token is drawn of them (``ops/draws.py``)."""

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from galley.engine.rules import TokenRules
from galley.ops import draws
from galley.ops.rows import Row, logsumexp, top_k
from galley.types import SamplingParams, TokenLogprob


def how_to_draw(params: SamplingParams) -> bytes:
    """For :class:`galley.ops.draws.Draws`, from resolved parameters."""
    assert params.seed is not None
    assert params.temperature is not None
    return draws.how(
        seed=params.seed,
        temperature=params.temperature,
        top_k=params.top_k or 0,
        top_p=1.0 if params.top_p is None else params.top_p,
        min_p=params.min_p or 0.0,
    )


class Adjuster:
    """One request's penalties, bias and rules. Keeps counts of what was seen for the penalties."""

    def __init__(
        self,
        params: SamplingParams,
        prompt: Sequence[int],
        output: Sequence[int],
        stop_ids: Iterable[int],
    ) -> None:
        """``stop_ids`` are held off until ``min_tokens``; ``output`` is what was already generated."""
        self._params = params
        self._stop_ids = np.array(sorted(set(stop_ids)), dtype=np.int64)
        self._bias_ids = np.array(list(params.logit_bias), dtype=np.int64)
        self._bias = np.array(list(params.logit_bias.values()), dtype=np.float64)
        self._output = Counter(output)
        self._generated = len(output)
        self._penalised_output = bool(params.presence_penalty or params.frequency_penalty)
        self._rules = TokenRules.of(params, output)
        self._seen = None
        if params.repetition_penalty not in (None, 1.0):
            self._seen = np.unique(np.array([*prompt, *output], dtype=np.int64))

    @classmethod
    def of(
        cls,
        params: SamplingParams,
        prompt: Sequence[int],
        output: Sequence[int],
        stop_ids: Iterable[int],
    ) -> "Adjuster | None":
        """None if the request draws from the logits as they are. Arguments as of the constructor."""
        adjuster = cls(params, prompt, output, stop_ids)
        return adjuster if adjuster._changes_anything else None

    @property
    def _changes_anything(self) -> bool:
        p = self._params
        return bool(
            p.logit_bias
            or p.min_tokens > self._generated
            or self._penalised_output
            or self._seen is not None
            or self._rules is not None
        )

    def apply(self, row: Row) -> None:
        """Change the logits [vocab] of the next token."""
        p = self._params
        if self._seen is not None and p.repetition_penalty is not None:
            seen = row[self._seen].astype(np.float64)
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
        if self._rules is not None:
            self._rules.apply(row)

    def accept(self, token: int) -> None:
        """The token became part of the output."""
        self._generated += 1
        if self._rules:
            self._rules.accept(token)
        if self._penalised_output:
            self._output[token] += 1
        if self._seen is not None:
            self._seen = np.union1d(self._seen, [token])


def token_logprob(logits: Row, token: int, top: int) -> TokenLogprob:
    """Log-softmax of ``logits`` [vocab] at ``token``, and the ``top`` best alternatives."""
    norm = logsumexp(logits)
    ids = top_k(logits, top) if top else ()
    return TokenLogprob(
        token, float(logits[token]) - norm, tuple((int(i), float(logits[i]) - norm) for i in ids)
    )
