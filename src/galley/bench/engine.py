"""Measurements of the engine's prefill and decode speed, step by step."""

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from galley.bench.report import Machine, Point, Run, Step, make_point
from galley.engine.engine import Engine
from galley.engine.loaders import load_engine
from galley.errors import EngineError, SettingsError
from galley.formats.source import resolve_model
from galley.ops import background
from galley.service.requests import expand
from galley.settings.engine import EngineSettings
from galley.types import Output, SamplingParams
from galley.types.model_info import ModelInfo

_WARM_UP_TOKENS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The workload that :class:`EngineBench` measures.

    Attributes:
        prompt: tokens of the prompt whose prefill is measured.
        decode: decode steps measured at each batch size.
        context: tokens of each sequence when decoding begins.
        batches: batch sizes: numbers of sequences that decode together.
        repeats: measurements of each figure, after one warm-up.
        seed: seed of the random prompts.
    """

    prompt: int = 512
    decode: int = 64
    context: int = 64
    batches: tuple[int, ...] = (1, 4, 8, 16, 32)
    repeats: int = 5
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.batches or min(self.batches) < 1:
            raise SettingsError("batch must name at least one size, each at least 1")

    @property
    def runs(self) -> int:
        """Number of measurements, warm-ups included."""
        return (1 + len(self.batches)) * (1 + self.repeats)


class EngineBench:
    """Benchmarks one phase at a time on an engine, with greedy sampling and no end-of-sequence tokens."""

    def __init__(self, settings: EngineSettings) -> None:
        """Load the model, with prefix cache and speculation off, so that every token is computed alone.

        Raises:
            ModelError, SettingsError: the model or the settings cannot be used.
        """
        folder = resolve_model(settings.model, revision=settings.revision)
        plain = replace(settings, prefix_cache=False, speculation="off", draft_model=None)
        self._engine: Engine = load_engine(plain, folder)
        # A first start writes its packed weights now, so that this is not measured.
        background.finish()

    @property
    def info(self) -> ModelInfo:
        """Description of the model."""
        return self._engine.info

    def prefill(self, prompt: list[int]) -> list[Step]:
        """Return the steps from a prompt to its first token.

        Raises:
            RequestError: the prompt does not fit the context.
        """
        ids = self._add([prompt])
        steps: list[Step] = []
        computed = 0
        while computed < len(prompt):
            rows = -self._engine.stats.prefill_tokens
            seconds, forward, outputs = self._step()
            rows += self._engine.stats.prefill_tokens
            computed += rows
            steps.append(Step(seconds, forward, rows, len(outputs), computed))
        self._engine.abort(ids)
        return steps

    def decode(self, prompts: Sequence[list[int]], tokens: int) -> list[Step]:
        """Return the first ``tokens`` steps in which all sequences decode together.

        Raises:
            RequestError: a prompt does not fit the context.
            EngineError: a sequence ended early at the limit of the context or the KV cache.
        """
        ids = self._add(prompts)
        known = {request_id: len(prompt) for request_id, prompt in zip(ids, prompts, strict=True)}
        begun: set[str] = set()
        steps: list[Step] = []
        while len(steps) < tokens:
            together = len(begun) == len(ids)
            context = sum(known.values())
            seconds, forward, outputs = self._step()
            for output in outputs:
                begun.add(output.request_id)
                known[output.request_id] += len(output.tokens)
            if together:
                _check(outputs, len(ids))
                steps.append(Step(seconds, forward, len(ids), len(ids), context))
        self._engine.abort(ids)
        return steps

    def join(
        self, others: Sequence[list[int]], arrivals: Sequence[list[int]], tokens: int
    ) -> tuple[list[float], list[Step]]:
        """Measure prompts that arrive, one after another, while other sequences decode.

        Returns:
            For each newcomer the seconds from its arrival to its first token; and the ``tokens`` steps in
            which the last of them and all others decode together.

        Raises:
            RequestError, EngineError: as :meth:`decode`.
        """
        ids = self._add(others)
        begun: set[str] = set()
        while len(begun) < len(ids):
            begun.update(output.request_id for output in self._step()[2])
        waits = []
        for i, arrival in enumerate(arrivals):
            [joined] = self._add([arrival])
            began = time.perf_counter()
            while joined not in {output.request_id for output in self._step()[2]}:
                pass
            waits.append(time.perf_counter() - began)
            if i + 1 < len(arrivals):
                self._engine.abort([joined])
            else:
                ids.append(joined)
        steps = []
        for _ in range(tokens):
            seconds, forward, outputs = self._step()
            _check(outputs, len(ids))
            steps.append(Step(seconds, forward, len(ids), len(ids), 0))
        self._engine.abort(ids)
        return waits, steps

    def _add(self, prompts: Sequence[list[int]]) -> list[str]:
        params = SamplingParams(temperature=0.0, ignore_eos=True, seed=0)
        requests = [
            expand(prompt, params, self.info, request_id=uuid.uuid4().hex)[0] for prompt in prompts
        ]
        for request in requests:
            self._engine.add(request)
        return [request.id for request in requests]

    def _step(self) -> tuple[float, float, list[Output]]:
        """Run one engine step; return (seconds of the step, seconds of the executor, outputs)."""
        forward = -self._engine.stats.forward_seconds
        began = time.perf_counter()
        outputs = self._engine.step()
        seconds = time.perf_counter() - began
        return seconds, forward + self._engine.stats.forward_seconds, outputs


def _check(outputs: Sequence[Output], batch: int) -> None:
    ended = next((output for output in outputs if output.finish_reason), None)
    if ended is not None or len(outputs) != batch:
        reason = ended.error or ended.finish_reason if ended else "preempted"
        raise EngineError(
            f"a sequence stopped decoding during the measurement ({reason}); raise max_model_len "
            "or kv_cache_tokens, or lower --batch, --context or --decode"
        )


def bench_engine(
    settings: EngineSettings,
    workload: Workload,
    machine: Machine,
    read_rate: Callable[[], float],
    on_run: Callable[[str], None] = lambda name: None,
) -> tuple[ModelInfo, list[Point]]:
    """Benchmark prefill, then decode at each batch size.

    Args:
        settings: of the engine.
        workload: what is measured.
        machine: the machine whose peak rates the figures are compared with.
        read_rate: samples the machine's read bandwidth, in bytes a second, around each repeat.
        on_run: called with the name of each run.

    Raises:
        SettingsError: a batch is larger than the engine runs.
        ModelError, RequestError, EngineError: see :class:`EngineBench`.
    """
    if max(workload.batches) > settings.running_limit:
        raise SettingsError(
            f"batch {max(workload.batches)} exceeds max_running ({settings.running_limit})"
        )
    bench = EngineBench(settings)
    random = np.random.default_rng(workload.seed)
    program = bench.info.require_program()
    costs, activations = program.costs, program.activations

    def prompts(count: int, tokens: int) -> list[list[int]]:
        ids = random.integers(bench.info.require_text().vocab_size, size=(count, tokens))
        return [[int(token) for token in row] for row in ids]

    def repeated(name: str, run: Callable[[bool], list[Step]]) -> list[Run]:
        runs = []
        for i in range(workload.repeats + 1):
            before = read_rate()
            steps = run(i == 0)
            runs.append(Run(steps, (before + read_rate()) / 2))
            on_run(name)
        return runs[1:]

    def prefill(warm_up: bool) -> list[Step]:
        return bench.prefill(prompts(1, workload.prompt)[0])

    def decode(batch: int) -> Callable[[bool], list[Step]]:
        return lambda warm_up: bench.decode(
            prompts(batch, workload.context),
            min(_WARM_UP_TOKENS, workload.decode) if warm_up else workload.decode,
        )

    runs = repeated("prefill", prefill)
    points = [make_point("prefill", 1, runs, costs, machine, activations)]
    for batch in workload.batches:
        runs = repeated(f"decode {batch}", decode(batch))
        points.append(make_point("decode", batch, runs, costs, machine, activations))
    return bench.info, points
