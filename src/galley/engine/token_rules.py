"""Which tokens a request may choose next: suppression lists, Whisper's timestamp grammar, thinking."""

import copy
from collections.abc import Sequence

import numpy as np

from galley.ops.rows import Ids
from galley.ops.sampling import NO_IDS, LogitsAdjustment
from galley.types import MAX_COUNT, ThinkingBudget
from galley.types.audio import SpeechRules, TimestampRules

Ranges = tuple[tuple[int, int], ...]


class TokenRules:
    """One request's rules, and the state of its output that they depend on."""

    def __init__(
        self, rules: SpeechRules, output: Sequence[int], thinking: ThinkingBudget | None = None
    ) -> None:
        """Create the rules' state after ``output``, the tokens that are already generated."""
        self._suppressed = _ids(rules.suppress_tokens)
        self._begin_suppressed = _ids(rules.begin_suppress_tokens)
        self._allowed = _ids(rules.allowed_tokens)
        self._timestamps = None
        if rules.timestamps is not None:
            self._timestamps = _Timestamps(rules.timestamps, output)
        self._thinking = None
        if thinking is not None:
            self._thinking = _Thinking(thinking, output)
        self._at_begin = not output

    @classmethod
    def of(
        cls, rules: SpeechRules, output: Sequence[int], thinking: ThinkingBudget | None = None
    ) -> "TokenRules | None":
        """Return the rules; None if the request may choose any token."""
        lists = (rules.suppress_tokens, rules.begin_suppress_tokens, rules.allowed_tokens)
        needed = any(lists) or rules.timestamps or thinking
        return cls(rules, output, thinking) if needed else None

    def __copy__(self) -> "TokenRules":
        """Return a copy that follows another continuation from here on."""
        twin = object.__new__(TokenRules)
        twin.__dict__.update(self.__dict__)
        twin._timestamps = copy.copy(self._timestamps)
        twin._thinking = copy.copy(self._thinking)
        return twin

    def adjustment(self) -> LogitsAdjustment:
        """Return the changes that the rules make to the logits of the next token."""
        begin = self._begin_suppressed if self._at_begin else NO_IDS
        return LogitsAdjustment(
            allowed=self._allowed if len(self._allowed) else None,
            forbidden=tuple(ids for ids in (begin, self._suppressed) if len(ids)),
            forbidden_ranges=self._timestamps.forbidden() if self._timestamps else (),
            timestamp_begin=self._timestamps.begin if self._timestamps else None,
        )

    @property
    def forced(self) -> int | None:
        """The only token that may come next because thinking has to end; a grammar may delay it."""
        return self._thinking.forced if self._thinking else None

    def accept(self, token: int) -> None:
        """Record a token that became part of the output."""
        self._at_begin = False
        if self._timestamps:
            self._timestamps.accept(token)
        if self._thinking:
            self._thinking.accept(token)


class _Thinking:
    """Counts the thinking tokens of the output and tracks whether it is inside a thinking block."""

    def __init__(self, budget: ThinkingBudget, output: Sequence[int]) -> None:
        self._budget = budget
        self._inside = budget.begun
        self._used = 0
        self._last: tuple[int, ...] = ()
        for token in output:
            self.accept(token)

    @property
    def forced(self) -> int | None:
        spent = self._inside and self._used >= self._budget.max_tokens
        return self._budget.end if spent else None

    def accept(self, token: int) -> None:
        begin = self._budget.begin
        if self._inside:
            self._inside = token != self._budget.end
            self._used += self._inside
            return
        self._last = (*self._last, token)[-len(begin) :]
        self._inside = self._last == begin


class _Timestamps:
    """The state of the output: its last two tokens, and which timestamps are past."""

    def __init__(self, rules: TimestampRules, output: Sequence[int]) -> None:
        self._rules = rules
        self._count = 0
        self._previous = self._last = False
        """Whether the second-to-last token, and the last one, are timestamps."""
        self._latest = rules.begin - 1
        for token in output:
            self.accept(token)

    @property
    def begin(self) -> int:
        """The id of the first timestamp."""
        return self._rules.begin

    def accept(self, token: int) -> None:
        # A single first timestamp counts as the second of a pair.
        self._previous = self._last or not self._count
        self._last = token >= self._rules.begin
        self._count += 1
        if self._last:
            self._latest = token

    def forbidden(self) -> Ranges:
        """Return ranges of ids that may not come next; an end beyond the vocabulary means its end."""
        begin = self._rules.begin
        ranges = [(begin - 1, begin)]
        opened = self._last and not self._previous
        if opened:
            ranges.append((0, self._rules.text_end))
        elif self._last:
            ranges.append((begin, MAX_COUNT))
        # The second timestamp of a pair may repeat the first, but no later one may.
        ranges.append((begin, self._latest + (not opened)))
        if not self._count:
            ranges.append((0, begin))
            if self._rules.max_initial is not None:
                ranges.append((begin + self._rules.max_initial + 1, MAX_COUNT))
        return tuple(ranges)


def _ids(tokens: Sequence[int]) -> Ids:
    return np.array(sorted(set(tokens)), dtype=np.int64)
