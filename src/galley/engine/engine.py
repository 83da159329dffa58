"""The engine: requests go in and tokens come out, one step at a time."""

import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Final

import msgspec

from galley.engine.adapters import AdapterPool
from galley.engine.assemble import assemble
from galley.engine.blocks import check_blocks
from galley.engine.commit import commit
from galley.engine.encoder_cache import MAX_FEATURE, EncoderCache, EncoderFeatures
from galley.engine.following import RunningStep, dropping_ended, following_of
from galley.engine.kv import KVCache
from galley.engine.prefix_tier import PrefixTier
from galley.engine.preparing import Prepared, Preparing
from galley.engine.row_counts import RowCounts, timing_of
from galley.engine.scheduler import Scheduler, Work
from galley.engine.sequence import Sequence
from galley.engine.speculation import EngineSpeculation
from galley.engine.step_meter import StepMeter
from galley.errors import EngineError, same_id
from galley.ops.executor import Closable, Executor
from galley.types import (
    LIVE_PRIORITY,
    Adapter,
    Align,
    Decoded,
    EngineRequest,
    Generate,
    Output,
)
from galley.types.block_hashes import BlockContent
from galley.types.engine_stats import EngineStats
from galley.types.model_info import ModelInfo, TransferInfo
from galley.types.transfers import KVPeer, TransferPlan

_GATHERING_SECONDS: Final = 0.002
"""How long a step sleeps while a static batch waits to fill, or all requests are being prepared."""


class Engine:
    """Runs the model's requests step by step.

    Not thread-safe: one thread adds, aborts and steps. Requests come from :mod:`galley.service.requests`
    or, for speech models, :mod:`galley.service.speech_requests`.
    """

    def __init__(
        self,
        executor: Executor,
        kv: KVCache,
        encoder_cache: EncoderCache,
        scheduler: Scheduler,
        info: ModelInfo,
        *,
        priority_steps: int,
        meter: StepMeter | None = None,
        speculation: EngineSpeculation | None = None,
        preparing: Preparing | None = None,
    ) -> None:
        self.info = info
        self._hold_seconds = 0.0
        self._executor = executor
        self._running: RunningStep | None = None
        self._warm_up = (executor.forward_seconds, executor.sample_seconds)
        self._kv = kv
        self._encoder_cache = encoder_cache
        self._scheduler = scheduler
        self._priority_steps = priority_steps
        self._meter = meter or StepMeter()
        self._speculation = speculation or EngineSpeculation()
        self._following = following_of(executor, scheduler, self._speculation, self._meter)
        self._sequences: dict[str, Sequence] = {}
        self._preparing = Preparing() if preparing is None else preparing
        self._grammars, self._adapters = self._preparing.grammars, self._preparing.adapters
        self._tier = self._preparing.tier
        self._steps = 0
        self._counts = RowCounts()
        self._refused: list[Output] = []  # outputs of requests that never became sequences

    @property
    def executor(self) -> Executor:
        """The executor that runs the model, so that it can be measured before there are requests."""
        return self._executor

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        waits = self._tier is not None and self._tier.has_work
        unfinished = self._sequences or self._refused or self._preparing or self._running
        return waits or bool(unfinished)

    @property
    def is_live(self) -> bool:
        """Whether any request processes live audio."""
        return any(s.request.priority <= LIVE_PRIORITY for s in self._sequences.values())

    def exchange_blocks(self, plan: TransferPlan, wake: Callable[[], None]) -> None:
        """See :class:`galley.service.protocol.TransferringEngine`."""
        port = self._preparing.exchange_blocks(plan, wake)
        self._tier = self._preparing.tier
        self._hold_seconds = plan.hold_seconds
        found = TransferInfo(role=plan.role, host=plan.host, port=port)
        self.info = msgspec.structs.replace(self.info, transfers=found)

    def add(self, request: EngineRequest) -> None:
        """Queue a request; later steps return its tokens.

        Raises:
            Conflict: an unfinished request has the same id.
        """
        if request.id in self._sequences or request.id in self._preparing:
            raise same_id(request.id)
        if request.offered:
            keep = max(request.keep_seconds, self._hold_seconds)
            request = msgspec.structs.replace(request, keep_seconds=keep)
        if not self._preparing.add(request):
            self._begin(Prepared(request, time.monotonic()))

    def load_adapter(self, adapter: Adapter) -> Future[object]:
        """Read and check a LoRA adapter while steps continue.

        Returns:
            A future that is done when requests may name the adapter; it raises ModelError if the adapter
            cannot be used.
        """
        return self._adapter_pool.load(adapter)

    def unload_adapter(self, adapter: Adapter) -> None:
        """Free the adapter's slot; requests that already hold the adapter run to completion."""
        self._adapter_pool.unload(adapter)

    @property
    def _adapter_pool(self) -> AdapterPool:
        if self._adapters is None:
            raise EngineError("the engine was started without adapters; set max_adapters")
        return self._adapters

    def _begin(self, prepared: Prepared) -> None:
        request, arrival, grammar, slot = prepared
        payload = request.payload
        assert isinstance(payload, Decoded), request.id
        features = self._features(request, payload)
        if features is not None and not features.usable:
            error = f"the audio features contain NaN or values above {MAX_FEATURE:g}"
            self._refused.append(Output(request_id=request.id, finish_reason="error", error=error))
            return
        sequence = Sequence(
            request,
            order=self._steps + request.priority * self._priority_steps,
            arrival=arrival,
            stop_ids=self._stop_ids(payload),
            features=features,
            grammar=grammar,
            adapter=slot,
        )
        if not self._sequences:
            self._meter.awake()
        self._sequences[request.id] = sequence
        self._speculation.begin(sequence)
        if self._tier is None or not self._tier.load(sequence):
            self._scheduler.add(sequence)

    def _stop_ids(self, payload: Decoded) -> frozenset[int]:
        if isinstance(payload, Align):
            return frozenset()
        eos = () if payload.sampling.ignore_eos else self.info.require_text().eos_token_ids
        return frozenset((*eos, *payload.sampling.stop_token_ids))

    def _features(self, request: EngineRequest, payload: Decoded) -> EncoderFeatures | None:
        given = None if isinstance(payload, Generate) else payload.encoder_input
        speech = self.info.speech
        assert (given is None) == (speech is None), request.id
        if given is None or speech is None:
            return None
        return EncoderFeatures.of(given, speech.rows_of(given.frames), request.cache_salt)

    def abort(self, request_ids: Iterable[str]) -> None:
        """Drop requests, wherever they are; unknown ids have already finished."""
        for request_id in request_ids:
            self._preparing.abort(request_id)
            self._refused = [o for o in self._refused if o.request_id != request_id]
            if sequence := self._sequences.pop(request_id, None):
                self._speculation.end(sequence)  # it may have ended with a stop string
                if self._tier is not None and self._tier.abort(sequence):
                    self._kv.forget(sequence.id)
                else:
                    self._scheduler.remove(sequence)
                self._preparing.release(sequence.request)

    def step(self) -> list[Output]:
        """Run one step and return an output for each sequence that advanced.

        A step schedules, assembles, submits, collects, commits and emits. On a device, the step after it
        may be submitted before it is collected (``following.py``).
        """
        if self._running is None and (others := self._before_step()) is not None:
            return others
        meter = self._meter
        meter.begin()
        try:
            running = self._running or self._start()
            if running is None:
                time.sleep(_GATHERING_SECONDS)
                return []
            self._running = self._follow(running)
            result = self._executor.collect(running.submitted)
            plan = running.plan
            if running.follows:
                plan = dropping_ended(plan, self._is_live)
                self._counts.count(plan)
            if not plan:  # all of its sequences have ended
                meter.awake()
                return []
            if result.encoded is not None:
                self._speculation.encoded(plan, result.encoded)
            meter.executed(plan)
        except BaseException:
            # Such as an interrupt in a notebook: this step's blocks were claimed but never filled.
            self._running = None
            self._scheduler.preempt_all()
            self._kv.take_copies()
            self._kv.forget_all()
            raise
        outputs = commit(plan, result, self._kv)
        if running.follows:
            for work in plan:
                self._scheduler.settle(work.sequence)
        if self._tier is not None:
            self._tier.save()
        self._speculation.settle(plan, meter.seconds)
        self._steps += 1
        outputs = self._emit(plan, outputs)
        meter.end()
        return outputs

    def _before_step(self) -> list[Output] | None:
        """Take in requests that have become ready; return None if a sequence can run.

        Otherwise return the outputs of refused requests, or none after a moment's sleep.
        """
        if self._preparing:
            self._begin_prepared()
        if self._refused:
            refused, self._refused = self._refused, []
            return refused
        if self._tier is not None:
            self._take_loaded(self._tier)
        # Perhaps every request waits for its grammar or adapter.
        if not self._sequences and self._preparing:
            self._preparing.pause(_GATHERING_SECONDS)
            return []
        if self._tier is not None and not (self._scheduler.running or self._scheduler.waiting):
            self._tier.save()
            self._tier.pause(_GATHERING_SECONDS)
            return []
        return None

    def _start(self) -> RunningStep | None:
        """Plan and submit a step; return None if all sequences wait, for a batch to fill or for blocks."""
        plan = self._scheduler.schedule()
        if not plan and self._may_wait:
            return None
        assert plan, "there is work, and every single request fits the cache"
        self._counts.count(plan)
        batch, sampling = assemble(plan, self._kv, self._encoder_cache)
        if sampling.mask_fills and self._grammars is not None:
            sampling.masks_filled = self._grammars.fill(sampling.mask_fills)
        self._meter.assembled()
        return RunningStep(plan, self._executor.submit(batch, sampling))

    def _follow(self, running: RunningStep) -> RunningStep | None:
        """Submit the next step if all that it depends on is the tokens that ``running`` draws."""
        if self._following is None or self._tier is not None or self._refused or self._preparing:
            return None
        return self._following.submit_after(running, self._is_live)

    def _is_live(self, sequence: Sequence) -> bool:
        """Return whether the sequence has been neither aborted nor finished."""
        return self._sequences.get(sequence.id) is sequence

    def _take_loaded(self, tier: PrefixTier) -> None:
        """Schedule the sequences whose prefixes have been read; the time until then is nobody's cost."""
        scheduler = self._scheduler
        if not (scheduler.running or scheduler.waiting):
            self._meter.awake()
        for sequence in tier.ready(len(scheduler.running)):
            scheduler.add(sequence)

    @property
    def _may_wait(self) -> bool:
        """Whether there may be nothing to plan although there is work."""
        return self._scheduler.gathers or (self._tier is not None and self._tier.holds)

    def _begin_prepared(self) -> None:
        """Turn requests whose grammars and adapters are ready into sequences."""
        for one in self._preparing.ready():
            if isinstance(one, Output):
                self._refused.append(one)
            else:
                self._begin(one)

    def check_blocks(self) -> None:
        """Assert conservation: each block is free, cached, or referenced once per table that holds it."""
        loading = [] if self._tier is None else self._tier.held()
        check_blocks(self._kv.pool, [*self._kv.held(), *self._encoder_cache.held(), *loading])
        if self._kv.states is not None:
            self._kv.states.check()

    @property
    def stats(self) -> EngineStats:
        """The engine's current statistics."""
        prompt, recent = self._speculation.counts("prompt"), self._speculation.counts("recent")
        grammar = self._speculation.counts("grammar")
        experts = self._executor.expert_counts()
        loading, counts = (0, {}) if self._tier is None else (self._tier.waiting, self._tier.counts)
        draft, drafted = self._speculation.counts("draft"), self._speculation.draft_seconds
        return EngineStats(
            running=len(self._scheduler.running),
            waiting=self._scheduler.waiting + len(self._preparing) + loading,
            kv_used_blocks=self._kv.pool.used,
            kv_cached_blocks=self._kv.pool.cached,
            kv_total_blocks=self._kv.pool.total,
            steps=self._steps,
            prefill_tokens=self._counts.prefill,
            decode_tokens=self._counts.decode,
            encoder_rows=self._counts.encoder,
            prefix_query_tokens=self._kv.queried_tokens,
            prefix_hit_tokens=self._kv.hit_tokens,
            preemptions=self._scheduler.preemptions,
            forward_seconds=self._executor.forward_seconds - self._warm_up[0] + drafted,
            sample_seconds=self._executor.sample_seconds - self._warm_up[1],
            schedule_seconds=self._meter.schedule_seconds - drafted,
            emit_seconds=self._meter.emit_seconds,
            busy_seconds=self._meter.busy_seconds,
            batch_sequences=self._meter.sequences,
            batch_tokens=self._meter.tokens,
            prompt_proposed_tokens=prompt.proposed,
            prompt_accepted_tokens=prompt.accepted,
            recent_proposed_tokens=recent.proposed,
            recent_accepted_tokens=recent.accepted,
            grammar_proposed_tokens=grammar.proposed,
            grammar_accepted_tokens=grammar.accepted,
            draft_proposed_tokens=draft.proposed,
            draft_accepted_tokens=draft.accepted,
            adapters_loaded=0 if self._adapters is None else self._adapters.loaded,
            adapter_names=() if self._adapters is None else self._adapters.names,
            adapter_loads=0 if self._adapters is None else self._adapters.loads,
            adapter_evictions=0 if self._adapters is None else self._adapters.evictions,
            expert_cache_bytes=experts.bytes,
            expert_hits=experts.hits,
            expert_misses=experts.misses,
            expert_evictions=experts.evictions,
            expert_read_bytes=experts.read_bytes,
            expert_read_seconds=experts.read_seconds,
            **counts,
        )

    def take_block_changes(self) -> dict[bytes, bool]:
        """Return changes of the prefix cache, see :class:`galley.service.protocol.PublishingEngine`."""
        return self._kv.pool.take_changes()

    def record_block_contents(self) -> None:
        """See :class:`galley.service.protocol.PublishingEngine`."""
        self._kv.record_contents()

    def take_block_contents(self) -> dict[bytes, BlockContent]:
        """See :class:`galley.service.protocol.PublishingEngine`."""
        return self._kv.take_contents()

    def close(self) -> None:
        """Stop threads and other ranks; everything else that the engine holds is memory.

        Blocks that are not on disk yet are written first, for less than a second.
        """
        if self._tier is not None:
            self._tier.close()
        if self._grammars is not None:
            self._grammars.close()
        if self._adapters is not None:
            self._adapters.close()
        if isinstance(self._executor, Closable):
            self._executor.close()

    def _emit(self, plan: list[Work], outputs: list[Output]) -> list[Output]:
        """Record first tokens, drop finished sequences, and attach timings where they are needed."""
        now = time.monotonic()
        reported = {output.request_id for output in outputs}
        for work in plan:  # a beam search has tokens long before it outputs any
            sequence = work.sequence
            if work.completes and sequence.generated and sequence.id not in reported:
                sequence.first_token = sequence.first_token or now
        for i, output in enumerate(outputs):
            sequence = self._sequences[output.request_id]
            if sequence.first_token and not sequence.timed and output.finish_reason is None:
                continue  # in the middle of a stream
            sequence.first_token = sequence.first_token or now
            timing = timing_of(sequence, now)
            peer = self._offered(sequence) if output.finish_reason else None
            outputs[i] = msgspec.structs.replace(output, timing=timing, kv_peer=peer)
            if output.finish_reason:
                del self._sequences[sequence.id]
                self._speculation.end(sequence)
                self._scheduler.remove(sequence)
                self._preparing.release(sequence.request)
        return outputs

    def _offered(self, sequence: Sequence) -> KVPeer | None:
        """Return where the blocks of a request's prompt can be fetched, if they are for a peer."""
        here, whole = self.info.transfers, min(sequence.computed, len(sequence.prompt))
        return here.at(whole) if here is not None and sequence.request.offered else None
