"""Speculation in the engine: which sequences get draft tokens, and what became of these."""

from collections.abc import Iterable

from galley.engine.draft_model import DraftModel
from galley.engine.scheduler import Work
from galley.engine.sequence import Sequence
from galley.ops.batch import EncoderRows
from galley.settings.engine import EngineSettings
from galley.speculation.forced_tokens import ForcedTokens
from galley.speculation.prompt_lookup import PromptLookup
from galley.speculation.proposer import Proposer
from galley.speculation.recent_texts import RecentTexts
from galley.speculation.row_costs import RowCosts
from galley.speculation.speculator import Counts, DraftRequest, Speculator
from galley.types import Align
from galley.types.block_hashes import salt_hash


def proposers_of(settings: EngineSettings) -> list[Proposer]:
    """Return the proposers that the setting ``speculation`` names, excluding the draft model."""
    known: list[Proposer] = [ForcedTokens(), PromptLookup(), RecentTexts()]
    return [proposer for proposer in known if settings.speculation in ("auto", proposer.name)]


class EngineSpeculation:
    """Connects sequences with the speculator, which knows only tokens.

    Args:
        proposers: sources of draft tokens; empty for an engine without speculation.
        costs: step times by number of rows; None disables speculation.
        most: maximum number of rows to sample from in a step, for which memory is reserved.
        draft_model: a further source of draft tokens, if there is one.
    """

    def __init__(
        self,
        proposers: Iterable[Proposer] = (),
        costs: RowCosts | None = None,
        most: int = 64,
        draft_model: DraftModel | None = None,
    ) -> None:
        self._most = most
        self._draft_model = draft_model
        self._drafted = 0.0
        self._speculator: Speculator | None = None
        made = list(proposers)
        if costs is not None and (made or draft_model is not None):
            self._speculator = Speculator(made, costs, draft_model)

    def begin(self, sequence: Sequence) -> None:
        """Start speculation for an added sequence."""
        payload = sequence.payload
        if self._speculator is None or isinstance(payload, Align):
            return
        if payload.sampling.num_beams == 1 and payload.sampling.speculation != "off":
            grammar = sequence.task.grammar
            forced = None if grammar is None else grammar.forced
            sequence.drafts = self._speculator.follow(_salt(sequence), forced)

    def encoded(self, plan: Iterable[Work], rows: EncoderRows) -> None:
        """Pass on the encoder's ``rows`` of the audio that was encoded in this step."""
        if self._draft_model is not None:
            self._draft_model.take_encoded([w.sequence for w in plan if w.encodes], rows)

    def may_propose(self, plan: list[Work]) -> bool:
        """Return whether draft tokens may pay for steps like this plan, one row for each sequence."""
        speculator, rows = self._speculator, len(plan)
        if speculator is None or all(work.sequence.drafts is None for work in plan):
            return False
        return rows < self._most and speculator.least(rows, rows) < 1.0

    def propose_drafts(self, plan: list[Work], budget: int) -> list[tuple[int, tuple[int, ...]]]:
        """Return draft tokens for a plan: see :data:`galley.engine.scheduler.ProposeDrafts`."""
        speculator = self._speculator
        if speculator is None:
            return []
        rows = sum(work.count * work.sequence.task.width for work in plan)
        decoding = sum(work.completes for work in plan)
        budget = min(budget, self._most - decoding)
        if not decoding or budget <= 0 or (least := speculator.least(decoding, rows)) >= 1.0:
            return []
        places: list[int] = []
        requests: list[DraftRequest] = []
        for i, work in enumerate(plan):
            sequence = work.sequence
            if work.completes and sequence.drafts is not None:
                most = sequence.task.max_draft_tokens(sequence)
                if most > 0:
                    places.append(i)
                    requests.append(DraftRequest(sequence.drafts, sequence.tokens, most, sequence))
        draft_tokens = speculator.propose_drafts(
            requests, decoding=decoding, rows=rows, budget=budget, least=least
        )
        return [(i, tuple(own)) for i, own in zip(places, draft_tokens, strict=True) if own]

    def settle(self, plan: Iterable[Work], seconds: float) -> None:
        """Record the results of a committed step and the seconds that it took."""
        if self._speculator is None:
            return
        for work in plan:
            if work.draft_tokens and work.sequence.drafts is not None:
                self._speculator.settle(work.sequence.drafts, work.sequence.tokens)
        drafted, self._drafted = self._drafted, self.draft_seconds
        self._speculator.observe(seconds, self._drafted - drafted)

    def end(self, sequence: Sequence) -> None:
        """Record the end of a sequence, finished or aborted."""
        if self._speculator is not None and sequence.drafts is not None:
            prompt = len(sequence.prompt)
            self._speculator.remember(_salt(sequence), sequence.tokens, prompt)
        if self._draft_model is not None:
            self._draft_model.forget(sequence)

    @property
    def draft_seconds(self) -> float:
        """Seconds spent on steps of the draft model so far."""
        return 0.0 if self._draft_model is None else self._draft_model.seconds

    def counts(self, proposer: str) -> Counts:
        """Return the counts of that proposer so far."""
        none = Counts()
        return none if self._speculator is None else self._speculator.counts.get(proposer, none)


def _salt(sequence: Sequence) -> bytes:
    """Return the salt of texts that may provide draft tokens for each other.

    For audio, these are all of a tenant's transcripts, whatever the audio.
    """
    return salt_hash(sequence.request.cache_salt) if sequence.features else sequence.root
