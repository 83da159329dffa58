"""Decoding steps that are submitted before the tokens of the step before them are known.

    step n       computes rows, draws one token for each sequence   | collected here
    step n + 1   token ids -1, -2, ...: the draws 0, 1, ... of step n  | submitted before that

A sequence that ends with its token of step n has a row in step n + 1 all the same; that row is dropped.
What it wrote is in a block that no request shares, and later steps, which may own that block, run later.
"""

from array import array
from collections.abc import Callable, Sequence
from typing import NamedTuple

from galley.engine.scheduler import Scheduler, Work
from galley.engine.sequence import Sequence as EngineSequence
from galley.engine.speculation import EngineSpeculation
from galley.engine.step_meter import StepMeter
from galley.ops.batch import Batch
from galley.ops.executor import Executor, FollowingExecutor, Submitted
from galley.ops.sampling import SamplingBatch


class RunningStep(NamedTuple):
    """A submitted step.

    Attributes:
        plan: its work.
        submitted: what the executor knows it by.
        follows: whether it was planned before the tokens of its rows were known; draw i is then that of
            ``plan[i]``.
    """

    plan: list[Work]
    submitted: Submitted
    follows: bool = False


def following_of(
    executor: Executor, scheduler: Scheduler, speculation: EngineSpeculation, meter: StepMeter
) -> "Following | None":
    """Return what submits steps early; None for an executor that completes each before the next."""
    if not isinstance(executor, FollowingExecutor):
        return None
    return Following(executor, scheduler, speculation, meter)


class Following:
    """Submits a step while the one before it runs, if no sequence needs more of that than its token.

    Nothing may wait for the tokens: no request that may join, no prompt for which the running step had no
    room, no grammar, penalty or log-probability, and no draft tokens that may pay. Each sequence that needs
    a block must get one.
    """

    def __init__(
        self,
        executor: FollowingExecutor,
        scheduler: Scheduler,
        speculation: EngineSpeculation,
        meter: StepMeter,
    ) -> None:
        self._executor = executor
        self._scheduler = scheduler
        self._speculation = speculation
        self._meter = meter

    def submit_after(
        self, running: RunningStep, is_live: Callable[[EngineSequence], bool]
    ) -> RunningStep | None:
        """Plan and submit the step after ``running``; return None if that has to be collected first.

        Args:
            running: the latest step.
            is_live: whether a sequence has been neither aborted nor finished.
        """
        plan = running.plan
        if not all(map(_draws_only, plan)) or self._speculation.may_propose(plan):
            return None
        live = [(draw, work.sequence) for draw, work in enumerate(plan) if is_live(work.sequence)]
        if len(live) < len(self._scheduler.running):
            return None  # a prompt for which the step had no room
        drawn = [(draw, one) for draw, one in live if one.task.max_draft_tokens(one) > 0]
        if not drawn or self._scheduler.may_admit:
            return None
        self._meter.overlap()
        sequences = [sequence for _, sequence in drawn]
        if not self._scheduler.make_room(sequences):
            return None
        batch, sampling = _assemble(drawn)
        self._meter.assembled()
        submitted = self._executor.follow(running.submitted, batch, sampling)
        if submitted is None:
            return None
        self._scheduler.charge(sequences)
        works = [Work(sequence, 1, completes=True) for sequence in sequences]
        return RunningStep(works, submitted, follows=True)


def dropping_ended(plan: Sequence[Work], is_live: Callable[[EngineSequence], bool]) -> list[Work]:
    """Return the work of a step that followed, of the sequences that have not ended since."""
    remaining = []
    for draw, work in enumerate(plan):
        if is_live(work.sequence):
            work.sequence.task.expect(draw)
            remaining.append(work)
    return remaining


def _draws_only(work: Work) -> bool:
    """Return whether the work draws one token, and its sequence needs nothing else of the step."""
    sequence = work.sequence
    plain = work.completes and not work.draft_tokens and sequence.features is None
    return plain and sequence.task.follows and sequence.task.wanted(sequence, work) == 1


def _assemble(drawn: Sequence[tuple[int, EngineSequence]]) -> tuple[Batch, SamplingBatch]:
    """Return a row for each (draw of the step before, sequence)."""
    sequences = [sequence for _, sequence in drawn]
    rows = range(len(sequences))
    positions = [len(sequence.tokens) for sequence in sequences]
    adapters = array("q", [sequence.adapter for sequence in sequences])
    groups = range(len(sequences[0].tables))
    batch = Batch(
        tokens=array("q", [-1 - draw for draw, _ in drawn]),
        positions=array("q", positions),
        starts=array("q", range(len(sequences) + 1)),
        tables=tuple([sequence.tables[g] for g in groups for sequence in sequences]),
        wanted=array("q", rows),
        adapters=adapters if max(adapters) >= 0 else None,
    )
    sampling = SamplingBatch(
        rows=list(rows),
        positions=[position + 1 for position in positions],
        records=[sequence.task.sampling_record for sequence in sequences],
    )
    return batch, sampling
