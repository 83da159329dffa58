"""What the scheduler, the assembly of a batch and the engine's commit ask of a task."""

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

NO_CHOICE: Final = "the logits leave no token to choose: NaN, infinite, or all of them excluded"


class Task(ABC):
    """Consumes the rows of one sequence, and says what that takes.

    By default a task runs the decoder, advances a single hypothesis and verifies no guesses.
    """

    program: Literal["decoder", "aligner"] = "decoder"
    """Which of the model's programs computes the sequence's rows."""

    @property
    def seats(self) -> int:
        """How many of the engine's running sequences the task counts as."""
        return 1

    @property
    def width(self) -> int:
        """How many hypotheses advance together, each with block tables and a row of its own."""
        return 1

    @abstractmethod
    def reusable(self, sequence: "Sequence") -> int:
        """How many leading tokens the prefix cache may supply: no row that the task wants."""

    @abstractmethod
    def shares(self, sequence: "Sequence") -> bool:
        """Whether others may use the sequence's blocks: all layers are computed, of tokens that stay."""

    @abstractmethod
    def wanted(self, sequence: "Sequence", work: "Work") -> int:
        """Of how many of the work's rows, the last ones, logits (or the aligner's weights) are wanted."""

    def guessable(self, sequence: "Sequence") -> int:
        """How many guessed tokens the task can verify in one step, behind the last known token."""
        return 0

    @property
    def sampling_record(self) -> bytes:
        """How its tokens are drawn (see :func:`galley.ops.draws.sampling_record`)."""
        return GREEDY

    def adjustment(self, guesses: Tokens[int]) -> LogitsAdjustment | None:
        """What the task would change about the logits behind these guesses, a grammar aside."""
        return None

    @property
    def grammar(self) -> GrammarMatcher | None:
        """Where its output stands in the request's grammar, if there is one."""
        return None

    def last_tokens(self, sequence: "Sequence") -> list[int]:
        """For each hypothesis the token whose row is computed next."""
        return sequence.tokens[-1:]

    @abstractmethod
    def ask(self, sequence: "Sequence", work: "Work", rows: range, sampling: SamplingBatch) -> None:
        """Say what is to be made of the wanted ``rows`` of the step's logits."""

    @abstractmethod
    def consume(self, sequence: "Sequence", work: "Work", result: StepResult) -> Output | None:
        """Take what was asked for; the work's tokens count as computed already.

        Returns:
            What came out for the caller, without timing; None if nothing did.
        """

    @abstractmethod
    def restart(self, sequence: "Sequence") -> None:
        """The sequence has lost its keys and values and computes all its tokens again."""
