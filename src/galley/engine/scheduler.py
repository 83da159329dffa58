"""Decides how many tokens each sequence computes in the next step. It knows neither tensors nor block ids.

The order is fixed when a request arrives: ``arrival step + priority * priority_steps``, with ties broken
by order of arrival. An urgent request therefore overtakes those that arrived up to ``priority_steps``
steps per level before it, and no request starves: a request that arrives late enough is ordered after it.
Admission takes the first in order or none; when blocks run out, the last in order is preempted, so the
first always advances.

Competing tenants take turns by weight (``fair_share.py``), and the order holds within each tenant. A
tenant whose turn it is and that holds less than its share of seats or blocks gets them from tenants that
hold more.
"""

import heapq
from bisect import insort
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Tokens
from typing import Final, TypeAlias

import msgspec

from galley.engine.batching import BatchGatherer
from galley.engine.encoder_cache import EncoderCache, EncoderClaim
from galley.engine.fair_share import FairShare
from galley.engine.holdings import Holdings, Resource, worst
from galley.engine.kv import KVCache
from galley.engine.kv_tables import Claim
from galley.engine.sequence import Sequence
from galley.types import BLOCK_TOKENS

_NOTHING: Final = EncoderClaim(b"", [], [], 0)
"""Claim on the encoder cache of a request that needs no encoder."""


class Work(msgspec.Struct, frozen=True, gc=False):
    """One sequence's work in a step: its next ``count`` tokens, known ones first, then ``draft_tokens``.

    Attributes:
        completes: whether all known tokens are computed after the step, so that new ones can be sampled.
        encodes: whether the sequence's encoder input is encoded first.
        draft_tokens: draft tokens that follow the known ones; rejected ones are rolled back.
    """

    sequence: Sequence
    count: int
    completes: bool
    encodes: bool = False
    draft_tokens: Tokens[int] = ()


ProposeDrafts: TypeAlias = Callable[[list[Work], int], Iterable[tuple[int, Tokens[int]]]]
"""Takes a plan and the number of draft tokens that fit; yields (index in the plan, draft tokens).

A sequence gets draft tokens only if the step computes all of its known tokens, and at most as many as
its task can verify.
"""


class Scheduler:
    """Owns the waiting and the running sequences.

    Attributes:
        running: sequences that hold blocks, in order.
        preemptions: number of preemptions so far.
        propose_drafts: proposes draft tokens for sequences that have caught up; None disables speculation.

    Args:
        gatherer: holds new sequences back until the running batch is over; None lets them join at any
            step.
    """

    def __init__(
        self,
        kv: KVCache,
        encoder_cache: EncoderCache,
        *,
        max_batch_tokens: int,
        max_running: int,
        priority_steps: int = 1,
        propose_drafts: ProposeDrafts | None = None,
        gatherer: BatchGatherer | None = None,
    ) -> None:
        assert max_running <= max_batch_tokens
        self._kv = kv
        self._encoder_cache = encoder_cache
        self._max_batch_tokens = max_batch_tokens
        self._max_running = max_running
        self.propose_drafts = propose_drafts
        self._gatherer = gatherer
        # A step that only decodes computes up to max_running tokens.
        self._fair = FairShare(priority_steps * max_running)
        capacity = kv.pool.total * BLOCK_TOKENS
        self._holdings = Holdings(self._fair, seats=max_running, tokens=capacity)
        self._waiting: dict[str, list[Sequence]] = {}  # tenant -> heap
        self._arrivals = 0
        self.running: list[Sequence] = []
        self.preemptions = 0

    @property
    def waiting(self) -> int:
        """Number of sequences that hold no blocks."""
        gathered = len(self._gatherer) if self._gatherer else 0
        return gathered + sum(map(len, self._waiting.values()))

    @property
    def gathers(self) -> bool:
        """Whether new sequences wait until the running batch is over or the next one is full."""
        return self._gatherer is not None

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence."""
        self._arrivals += 1
        sequence.number = self._arrivals
        self._fair.join(sequence)
        if self._gatherer is None:
            self._wait(sequence)
        else:
            self._gatherer.add(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Drop a finished or aborted sequence, wherever it is, and free its blocks."""
        if sequence in self.running:
            self.running.remove(sequence)
            if sequence.request.keep_seconds > 0:
                # A tenant's flows are named TENANT/FLOW.
                tenant = sequence.request.tenant.partition("/")[0]
                self._kv.keep(sequence.id, sequence.request.keep_seconds, tenant)
            self._close(sequence)
        elif self._gatherer is None or not self._gatherer.remove(sequence):
            tenant = sequence.request.tenant
            waiting = [other for other in self._waiting.pop(tenant) if other is not sequence]
            if waiting:
                heapq.heapify(waiting)
                self._waiting[tenant] = waiting
        self._fair.leave(sequence)
        text_keys = self._kv.forget(sequence.id)
        if sequence.features is not None:
            self._encoder_cache.forget(sequence.features, text_keys)

    def schedule(self) -> list[Work]:
        """Plan the next step's work within the token budget and allocate the blocks that it needs.

        Decoding sequences come first, so a long prompt never delays them. Prompts share the remaining
        budget, and new sequences get what is left after that. The rows of a new sequence's encoder input
        count as tokens. The plan is empty only if there is nothing to do or a static batch waits to fill.
        """
        if self._gatherer is not None and not self.running and not self._waiting:
            for sequence in self._gatherer.next_batch():
                self._wait(sequence)
        if self._fair.contended and self._waiting:
            self._reclaim()
        preempted = self.preemptions
        plan: list[Work] = []
        budget = self._max_batch_tokens
        for sequence in [s for s in self.running if not s.is_behind()]:
            if self.preemptions > preempted and sequence not in self.running:
                continue  # preempted in an earlier iteration
            budget = self._advance(sequence, plan, budget)
        behind = [sequence for sequence in self.running if sequence.is_behind()]
        if behind or self._waiting:
            budget = self._prefill(plan, budget, behind, admits=self.preemptions == preempted)
        if self.propose_drafts is not None and budget:
            self._add_draft_tokens(plan, self.propose_drafts(plan, budget))
        return plan

    @property
    def may_admit(self) -> bool:
        """Whether a waiting sequence may get a seat in the next step, without or with a preemption."""
        heads = [waiting[0] for waiting in self._waiting.values()]
        within = self._holdings.within_share
        if self._fair.contended and any(within(head, self.running) for head in heads):
            return True
        return any(self._lack(sequence) is None for sequence in heads)

    def make_room(self, sequences: Iterable[Sequence]) -> bool:
        """Allocate blocks for the token that each sequence draws in a running step.

        Blocks that leave a window go to others at once: steps are computed in order. No block is
        registered for sharing, because the token is unknown, and no sequence is preempted.

        Returns:
            False if there are not enough blocks; some sequences may have theirs.
        """
        for sequence in sequences:
            end = len(sequence.tokens) + 1
            if end > sequence.settled:
                self._kv.slide(sequence.id, end - 1)
                if not self._kv.allocate(sequence.id, end):
                    return False
                sequence.tables = self._kv.tables(sequence.id)[0]
        return True

    def charge(self, sequences: Iterable[Sequence]) -> None:
        """Charge the tenants for one row of each sequence, in a step that was not planned here."""
        for sequence in sequences:
            self._fair.charge(sequence, 1)

    def settle(self, sequence: Sequence) -> None:
        """Register the blocks that computed tokens fill, whose last tokens were unknown before."""
        if sequence.computed >= sequence.settled:
            self._settle(sequence, sequence.computed)

    def _advance(self, sequence: Sequence, plan: list[Work], budget: int) -> int:
        """Plan the sequence's next known tokens and return the remaining budget."""
        remaining = len(sequence.tokens) - sequence.computed
        count = remaining if remaining < budget else budget
        end = sequence.computed + count
        if not count or not (end <= sequence.settled or self._make_room(sequence, end, plan)):
            return budget
        plan.append(Work(sequence, count, count == remaining))
        count *= sequence.task.width
        self._fair.charge(sequence, count)
        return budget - min(budget, count)

    def _add_draft_tokens(
        self, plan: list[Work], proposals: Iterable[tuple[int, Tokens[int]]]
    ) -> None:
        """Append draft tokens to sequences that catch up in this step.

        Draft tokens only use budget and blocks that are otherwise unused: no sequence waits or is
        preempted for them.
        """
        for i, draft_tokens in proposals:
            work, sequence = plan[i], plan[i].sequence
            end = len(sequence.tokens) + len(draft_tokens)
            if draft_tokens and self._kv.takes_back and self._kv.allocate(sequence.id, end):
                count = work.count + len(draft_tokens)
                plan[i] = msgspec.structs.replace(work, count=count, draft_tokens=draft_tokens)
                self._fair.charge(sequence, len(draft_tokens))

    def preempt_all(self) -> None:
        """Preempt all sequences after a failed step: the blocks that it was to fill were never computed."""
        for sequence in reversed(self.running[:]):
            self._preempt(sequence)

    def _make_room(self, sequence: Sequence, end: int, plan: Tokens[Work]) -> bool:
        """Grow to ``end`` tokens, preempting as needed; return False if ``sequence`` was preempted.

        Only decoding grows, and decoding sequences take their turns in order. The last in order has not
        had its turn yet, so planned work is never withdrawn. The first in order is never preempted: a
        preempted beam search starts over, so two of them could preempt each other for ever.
        """
        self._kv.slide(sequence.id, sequence.computed)
        while not self._kv.allocate(sequence.id, end):
            victim = self.running[-1]
            if self._fair.contended:
                planned = {id(work.sequence) for work in plan}
                others = [s for s in self.running[1:] if id(s) not in planned]
                victim = worst(others or [sequence], self.running)
            self._preempt(victim)
            if victim is sequence:
                return False
        self._settle(sequence, end)
        return True

    def _settle(self, sequence: Sequence, end: int) -> None:
        """Register for sharing the blocks that this step fills up to ``end`` with known tokens.

        An executor writes all of a step's keys and values before it reads any, so a new sequence may
        share blocks that this same step computes.
        """
        if sequence.task.shares(sequence):
            self._kv.register(sequence.id, sequence.tokens, min(end, len(sequence.tokens)))
        if sequence.task.seats == 1:
            sequence.settled = self._kv.settled(sequence.id)
        sequence.tables = self._kv.tables(sequence.id)[0]

    def _close(self, sequence: Sequence) -> None:
        """Release all blocks; the encoder output, the costliest to recompute, is evicted last."""
        self._kv.close(sequence.id)
        if sequence.features is not None:
            self._encoder_cache.close(sequence.id)

    def _preempt(self, victim: Sequence) -> None:
        self.running.remove(victim)
        self._close(victim)
        victim.restart()
        victim.preemptions += 1
        self.preemptions += 1
        self._wait(victim)

    def _wait(self, sequence: Sequence) -> None:
        heapq.heappush(self._waiting.setdefault(sequence.request.tenant, []), sequence)

    def _prefill(
        self, plan: list[Work], budget: int, behind: list[Sequence], *, admits: bool
    ) -> int:
        """Plan prompts, each tenant's started ones before new sequences; return the remaining budget.

        Args:
            plan: is extended.
            budget: tokens that the step may still compute.
            behind: running sequences whose prompts are not fully computed.
            admits: whether new sequences may begin.
        """
        encodes = False
        while budget:
            prompts = {s.request.tenant: s for s in reversed(behind)}
            first = prompts if not admits else self._heads() | prompts
            if not first:
                break
            sequence = self._fair.next(first.values())
            if sequence in behind:
                behind.remove(sequence)
                budget = self._advance(sequence, plan, budget)
                continue
            work, taken = self._admit(sequence, budget, encodes)
            if work is None:
                admits = False
                continue
            plan.append(work)
            budget -= taken
            encodes |= work.encodes
        return budget

    def _heads(self) -> dict[str, Sequence]:
        """Return each tenant's first waiting sequence, of tenants within their share if any."""
        heads = {tenant: waiting[0] for tenant, waiting in self._waiting.items()}
        if not self._fair.contended:
            return heads
        within = self._holdings.within_share
        return {name: s for name, s in heads.items() if within(s, self.running)} or heads

    def _admit(self, sequence: Sequence, budget: int, encodes: bool) -> tuple[Work | None, int]:
        """Begin a waiting sequence if there is room; return its work in this step and the tokens it uses.

        Args:
            sequence: the first of its tenant's waiting sequences.
            budget: tokens that the step may still compute.
            encodes: whether an encoder input is already encoded in this step.
        """
        if not self._has_seat(sequence):
            return None, 0
        features, encoded = sequence.features, None
        if features is not None:
            encoded = self._encoder_cache.claim(features)
        rows = features.rows if features and encoded and encoded.fresh else 0
        # An encoder input is encoded as a whole, so the first one in a step can exceed the budget.
        exceeds = rows >= budget
        if (exceeds and encodes) or not self._open(sequence, encoded):
            return None, 0
        tenant = sequence.request.tenant
        heapq.heappop(self._waiting[tenant])
        if not self._waiting[tenant]:
            del self._waiting[tenant]
        insort(self.running, sequence)
        count = min(sequence.remaining, budget if exceeds else budget - rows)
        self._settle(sequence, sequence.computed + count)
        self._fair.charge(sequence, rows + count)
        work = Work(sequence, count, count == sequence.remaining, rows > 0)
        return work, budget if exceeds else rows + count

    def _open(self, sequence: Sequence, encoded: EncoderClaim | None) -> bool:
        """Allocate blocks for all known tokens, so that a started prompt never stalls for memory."""
        claim = self._claim(sequence)
        encoder_claim = encoded or _NOTHING
        if not self._kv.reserve(claim, encoder_claim.fresh, encoder_claim.blocks):
            return False
        if encoded is not None:
            self._encoder_cache.open(sequence.id, encoded)
        self._kv.open(sequence.id, claim)
        if sequence.task.reusable(sequence):
            self._kv.count_lookup(len(sequence.tokens), claim.tokens)
        sequence.computed = claim.tokens
        return True

    def _claim(self, sequence: Sequence) -> Claim:
        """Return the claim of the sequence's text on the KV cache."""
        reusable = sequence.task.reusable(sequence)
        return self._kv.claim(sequence.id, sequence.tokens, root=sequence.root, reusable=reusable)

    def _has_seat(self, sequence: Sequence) -> bool:
        """Return whether there are seats, one per beam-search hypothesis; a sole sequence always fits."""
        taken = sum(other.task.seats for other in self.running)
        return not taken or taken + sequence.task.seats <= self._max_running

    # Competing tenants.

    def _reclaim(self) -> None:
        """Preempt tenants that exceed their share, for new sequences of tenants within theirs."""
        for newcomer in self._heads().values():
            if not self._holdings.within_share(newcomer, self.running):
                return
            while self.running and (lack := self._lack(newcomer)) is not None:
                victim = worst(self.running, self.running, lack[0])
                if not self._holdings.may_lose(victim, lack, self.running):
                    return
                self._preempt(victim)

    def _lack(self, newcomer: Sequence) -> Resource | None:
        """Return the resource that a waiting sequence lacks; None if nothing."""
        if not self._has_seat(newcomer):
            return self._holdings.seats
        encoder_claim = _NOTHING
        if newcomer.features is not None:
            encoder_claim = self._encoder_cache.claim(newcomer.features)
        if not self._kv.has_room(self._claim(newcomer), encoder_claim.fresh, encoder_claim.blocks):
            return self._holdings.tokens
        return None
