"""Counts of the rows that an engine has computed, and the times of a sequence."""

import time
from collections.abc import Iterable
from dataclasses import dataclass

from galley.engine.scheduler import Work
from galley.engine.sequence import Sequence
from galley.types import Timing


@dataclass(slots=True)
class RowCounts:
    """Rows of prompts, of generated tokens and of encoder outputs in all steps so far."""

    prefill: int = 0
    decode: int = 0
    encoder: int = 0

    def count(self, plan: Iterable[Work]) -> None:
        """Count a step's rows, before any sequence has changed, and record which ones it starts."""
        now = time.monotonic()
        for work in plan:
            sequence = work.sequence
            if not sequence.started:
                sequence.started = now
                sequence.cached = min(sequence.computed, len(sequence.prompt))
            if work.encodes and sequence.features:
                self.encoder += sequence.features.rows
            decodes = sequence.first_token or len(sequence.tokens) > len(sequence.prompt)
            if decodes and work.count == 1 + len(work.draft_tokens):
                width = sequence.task.width
                self.decode += width if width > 1 else work.count
            else:
                self.prefill += work.count


def timing_of(sequence: Sequence, now: float) -> Timing:
    """Return the timing of an output at ``now``, in seconds on the engine's clock."""
    drafts = sequence.drafts
    return Timing(
        queued=sequence.started - sequence.arrival,
        first_token=sequence.first_token - sequence.arrival,
        total=now - sequence.arrival,
        preemptions=sequence.preemptions,
        engine_seconds=sequence.engine_seconds,
        proposed=drafts.proposed if drafts else 0,
        accepted=drafts.accepted if drafts else 0,
    )
