"""The interface of a task to the scheduler, the assembly of a batch and the engine's commit."""

from abc import ABC, abstractmethod
from collections.abc import Sequence as Tokens
from typing import TYPE_CHECKING, Final, Literal

from galley.grammar.matcher import GrammarMatcher
from galley.ops.draws import GREEDY
from galley.ops.sampling import LogitsAdjustment, SamplingBatch, StepResult
from galley.types import Output

if TYPE_CHECKING:
    from galley.engine.scheduler import Work
    from galley.engine.sequence import Sequence

NO_CHOICE: Final = (
    "no token can be sampled: the logits are NaN or infinite, or all tokens are excluded"
)


class Task(ABC):
    """Uses the computed rows of one sequence and determines which of them are needed.

    By default a task runs the decoder, advances a single hypothesis and verifies no draft tokens.
    """

    program: Literal["decoder", "aligner"] = "decoder"
    """Which of the model's programs computes the sequence's rows."""

    @property
    def seats(self) -> int:
        """How many of the engine's running sequences the task counts as."""
        return 1

    @property
    def width(self) -> int:
        """How many hypotheses advance together, each with its block tables and one row."""
        return 1

    @abstractmethod
    def reusable(self, sequence: "Sequence") -> int:
        """Return how many leading tokens the prefix cache may supply: none whose row the task needs."""

    @abstractmethod
    def shares(self, sequence: "Sequence") -> bool:
        """Return whether others may use the blocks, that is, all layers of final tokens are computed."""

    @abstractmethod
    def wanted(self, sequence: "Sequence", work: "Work") -> int:
        """Return how many of the work's last rows need logits (or the aligner's weights)."""

    def max_draft_tokens(self, sequence: "Sequence") -> int:
        """Return how many draft tokens the task can verify in one step, after the last known token."""
        return 0

    @property
    def follows(self) -> bool:
        """Whether the row of a drawn token can be computed, and drawn from, before the token is known."""
        return False

    def expect(self, draw: int) -> None:
        """Record that a step is consumed next in which the sequence's only draw is number ``draw``."""
        raise NotImplementedError

    @property
    def sampling_record(self) -> bytes:
        """How its tokens are sampled (see :func:`galley.ops.draws.sampling_record`)."""
        return GREEDY

    def adjustment(self, draft_tokens: Tokens[int]) -> LogitsAdjustment | None:
        """Return the task's changes to the logits after these draft tokens, except for a grammar's."""
        return None

    @property
    def grammar(self) -> GrammarMatcher | None:
        """State of its output in the request's grammar, if there is one."""
        return None

    def last_tokens(self, sequence: "Sequence") -> list[int]:
        """Return, for each hypothesis, the token whose row is computed next."""
        return sequence.tokens[-1:]

    @abstractmethod
    def select_results(
        self, sequence: "Sequence", work: "Work", rows: range, sampling: SamplingBatch
    ) -> None:
        """Request what the task needs from the selected ``rows`` of the step's logits."""

    @abstractmethod
    def consume(self, sequence: "Sequence", work: "Work", result: StepResult) -> Output | None:
        """Use the requested results; the work's tokens already count as computed.

        Returns:
            The output for the caller, without timing; None if there is none.
        """

    @abstractmethod
    def restart(self, sequence: "Sequence") -> None:
        """Reset the task after the sequence lost its keys and values; all its tokens are computed again."""
