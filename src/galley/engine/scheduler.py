"""Who gets how many tokens in the next step. Knows no tensors and no block ids.

Order is a number fixed when a request arrives: ``arrival step + priority * priority_steps``, then order
of arrival. So an urgent request overtakes those that came up to ``priority_steps`` steps a level before
it, and nothing waits for ever: whatever arrives late enough stands behind it. Admission takes the first
in order or nobody; when blocks run out the last in order is preempted, so the first always advances.
"""

import heapq
from bisect import insort

import msgspec

from galley.engine.kv import KVCache
from galley.engine.sequence import Sequence


class Work(msgspec.Struct, frozen=True, gc=False):
    """``sequence`` computes its next ``count`` known tokens in this step.

    Attributes:
        completes: all known tokens are computed after it, so that a new one can be sampled.
        wanted: of how many of its rows, the last ones, logits are wanted. A row for each hypothesis of a
            beam search.
        encodes: its window goes through the encoder before.
    """

    sequence: Sequence
    count: int
    completes: bool
    wanted: int
    encodes: bool


class Scheduler:
    """Owns the waiting and the running sequences.

    Attributes:
        running: sequences that hold blocks, in order.
        preemptions: so far.
    """

    def __init__(self, kv: KVCache, *, max_batch_tokens: int, max_running: int) -> None:
        assert max_running <= max_batch_tokens
        self._kv = kv
        self._max_batch_tokens = max_batch_tokens
        self._max_running = max_running
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
            self._kv.close(sequence.id)
        else:
            self._waiting = [other for other in self._waiting if other is not sequence]
            heapq.heapify(self._waiting)
        self._kv.forget(sequence.id)

    def schedule(self) -> list[Work]:
        """The next step's work, within the token budget; allocates the blocks it needs.

        Sequences that decode come first, so a long prompt never holds them up; prompts share what is
        left, and newcomers what is left of that. The rows of a newcomer's window count as tokens.
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
            if count and (end <= sequence.settled or self._make_room(sequence, end)):
                plan.append(self._work(sequence, count, count == remaining))
                budget -= count if sequence.plain else min(budget, count * sequence.width)
        if self.preemptions == preempted:
            self._admit(plan, budget)
        return plan

    def _work(self, sequence: Sequence, count: int, completes: bool, encodes: bool = False) -> Work:
        if sequence.plain:
            return Work(sequence, count, completes, int(completes), encodes)
        wanted = max(completes * sequence.width, sequence.rows_to_score(count))
        if sequence.aligns:
            wanted = 0
        return Work(sequence, count, completes, wanted, encodes)

    def _make_room(self, sequence: Sequence, end: int) -> bool:
        """Grow to ``end`` tokens, preempting the last in order as often as it takes; False if that is
        ``sequence``.

        Only decoding grows, and decoding sequences take their turns in order: a victim's turn is still
        to come, so nothing that is planned is ever taken back.
        """
        while not self._kv.grow(sequence.id, end):
            victim = self.running[-1]
            self._preempt(victim)
            if victim is sequence:
                return False
        self._settle(sequence, end)
        return True

    def _settle(self, sequence: Sequence, end: int) -> None:
        """Share the blocks that this step fills, up to ``end`` tokens.

        An executor writes all of a step's keys and values before it reads any, so a newcomer may share
        blocks that this very step computes.
        """
        if sequence.shares:
            self._kv.commit(sequence.id, sequence.tokens, end)
        if sequence.plain:
            sequence.settled = self._kv.settled(sequence.id)
        sequence.blocks = self._kv.table(sequence.id)

    def _preempt(self, victim: Sequence) -> None:
        self.running.remove(victim)
        self._kv.close(victim.id)
        victim.restart()
        victim.preemptions += 1
        self.preemptions += 1
        heapq.heappush(self._waiting, victim)

    def _admit(self, plan: list[Work], budget: int) -> None:
        encodes = False
        while self._waiting and budget and self._has_seat(self._waiting[0]):
            sequence = self._waiting[0]
            rows = self._rows_to_encode(sequence)
            # A window is encoded as a whole, so the step's first one may exceed the budget.
            exceeds = rows >= budget
            if exceeds and encodes:
                return
            # Room for all that is known: a prompt, once begun, is not stopped halfway for memory.
            computed = self._kv.open(
                sequence.id,
                sequence.tokens,
                salt=sequence.request.cache_salt,
                reusable=sequence.reusable,
                window=sequence.window,
            )
            if computed is None:
                return
            heapq.heappop(self._waiting)
            sequence.computed = computed
            insort(self.running, sequence)
            count = min(sequence.remaining, budget if exceeds else budget - rows)
            self._settle(sequence, computed + count)
            plan.append(self._work(sequence, count, count == sequence.remaining, rows > 0))
            budget = 0 if exceeds else budget - rows - count
            encodes |= rows > 0

    def _has_seat(self, sequence: Sequence) -> bool:
        """Each hypothesis of a beam search takes one; the only sequence has as many as it needs."""
        taken = sum(other.request.sampling.num_beams for other in self.running)
        return not taken or taken + sequence.request.sampling.num_beams <= self._max_running

    def _rows_to_encode(self, sequence: Sequence) -> int:
        window, salt = sequence.window, sequence.request.cache_salt
        if window is None or self._kv.encoded(sequence.id, salt, window):
            return 0
        return window.rows
