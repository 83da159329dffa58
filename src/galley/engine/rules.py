"""Which tokens a request may choose: suppression lists and Whisper's timestamp rules."""

import copy
import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from galley.audio import TimestampRules
from galley.ops.rows import Ids, Row, logsumexp
from galley.types import SamplingParams

_NEVER: Final = -math.inf


class TokenRules:
    """One request's. Knows what was generated so far."""

    def __init__(self, params: SamplingParams, output: Sequence[int]) -> None:
        """``output`` is what was already generated."""
        self._suppressed = _ids(params.suppress_tokens)
        self._begin_suppressed = _ids(params.begin_suppress_tokens)
        self._allowed = _ids(params.allowed_tokens)
        self._timestamps = None
        if params.timestamps is not None:
            self._timestamps = _Timestamps(params.timestamps, output)
        self._at_begin = not output

    @classmethod
    def of(cls, params: SamplingParams, output: Sequence[int]) -> "TokenRules | None":
        """None if the request may choose any token."""
        lists = (params.suppress_tokens, params.begin_suppress_tokens, params.allowed_tokens)
        return cls(params, output) if any(lists) or params.timestamps else None

    def __copy__(self) -> "TokenRules":
        """One that goes its own way from here."""
        twin = object.__new__(TokenRules)
        twin.__dict__.update(self.__dict__)
        twin._timestamps = copy.copy(self._timestamps)
        return twin

    def apply(self, row: Row) -> None:
        """Set the logits [vocab] of what may not come next to minus infinity."""
        if len(self._allowed):
            kept = row[self._allowed]
            row.fill(_NEVER)
            row[self._allowed] = kept
        if self._at_begin:
            row[self._begin_suppressed] = _NEVER
        row[self._suppressed] = _NEVER
        if self._timestamps:
            self._timestamps.apply(row)

    def accept(self, token: int) -> None:
        """The token became part of the output."""
        self._at_begin = False
        if self._timestamps:
            self._timestamps.accept(token)


class _Timestamps:
    """Where the output stands: the last two tokens, and which timestamps are past."""

    def __init__(self, rules: TimestampRules, output: Sequence[int]) -> None:
        self._rules = rules
        self._count = 0
        self._previous = self._last = False
        """Whether the last token but one, and the last one, are timestamps."""
        self._latest = rules.begin - 1
        for token in output:
            self.accept(token)

    def accept(self, token: int) -> None:
        # A lone first timestamp counts as the second of a pair.
        self._previous = self._last or not self._count
        self._last = token >= self._rules.begin
        self._count += 1
        if self._last:
            self._latest = token

    def apply(self, row: Row) -> None:
        begin = self._rules.begin
        row[begin - 1] = _NEVER
        opened = self._last and not self._previous
        if opened:
            row[: self._rules.text_end] = _NEVER
        elif self._last:
            row[begin:] = _NEVER
        # The second of a pair may repeat the first; no later one may.
        row[begin : self._latest + (not opened)] = _NEVER
        if not self._count:
            row[:begin] = _NEVER
            if self._rules.max_initial is not None:
                row[begin + self._rules.max_initial + 1 :] = _NEVER
        if logsumexp(row[begin:]) > row[:begin].max():
            row[:begin] = _NEVER


def _ids(tokens: Sequence[int]) -> Ids:
    return np.array(sorted(set(tokens)), dtype=np.int64)
