"""Turns a step's work into the arrays an executor takes, and collects the tasks' logits requests."""

from array import array
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from galley.engine.encoder_cache import EncoderCache, EncoderFeatures
from galley.engine.kv import KVCache
from galley.engine.scheduler import Work
from galley.engine.sequence import Sequence as EngineSequence
from galley.ops.batch import NO_TOKENS, Batch, CrossContext, EncoderBatch
from galley.ops.sampling import SamplingBatch


def assemble(
    plan: Sequence[Work], kv: KVCache, encoder_cache: EncoderCache
) -> tuple[Batch, SamplingBatch]:
    """Assemble the plan's rows in order, with the aligner's rows in a separate batch."""
    sampling = SamplingBatch()
    align, encode = None, None
    if plan[0].sequence.features is not None:
        encode = _encoder_batch(plan, encoder_cache)
        aligned = [work for work in plan if work.sequence.task.program == "aligner"]
        if aligned:
            align = _token_batch(aligned, kv, encoder_cache, sampling)
            plan = [work for work in plan if work.sequence.task.program == "decoder"]
    batch = _token_batch(plan, kv, encoder_cache, sampling) if plan else NO_TOKENS
    copies = kv.take_copies()
    if align is None and encode is None and not copies:
        return batch, sampling
    return msgspec.structs.replace(batch, copies=copies, encode=encode, align=align), sampling


def _token_batch(
    plan: Sequence[Work], kv: KVCache, encoder_cache: EncoderCache, sampling: SamplingBatch
) -> Batch:
    tokens, positions = array("q"), array("q")
    starts, wanted = array("q", [0]), array("q")
    tables: list[tuple[array[int], ...]] = []
    for work in plan:
        sequence = work.sequence
        task, begin, count = sequence.task, sequence.computed, work.count
        if task.width > 1:
            for token, hypothesis in zip(
                task.last_tokens(sequence), kv.tables(sequence.id), strict=True
            ):
                tokens.append(token)
                positions.append(begin)
                starts.append(len(tokens))
                tables.append(hypothesis)
        elif count == 1:  # a slice and ranges would take two fifths of the function's time
            tokens.append(sequence.tokens[begin])
            positions.append(begin)
            starts.append(len(tokens))
            tables.append(sequence.tables)
        else:
            tokens.extend(sequence.tokens[begin : begin + count])
            tokens.extend(work.draft_tokens)
            positions.extend(range(begin, begin + count))
            starts.append(len(tokens))
            tables.append(sequence.tables)
        rows = len(tokens)
        first, chosen = len(wanted), task.wanted(sequence, work)
        if chosen == 1:
            wanted.append(rows - 1)
        else:
            wanted.extend(range(rows - chosen, rows))
        task.select_results(sequence, work, range(first, first + chosen), sampling)
    return Batch(
        tokens=tokens,
        positions=positions,
        starts=starts,
        tables=tuple([table[g] for g in range(len(kv.groups)) for table in tables]),
        wanted=wanted,
        cross=_cross_context(plan, encoder_cache),
        adapters=_adapters(plan),
        states=_states(plan, kv) if kv.states is not None else None,
    )


def _states(plan: Sequence[Work], kv: KVCache) -> "tuple[array[int], ...]":
    """Return where each sequence's state is read and written, in the order of the batch."""
    return tuple(
        kv.advance_state(
            sequence.id,
            sequence.computed,
            sequence.computed + count,
            sequence.tokens,
            shares=sequence.task.shares(sequence),
        )
        for sequence, count in ((work.sequence, work.count) for work in plan)
    )


def _adapters(plan: Sequence[Work]) -> "array[int] | None":
    """Return the slot of each hypothesis' adapter; None if the step uses no adapters."""
    if all(work.sequence.adapter < 0 for work in plan):
        return None
    return array("q", [w.sequence.adapter for w in plan for _ in range(w.sequence.task.width)])


def _encoder_batch(plan: Sequence[Work], encoder_cache: EncoderCache) -> EncoderBatch | None:
    """Return the input to encode before the step's tokens are computed; None if there is none."""
    works = [work for work in plan if work.encodes]
    if not works:
        return None
    features = [_features(work).features for work in works]
    return EncoderBatch(
        features=np.concatenate(features),
        starts=np.cumsum([0, *map(len, features)], dtype=np.int64),
        tables=tuple(encoder_cache.table(work.sequence.id) for work in works),
    )


def _cross_context(plan: Sequence[Work], encoder_cache: EncoderCache) -> CrossContext | None:
    if plan[0].sequence.features is None:
        return None
    works = [work.sequence for work in plan for _ in range(work.sequence.task.width)]
    return cross_context(works, encoder_cache)


def cross_context(
    hypotheses: Iterable[EngineSequence], encoder_cache: EncoderCache
) -> CrossContext:
    """Return what the decoder of a speech model cross-attends to, one entry for each hypothesis given."""
    tables, rows = [], []
    for sequence in hypotheses:
        assert sequence.features is not None
        tables.append(encoder_cache.table(sequence.id))
        rows.append(sequence.features.rows)
    return CrossContext(tables=tuple(tables), rows=np.array(rows, dtype=np.int64))


def _features(work: Work) -> EncoderFeatures:
    assert work.sequence.features is not None
    return work.sequence.features
