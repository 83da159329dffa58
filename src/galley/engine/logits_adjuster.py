"""A request's changes to its logits before a token is sampled, which follow its output."""

import copy
from collections import Counter, deque
from collections.abc import Iterable

import numpy as np

from galley.engine.token_rules import TokenRules
from galley.ops.sampling import NO_IDS, NO_VALUES, LogitsAdjustment
from galley.types import Written


class LogitsAdjuster:
    """One request's penalties, bias, minimum length and rules, and the token counts they depend on."""

    def __init__(self, payload: Written, stop_ids: Iterable[int]) -> None:
        """Create the adjuster's state after the payload's output, which is already generated.

        Args:
            payload: of the request.
            stop_ids: tokens that are excluded until ``min_tokens`` tokens are generated.
        """
        params, prompt, output = payload.sampling, payload.prompt, payload.output
        self._params = params
        self._stop_ids = np.array(sorted(set(stop_ids)), dtype=np.int64)
        self._bias_ids = np.array(list(params.logit_bias), dtype=np.int64)
        self._bias = np.array(list(params.logit_bias.values()), dtype=np.float64)
        self._output = Counter(output)
        self._generated = len(output)
        self._penalizes_output = bool(params.presence_penalty or params.frequency_penalty)
        self._rules = TokenRules.of(payload.rules, output, params.thinking)
        self._seen = NO_IDS
        self._penalizes_seen = params.repetition_penalty not in (None, 1.0)
        if self._penalizes_seen:
            self._seen = np.unique(np.array([*prompt, *output], dtype=np.int64))
        self._window: deque[int] | None = None
        """The tokens that penalties apply to, if not all; the last ``_generated`` are the output's."""
        if params.penalty_window >= 0 and (self._penalizes_output or self._penalizes_seen):
            self._window = deque([*prompt, *output], maxlen=params.penalty_window)
            self._look_back()

    @classmethod
    def of(cls, payload: Written, stop_ids: Iterable[int]) -> "LogitsAdjuster | None":
        """Return the adjuster; None if the request samples from unchanged logits.

        Args:
            payload, stop_ids: as for the constructor.
        """
        adjuster = cls(payload, stop_ids)
        return adjuster if adjuster._changes_anything else None

    @property
    def _changes_anything(self) -> bool:
        p = self._params
        return bool(
            p.logit_bias
            or p.min_tokens > self._generated
            or self._penalizes_output
            or self._penalizes_seen
            or self._rules is not None
        )

    def copy(self) -> "LogitsAdjuster":
        """Return an adjuster that follows another continuation from here on."""
        twin = copy.copy(self)
        twin._output = self._output.copy()
        twin._window = copy.copy(self._window)
        twin._rules = copy.copy(self._rules)
        return twin

    @property
    def forced(self) -> int | None:
        """See :attr:`TokenRules.forced`."""
        return self._rules.forced if self._rules else None

    def adjustment(self) -> LogitsAdjustment:
        """Return the changes to the logits of the next token."""
        p = self._params
        base = self._rules.adjustment() if self._rules else LogitsAdjustment()
        ids, penalties = NO_IDS, NO_VALUES
        if self._penalizes_output and self._output:
            ids = np.fromiter(self._output.keys(), dtype=np.int64)
            counts = np.fromiter(self._output.values(), dtype=np.float64)
            penalties = p.presence_penalty + p.frequency_penalty * counts
        forbidden = base.forbidden
        if self._generated < p.min_tokens:
            forbidden = (self._stop_ids, *forbidden)
        return base._replace(
            repeated=self._seen,
            repetition_penalty=p.repetition_penalty or 1.0,
            penalized=ids,
            penalties=penalties,
            biased=self._bias_ids,
            biases=self._bias,
            forbidden=forbidden,
        )

    def accept(self, token: int) -> None:
        """Record a token that became part of the output."""
        self._generated += 1
        if self._rules:
            self._rules.accept(token)
        if self._window is not None:
            self._window.append(token)
            self._look_back()
            return
        if self._penalizes_output:
            self._output[token] += 1
        if self._penalizes_seen:
            self._seen = np.union1d(self._seen, [token])

    def _look_back(self) -> None:
        """Recount the tokens that penalties apply to, because one has left the window."""
        assert self._window is not None
        tokens = list(self._window)
        if self._penalizes_seen:
            self._seen = np.unique(np.array(tokens, dtype=np.int64))
        if self._penalizes_output:
            self._output = Counter(tokens[max(0, len(tokens) - self._generated) :])
