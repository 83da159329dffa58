"""The engine: sequences in, tokens out, one step at a time."""

import math
import time
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from galley.engine.batch import assemble, assemble_windows
from galley.engine.beams import BeamSearch
from galley.engine.kv import KVCache
from galley.engine.sampler import token_logprob
from galley.engine.scheduler import Scheduler, Work
from galley.engine.sequence import MAX_FEATURE, Sequence, Window
from galley.ops.draws import NO_TOKEN, Draws
from galley.ops.executor import Executor, Logits
from galley.types import (
    LIVE_PRIORITY,
    EngineRequest,
    EngineStats,
    FinishReason,
    ModelInfo,
    Output,
    Timing,
)

_NO_CHOICE: Final = "the logits leave no token to choose: NaN, infinite, or all of them excluded"


class Engine:
    """Not thread-safe: one thread adds, aborts and steps. Requests come from ``requests.expand``."""

    def __init__(
        self,
        executor: Executor,
        kv: KVCache,
        info: ModelInfo,
        *,
        max_batch_tokens: int,
        max_running: int,
        priority_steps: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.info = info
        self._executor = executor
        self._kv = kv
        self._scheduler = Scheduler(kv, max_batch_tokens=max_batch_tokens, max_running=max_running)
        self._priority_steps = priority_steps
        self._clock = clock
        self._sequences: dict[str, Sequence] = {}
        self._steps = 0
        self._prefill_tokens = 0
        self._decode_tokens = 0
        self._encoder_rows = 0
        self._refused: list[Output] = []  # of requests that never became sequences

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._sequences or self._refused)

    @property
    def is_live(self) -> bool:
        """Whether somebody speaks while it works."""
        return any(s.request.priority <= LIVE_PRIORITY for s in self._sequences.values())

    def add(self, request: EngineRequest) -> None:
        """Queue a request; its tokens come out of later steps."""
        assert request.id not in self._sequences, request.id
        window = self._window(request)
        if window is not None and not window.usable:
            error = f"the window holds features that are no numbers or beyond {MAX_FEATURE:g}"
            self._refused.append(Output(request_id=request.id, finish_reason="error", error=error))
            return
        sampling = request.sampling
        eos = () if sampling.ignore_eos else self.info.eos_token_ids
        stop_ids = frozenset((*eos, *sampling.stop_token_ids))
        order = self._steps + request.priority * self._priority_steps
        sequence = Sequence(request, order, self._clock(), stop_ids=stop_ids, window=window)
        self._sequences[request.id] = sequence
        self._scheduler.add(sequence)

    def _window(self, request: EngineRequest) -> Window | None:
        if request.encoder_input is None:
            return None
        assert self.info.speech is not None
        return Window.of(
            request.encoder_input, self.info.speech.rows_of(request.encoder_input.frames)
        )

    def abort(self, request_ids: Iterable[str]) -> None:
        """Forget requests, wherever they are; unknown ids have finished already."""
        for request_id in request_ids:
            self._refused = [o for o in self._refused if o.request_id != request_id]
            if sequence := self._sequences.pop(request_id, None):
                self._scheduler.remove(sequence)

    def step(self) -> list[Output]:
        """Schedule, assemble, run, sample, commit: what came out for each sequence that advanced."""
        if self._refused:
            refused, self._refused = self._refused, []
            return refused
        plan = self._scheduler.schedule()
        assert plan, "there is work, and every request fits the cache by itself"
        self._account(plan)
        windows, aligned = None, list[Work]()
        if self.info.speech is not None:
            windows = assemble_windows(plan, self._kv)
            aligned = [work for work in plan if work.sequence.aligns]
            plan = [work for work in plan if not work.sequence.aligns]
        try:
            if copies := self._kv.take_copies():
                self._executor.copy_blocks(copies)
            if windows is not None:
                self._executor.encode(windows)
            outputs = self._align(aligned) if aligned else []
            logits = self._executor.forward(assemble(plan, self._kv)) if plan else None
        except BaseException:
            # An interrupt in a notebook: the blocks of this step were promised and never filled.
            self._kv.forget_prefixes()
            raise
        if logits is not None:
            outputs += self._commit(plan, logits)
        self._steps += 1
        return outputs

    @property
    def stats(self) -> EngineStats:
        """As of now."""
        return EngineStats(
            running=len(self._scheduler.running),
            waiting=self._scheduler.waiting,
            kv_used_blocks=self._kv.used,
            kv_cached_blocks=self._kv.cached,
            kv_total_blocks=self._kv.total,
            steps=self._steps,
            prefill_tokens=self._prefill_tokens,
            decode_tokens=self._decode_tokens,
            encoder_rows=self._encoder_rows,
            prefix_query_tokens=self._kv.queried_tokens,
            prefix_hit_tokens=self._kv.hit_tokens,
            preemptions=self._scheduler.preemptions,
            forward_seconds=self._executor.forward_seconds,
        )

    def close(self) -> None:
        """Nothing to do: all that the engine holds is memory, and goes with it."""

    def _account(self, plan: list[Work]) -> None:
        now = self._clock()
        for work in plan:
            sequence = work.sequence
            if not sequence.started:
                sequence.started = now
                sequence.cached = min(sequence.computed, len(sequence.request.prompt))
            if work.encodes and sequence.window:
                self._encoder_rows += sequence.window.rows
            if work.count == 1 and (sequence.first_token or sequence.generated):
                self._decode_tokens += 1 if sequence.plain else sequence.width
            else:
                self._prefill_tokens += work.count

    def _commit(self, plan: list[Work], logits: Logits) -> list[Output]:
        """Count the step's tokens as computed; a token more where a sequence has caught up."""
        outputs: list[Output] = []
        ready: list[Sequence] = []
        rows: list[int] = []
        row = 0
        for work in plan:
            sequence = work.sequence
            row += work.wanted
            if not sequence.plain:
                self._score(work, logits[row - work.wanted : row])
                self._probe(work, logits[row - work.wanted : row])
            sequence.computed += work.count
            if work.completes and sequence.beams is not None:
                beams = logits[row - sequence.width : row]
                outputs += self._search(sequence, sequence.beams, beams)
            elif work.completes:
                ready.append(sequence)
                rows.append(row - 1)
        return outputs + self._choose(ready, rows, logits) if ready else outputs

    def _choose(self, ready: list[Sequence], rows: list[int], logits: Logits) -> list[Output]:
        """The next token of each, by its row of the logits."""
        raw = self._adjust(ready, rows, logits)
        draws = Draws(rows, [len(s.tokens) for s in ready], b"".join([s.how for s in ready]))
        tokens = self._executor.choose(logits, draws)
        now = self._clock()
        outputs = []
        for sequence, token, row in zip(ready, tokens, rows, strict=True):
            output = self._advance(sequence, token, now)
            if not sequence.plain:
                output = self._explain(sequence, output, raw.get(row), logits[row])
            outputs.append(output)
        return outputs

    def _adjust(self, ready: list[Sequence], rows: list[int], logits: Logits) -> dict[int, Logits]:
        """Apply penalties, bias and rules. Rows as they were before, where log-probabilities are wanted."""
        raw: dict[int, Logits] = {}
        for sequence, row in zip(ready, rows, strict=True):
            if sequence.plain:
                continue
            if sequence.request.sampling.logprobs is not None:
                raw[row] = logits[row].copy()
            if sequence.adjuster is not None:
                sequence.adjuster.apply(logits[row])
        return raw

    def _align(self, plan: list[Work]) -> list[Output]:
        """Where the alignment heads look; what came out for each sequence that is done with it."""
        attention = self._executor.align(assemble(plan, self._kv))
        outputs = []
        row = 0
        for work in plan:
            sequence, window = work.sequence, work.sequence.window
            assert window is not None
            sequence.attention.append(attention[row : row + work.count, :, : window.rows])
            row += work.count
            sequence.computed += work.count
            if work.completes:
                outputs.append(self._output(sequence, [], "length", self._clock()))
        return outputs

    def _score(self, work: Work, logits: Logits) -> None:
        """Log-probabilities of the prompt's tokens after the first; row i scores token i + 1."""
        sequence = work.sequence
        prompt, top = sequence.request.prompt, sequence.request.sampling.prompt_logprobs
        if top is None:
            return
        end = sequence.computed + work.count
        for token, row in zip(prompt[end - work.wanted + 1 : end + 1], logits, strict=False):
            sequence.scored.append(token_logprob(row, token, top))

    def _probe(self, work: Work, logits: Logits) -> None:
        """The probability of no speech, if the row that says it is among these."""
        sequence = work.sequence
        if not sequence.probes:
            return
        assert sequence.request.sampling.no_speech is not None
        position, token = sequence.request.sampling.no_speech
        row = position - (sequence.computed + work.count - work.wanted)
        if 0 <= row < work.wanted:
            sequence.no_speech_prob = math.exp(token_logprob(logits[row], token, 0).logprob)

    def _explain(
        self, sequence: Sequence, output: Output, raw: Logits | None, adjusted: Logits
    ) -> Output:
        """With what the request wants to know of the logits [vocab] that brought the token."""
        if not output.tokens:
            return output
        (token,), sampling = output.tokens, sequence.request.sampling
        logprobs, scores = None, None
        if raw is not None and sampling.logprobs is not None:
            logprobs = [token_logprob(raw, token, sampling.logprobs)]
        if sampling.scores:
            scores = [token_logprob(adjusted, token, 0).logprob]
        return msgspec.structs.replace(output, logprobs=logprobs, scores=scores)

    def _advance(self, sequence: Sequence, token: int, now: float) -> Output:
        """One token more; say what became of the sequence."""
        known = len(sequence.tokens)
        if known >= sequence.most:
            return self._output(sequence, [], "length", now)
        if token == NO_TOKEN:
            return self._output(sequence, [], "error", now, error=_NO_CHOICE)
        sequence.tokens.append(token)
        if sequence.adjuster is not None:
            sequence.adjuster.accept(token)
        reason: FinishReason | None = None
        if token in sequence.stop_ids:
            reason = "stop"
        elif known + 1 >= sequence.most:
            reason = "length"
        elif sequence.plain and sequence.first_token:  # in the midst of most streams
            return Output(request_id=sequence.id, tokens=[token], cached_tokens=sequence.cached)
        return self._output(sequence, [token], reason, now)

    def _search(self, sequence: Sequence, beams: BeamSearch, logits: Logits) -> list[Output]:
        """Advance a beam search by a token; what came out, once it is over."""
        prompt, sampling = sequence.request.prompt, sequence.request.sampling
        now = self._clock()
        if sampling.max_tokens == 0:
            return [self._output(sequence, [], "length", now)]
        parents = beams.advance(logits)
        if parents is not None:
            self._kv.fork(sequence.id, parents)
            sequence.tokens = [*prompt, *beams.running[0].tokens]
            return []
        if not beams.finished:
            return [self._output(sequence, [], "error", now, error=_NO_CHOICE)]
        _, hypothesis = beams.finished[0]
        tokens, scores = list(hypothesis.tokens), list(hypothesis.scores)
        reason: FinishReason = "stop" if tokens[-1] in sequence.stop_ids else "length"
        return [self._output(sequence, tokens, reason, now, scores=scores)]

    def _output(
        self,
        sequence: Sequence,
        tokens: list[int],
        finish_reason: FinishReason | None,
        now: float,
        *,
        scores: list[float] | None = None,
        error: str | None = None,
    ) -> Output:
        is_first = not sequence.first_token
        if is_first:
            sequence.first_token = now
        if finish_reason:
            del self._sequences[sequence.id]
            self._scheduler.remove(sequence)
        return Output(
            request_id=sequence.id,
            tokens=tokens,
            prompt_logprobs=sequence.scored if is_first and sequence.scores_prompt else None,
            scores=scores,
            no_speech_prob=sequence.no_speech_prob if is_first else None,
            alignment=sequence.alignment,
            cached_tokens=sequence.cached,
            finish_reason=finish_reason,
            error=error,
            timing=Timing(
                queued=sequence.started - sequence.arrival,
                first_token=sequence.first_token - sequence.arrival,
                total=now - sequence.arrival,
                preemptions=sequence.preemptions,
            ),
        )
