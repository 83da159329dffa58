"""A draft model in the engine: a smaller model with the same vocabulary that drafts for a whole batch.

Source: Y. Leviathan et al., "Fast Inference from Transformers via Speculative Decoding" (2023).
"""

import time
from array import array
from collections import OrderedDict
from collections.abc import Iterable
from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from galley.engine.assemble import cross_context
from galley.engine.encoder_cache import EncoderCache, EncoderFeatures
from galley.engine.kv import KVCache
from galley.engine.sequence import Sequence
from galley.ops.batch import Batch, EncoderBatch, EncoderRows
from galley.ops.draws import NO_TOKEN
from galley.ops.executor import Executor, encode, execute
from galley.ops.sampling import SamplingBatch
from galley.speculation.drafter import Wanted
from galley.speculation.row_costs import RowCosts

_clock: Final = time.perf_counter

_MOST_ENCODED: Final = 64
"""Number of cached encoder outputs; an evicted one is encoded again."""


@dataclass(slots=True, eq=False)
class _Progress:
    """How far the draft model has come with a sequence.

    Attributes:
        table: the blocks that hold its keys and values, which are lost if the sequence has other blocks
            now.
        computed: number of leading tokens of the sequence whose keys and values are there.
        drafted: draft tokens whose keys and values follow; usable as far as the sequence accepted them.
    """

    table: "array[int]"
    computed: int = 0
    drafted: list[int] = field(default_factory=list)


class DraftModel:
    """Drafts tokens with a model: see :class:`galley.speculation.drafter.Drafter`.

    Its keys and values lie in the same blocks as those of the target model, by the same tables, so
    nothing else has to be stored, counted or rolled back. Tokens are sampled with the request's noise and
    under its rules: where both models have the same distribution, they sample the same token. A speech
    model encodes a sequence's audio before it first drafts for it, unless it shares the target model's
    encoder.

    Args:
        executor: runs the draft model; its KV cache has as many blocks as the target model's.
        costs: times of the draft model's steps by rows.
        kv: block tables.
        encoder_cache: block tables of encoder outputs.
        group: the KV group that keeps all tokens.
        vocab_size: vocabulary size of the target model; other tokens are never proposed.
        max_len: the draft model's context.
        max_rows: maximum number of rows in one of its steps.
        shares_encoder: whether its encoder inputs are the output rows of the target model's encoder.
    """

    def __init__(
        self,
        executor: Executor,
        costs: RowCosts,
        kv: KVCache,
        encoder_cache: EncoderCache,
        *,
        group: int,
        vocab_size: int,
        max_len: int,
        max_rows: int,
        shares_encoder: bool = False,
    ) -> None:
        self.costs = costs
        self.seconds = 0.0
        self._executor = executor
        self._kv = kv
        self._encoder_cache = encoder_cache
        self._group = group
        self._vocab_size = vocab_size
        self._max_len = max_len
        self._max_rows = max_rows
        self._shares_encoder = shares_encoder
        self._progress: dict[str, _Progress] = {}
        self._encoded: OrderedDict[bytes, array[int]] = OrderedDict()
        """Hash of an encoder input -> the blocks of its encoder output, the latest last."""

    def forget(self, sequence: Sequence) -> None:
        """Drop a sequence that has ended."""
        self._progress.pop(sequence.id, None)

    def backlog(self, sequence: Sequence) -> int:
        """Return the rows to compute: see :class:`galley.speculation.drafter.Drafter`."""
        if len(sequence.tokens) >= self._max_len:
            return 0
        rows = len(sequence.tokens) - self._progress_of(sequence).computed
        if sequence.features is not None and not self._has_encoded(sequence, sequence.features):
            if self._shares_encoder:
                return 0
            rows += sequence.features.rows
        return rows

    def draft(self, wanted: Tokens[Wanted[Sequence]]) -> list[Tokens[int]]:
        """Return draft tokens: see :class:`galley.speculation.drafter.Drafter`."""
        began = _clock()
        draft_tokens: list[list[int]] = [[] for _ in wanted]
        ready = self._catch_up(wanted, draft_tokens)
        for length in range(1, max((one.length for one in wanted), default=0)):
            going = [i for i in ready if len(draft_tokens[i]) == length < self._most(wanted[i])]
            if not going:
                break
            self._step(
                [(wanted[i].sequence, draft_tokens[i][-1:]) for i in going], going, draft_tokens
            )
        for i in ready:
            known = wanted[i].sequence.tokens
            progress = self._progress[wanted[i].sequence.id]
            progress.computed, progress.drafted = len(known), draft_tokens[i][:-1]
        self.seconds += _clock() - began
        return list(draft_tokens)

    def _most(self, one: Wanted[Sequence]) -> int:
        return min(one.length, self._max_len - len(one.sequence.tokens))

    def _catch_up(
        self, wanted: Tokens[Wanted[Sequence]], draft_tokens: list[list[int]]
    ) -> list[int]:
        """Compute known tokens and sample the first draft tokens; return the indices that got one.

        Known tokens that do not fit one step of the draft model are computed in later steps.
        """
        ready: list[int] = []
        partly: list[tuple[Sequence, list[int]]] = []
        whole: list[tuple[Sequence, list[int]]] = []
        left = self._max_rows
        for i, one in enumerate(wanted):
            sequence, progress = one.sequence, self._progress_of(one.sequence)
            end = len(sequence.tokens)
            if not left or not self._kv.allocate(sequence.id, end + self._most(one) - 1):
                continue
            behind = sequence.tokens[progress.computed : progress.computed + left]
            left -= len(behind)
            features = sequence.features
            if features is not None and not self._has_encoded(sequence, features):
                table = self._encoder_cache.table(sequence.id)
                self._encode(features.root, features.features, table)
            if progress.computed + len(behind) == end:
                whole.append((sequence, behind))
                ready.append(i)
            else:
                partly.append((sequence, behind))
        self._step([*whole, *partly], ready, draft_tokens)
        for sequence, behind in partly:
            self._progress[sequence.id].computed += len(behind)
        return [i for i in ready if draft_tokens[i]]

    def _step(
        self,
        rows: Iterable[tuple[Sequence, Tokens[int]]],
        drawn: Tokens[int],
        draft_tokens: list[list[int]],
    ) -> None:
        """Compute the next tokens, and draft one for each of the first ``len(drawn)`` sequences."""
        tokens, positions = array("q"), array("q")
        starts, wanted = array("q", [0]), array("q")
        tables: list[array[int]] = []
        with_audio: list[Sequence] = []
        sampling = SamplingBatch()
        for place, (sequence, added) in enumerate(rows):
            progress = self._progress[sequence.id]
            if place < len(drawn):
                known = draft_tokens[drawn[place]]
                begin = (
                    len(sequence.tokens) + len(known) - len(added) if known else progress.computed
                )
                wanted.append(len(tokens) + len(added) - 1)
                sampling.draw(place, begin + len(added), sequence.task.sampling_record)
                adjustment = sequence.task.adjustment(known)
                if adjustment is not None:
                    sampling.adjustments[place] = adjustment
            else:
                begin = progress.computed
            tokens.extend(added)
            positions.extend(range(begin, begin + len(added)))
            starts.append(len(tokens))
            tables.append(progress.table)
            if sequence.features is not None:
                with_audio.append(sequence)
        if not tables:
            return
        began = _clock()
        batch = Batch(
            tokens=tokens,
            positions=positions,
            starts=starts,
            tables=tuple(tables),
            wanted=wanted,
            cross=cross_context(with_audio, self._encoder_cache) if with_audio else None,
        )
        result = execute(self._executor, batch, sampling)
        if len(tokens) == len(tables):
            self.costs.observe(len(tokens), 0, _clock() - began)
        for place, token in zip(drawn, result.tokens, strict=True):
            if token != NO_TOKEN and token < self._vocab_size:
                draft_tokens[place].append(token)

    def take_encoded(self, sequences: Iterable[Sequence], rows: EncoderRows) -> None:
        """Encode ``rows`` [all rows, width], the target encoder's output for these sequences in order."""
        assert self._shares_encoder
        first = 0
        for sequence in sequences:
            assert sequence.features is not None
            own = rows[first : first + sequence.features.rows]
            first += len(own)
            self._encode(sequence.features.root, own, self._encoder_cache.table(sequence.id))

    def _has_encoded(self, sequence: Sequence, features: EncoderFeatures) -> bool:
        return self._encoded.get(features.root) == self._encoder_cache.table(sequence.id)

    def _encode(self, root: bytes, inputs: EncoderRows, table: "array[int]") -> None:
        """Encode one input in a separate step, because the buffers hold only one encoder input.

        Other encoder outputs in the same blocks are overwritten.
        """
        starts = np.array([0, len(inputs)], dtype=np.int64)
        encode(self._executor, EncoderBatch(inputs, starts, (table,)))
        taken = set(table)
        for other in [r for r, held in self._encoded.items() if not taken.isdisjoint(held)]:
            del self._encoded[other]
        self._encoded[root] = array("q", table)
        while len(self._encoded) > _MOST_ENCODED:
            self._encoded.popitem(last=False)

    def _progress_of(self, sequence: Sequence) -> _Progress:
        """Return the progress, adjusted to the sequence's new tokens or blocks."""
        table = sequence.tables[self._group]
        progress = self._progress.get(sequence.id)
        if progress is None or progress.table is not table:
            progress = self._progress[sequence.id] = _Progress(table)
        computed = progress.computed
        for token in progress.drafted:
            # The last token is computed again, for its logits.
            if computed >= len(sequence.tokens) - 1 or sequence.tokens[computed] != token:
                break
            computed += 1
        progress.computed, progress.drafted = computed, []
        return progress
