"""Who gets how many tokens in the next step. Knows no tensors and no block ids.

Order is a number fixed when a request arrives: ``arrival step + priority * priority_steps``, then order
of arrival. So an urgent request overtakes those that came up to ``priority_steps`` steps a level before
it, and nothing waits for ever: whatever arrives late enough stands behind it. Admission takes the first
in order or nobody; when blocks run out the last in order is preempted, so the first always advances.
"""

import heapq
from bisect import insort
from collections.abc import Callable
from collections.abc import Sequence as Tokens
from typing import TypeAlias

import msgspec

from galley.engine.encoder_cache import EncoderCache, EncoderClaim
from galley.engine.kv import KVCache
from galley.engine.sequence import Sequence

Proposer: TypeAlias = Callable[[Sequence], Tokens[int]]
"""Guesses the tokens that come next in a sequence which has caught up; empty if it has no idea."""


class Work(msgspec.Struct, frozen=True, gc=False):
    """``sequence`` computes its next ``count`` tokens in this step: known ones, then ``guesses``.

    Attributes:
        completes: all known tokens are computed after it, so that new ones can be sampled.
        encodes: its encoder input is encoded before.
        guesses: tokens that may follow the known ones; those that turn out wrong are taken back.
    """

    sequence: Sequence
    count: int
    completes: bool
    encodes: bool = False
    guesses: Tokens[int] = ()


class Scheduler:
    """Owns the waiting and the running sequences.

    Attributes:
        running: sequences that hold blocks, in order.
        preemptions: so far.
        proposer: guesses tokens for sequences that have caught up; None guesses nothing.
    """

    def __init__(
        self,
        kv: KVCache,
        encoder_cache: EncoderCache,
        *,
        max_batch_tokens: int,
        max_running: int,
        proposer: Proposer | None = None,
    ) -> None:
        assert max_running <= max_batch_tokens
        self._kv = kv
        self._encoder_cache = encoder_cache
        self._max_batch_tokens = max_batch_tokens
        self._max_running = max_running
        self.proposer = proposer
        self._waiting: list[Sequence] = []
        self._arrivals = 0
        self.running: list[Sequence] = []
        self.preemptions = 0

    @property
    def waiting(self) -> int:
        """Sequences that hold no blocks."""
        return len(self._waiting)

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence."""
        self._arrivals += 1
        sequence.number = self._arrivals
        heapq.heappush(self._waiting, sequence)

    def remove(self, sequence: Sequence) -> None:
        """Forget a finished or aborted sequence, wherever it is, and free its blocks."""
        if sequence in self.running:
            self.running.remove(sequence)
            self._close(sequence)
        else:
            self._waiting = [other for other in self._waiting if other is not sequence]
            heapq.heapify(self._waiting)
        text_keys = self._kv.forget(sequence.id)
        if sequence.features is not None:
            self._encoder_cache.forget(sequence.features, text_keys)

    def schedule(self) -> list[Work]:
        """The next step's work, within the token budget; allocates the blocks it needs.

        Sequences that decode come first, so a long prompt never holds them up; prompts share what is
        left, and newcomers what is left of that. The rows of a newcomer's encoder input count as tokens.
        """
        preempted = self.preemptions
        plan: list[Work] = []
        budget = self._max_batch_tokens
        for sequence in sorted(self.running, key=Sequence.is_behind):
            if self.preemptions > preempted and sequence not in self.running:
                continue  # the victim of an earlier turn of this loop
            remaining = len(sequence.tokens) - sequence.computed
            count = remaining if remaining < budget else budget
            end = sequence.computed + count
            if not count or not (end <= sequence.settled or self._make_room(sequence, end)):
                continue
            guesses: Tokens[int] = ()
            if self.proposer is not None and count == remaining:
                guesses = self._guess(self.proposer, sequence, budget - count)
            count += len(guesses)
            plan.append(Work(sequence, count, end == len(sequence.tokens), guesses=guesses))
            budget -= min(budget, count * sequence.task.width)
        if self.preemptions == preempted:
            self._admit(plan, budget)
        return plan

    def _guess(self, proposer: Proposer, sequence: Sequence, most: int) -> Tokens[int]:
        """What may follow, if there is room for it: nobody is preempted for a guess."""
        most = min(most, sequence.task.guessable(sequence))
        guesses = proposer(sequence)[:most] if most > 0 else ()
        end = len(sequence.tokens) + len(guesses)
        return guesses if guesses and self._kv.grow(sequence.id, end) else ()

    def _make_room(self, sequence: Sequence, end: int) -> bool:
        """Grow to ``end`` tokens, preempting the last in order as often as it takes; False if that is
        ``sequence``.

        Only decoding grows, and decoding sequences take their turns in order: a victim's turn is still
        to come, so nothing that is planned is ever taken back.
        """
        self._kv.slide(sequence.id, sequence.computed)
        while not self._kv.grow(sequence.id, end):
            victim = self.running[-1]
            self._preempt(victim)
            if victim is sequence:
                return False
        self._settle(sequence, end)
        return True

    def _settle(self, sequence: Sequence, end: int) -> None:
        """Share the blocks that this step fills up to ``end`` with known tokens.

        An executor writes all of a step's keys and values before it reads any, so a newcomer may share
        blocks that this very step computes.
        """
        if sequence.task.shares(sequence):
            self._kv.register(sequence.id, sequence.tokens, min(end, len(sequence.tokens)))
        if sequence.task.seats == 1:
            sequence.settled = self._kv.settled(sequence.id)
        sequence.tables = self._kv.tables(sequence.id)[0]

    def _close(self, sequence: Sequence) -> None:
        """Give up all blocks; the encoder output, which costs most to make, is the last to be evicted."""
        self._kv.close(sequence.id)
        if sequence.features is not None:
            self._encoder_cache.close(sequence.id)

    def _preempt(self, victim: Sequence) -> None:
        self.running.remove(victim)
        self._close(victim)
        victim.restart()
        victim.preemptions += 1
        self.preemptions += 1
        heapq.heappush(self._waiting, victim)

    def _admit(self, plan: list[Work], budget: int) -> None:
        encodes = False
        while self._waiting and budget and self._has_seat(self._waiting[0]):
            sequence = self._waiting[0]
            features, encoded = sequence.features, None
            if features is not None:
                encoded = self._encoder_cache.claim(features)
            rows = features.rows if features and encoded and encoded.fresh else 0
            # An encoder input is encoded as a whole, so the step's first one may exceed the budget.
            exceeds = rows >= budget
            if exceeds and encodes:
                return
            if not self._open(sequence, encoded):
                return
            heapq.heappop(self._waiting)
            insort(self.running, sequence)
            count = min(sequence.remaining, budget if exceeds else budget - rows)
            self._settle(sequence, sequence.computed + count)
            plan.append(Work(sequence, count, count == sequence.remaining, rows > 0))
            budget = 0 if exceeds else budget - rows - count
            encodes |= rows > 0

    def _open(self, sequence: Sequence, encoded: EncoderClaim | None) -> bool:
        """Take blocks for all that is known: a prompt, once begun, is not stopped halfway for memory."""
        reusable = sequence.task.reusable(sequence)
        claim = self._kv.claim(sequence.id, sequence.tokens, root=sequence.root, reusable=reusable)
        fresh, shared = sum(claim.fresh), claim.shared
        if encoded is not None:
            fresh, shared = fresh + encoded.fresh, [*shared, *encoded.blocks]
        if not self._kv.pool.reserve(fresh, shared):
            return False
        if encoded is not None:
            self._encoder_cache.open(sequence.id, encoded)
        self._kv.open(sequence.id, claim)
        if reusable:
            self._kv.count_lookup(len(sequence.tokens), claim.tokens)
        sequence.computed = claim.tokens
        return True

    def _has_seat(self, sequence: Sequence) -> bool:
        """Each hypothesis of a beam search takes one; the only sequence has as many as it needs."""
        taken = sum(other.task.seats for other in self.running)
        return not taken or taken + sequence.task.seats <= self._max_running
