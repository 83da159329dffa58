"""Where a speech model's alignment heads attend while it reads a given text."""

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from galley.engine.tasks.base import Task
from galley.ops.sampling import SamplingBatch, StepResult
from galley.types import Output
from galley.types.audio import Alignment

if TYPE_CHECKING:
    from galley.engine.scheduler import Work
    from galley.engine.sequence import Sequence


class AlignTask(Task):
    """Runs the aligner over all of the prompt's tokens, without logits."""

    program = "aligner"

    def __init__(self) -> None:
        self._parts: list[npt.NDArray[np.float32]] = []  # each [tokens, heads, encoder rows]
        self._rows = range(0)

    def reusable(self, sequence: "Sequence") -> int:
        """Return 0: every row is needed."""
        return 0

    def shares(self, sequence: "Sequence") -> bool:
        """Return False: the aligner does not compute all layers."""
        return False

    def wanted(self, sequence: "Sequence", work: "Work") -> int:
        """Return the number of the work's rows, all of which are needed."""
        return work.count

    def select_results(
        self, sequence: "Sequence", work: "Work", rows: range, sampling: SamplingBatch
    ) -> None:
        """Remember the rows; the aligner's weights are returned in any case."""
        self._rows = rows

    def consume(self, sequence: "Sequence", work: "Work", result: StepResult) -> Output | None:
        """Collect the attention weights; return those of all heads once the last token is computed."""
        features, attention = sequence.features, result.attention
        assert features is not None
        assert attention is not None
        self._parts.append(attention[self._rows.start : self._rows.stop, :, : features.rows])
        if not work.completes:
            return None
        _, heads, rows = self._parts[0].shape
        data = b"".join(np.asarray(part, "<f4").tobytes() for part in self._parts)
        found = Alignment(tokens=sequence.computed, heads=heads, rows=rows, data=data)
        return Output(
            request_id=sequence.id,
            result=found,
            cached_tokens=sequence.cached,
            finish_reason="length",
        )

    def restart(self, sequence: "Sequence") -> None:
        """Discard the collected weights and start over from the first token."""
        self._parts.clear()
