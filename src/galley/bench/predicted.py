"""Comparison of a plan with this machine: calibrates with short runs, predicts other runs, measures those.

Calibration decodes a few short sequences and computes short prompts, which gives the shares of the
machine's peaks that linear layers and attention reach. The workload that is predicted and measured is
different: prompts that arrive while others decode, longer contexts, other batches.
"""

import multiprocessing
import re
import statistics
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal, cast

import numpy as np

from galley.bench.engine import EngineBench
from galley.bench.machine import read_rate
from galley.bench.report import Machine as Peaks
from galley.bench.report import Step
from galley.engine.read_model import read_model
from galley.errors import SettingsError
from galley.formats.source import resolve_model
from galley.machine import available_cores, available_memory, bytes_text
from galley.ops.cpu import SCRATCH_BYTES
from galley.plan.hardware import Machine
from galley.plan.predict import GIB, predict
from galley.plan.sizes import ModelSizes
from galley.plan.steps import Load, Shares, peak_rate
from galley.settings.engine import EngineSettings, KVType, WeightDType
from galley.types.model_info import ModelInfo

BATCHES: Final = (1, 8, 32)
PROMPT: Final = 128
OUTPUT: Final = 32
"""Defaults of the measurement: about a minute for a billion parameters."""

_SHORT: Final = 16
"""Tokens of context when calibrating decoding."""

_LONG: Final = 384
"""Tokens of context when calibrating attention."""

_DECODED: Final = (1, 3, 6, 12, 24, 48)
"""Sequences that decode together when calibrating."""

_ATTENDING: Final = 4
_PREFILLS: Final = 3
_PREFILLED: Final = 256
"""Tokens of a prompt when calibrating prefill."""

_STEPS: Final = 8
_SLACK: Final = 64
"""Spare tokens for each sequence, in addition to the requested ones."""

_ARRIVALS: Final = 3
_SAMPLE_BYTES: Final = 128 << 20
_LEAST_SAMPLE: Final = 1 << 20
_HUGE_PAGE: Final = 2 << 20
_CACHED_BYTES: Final = 32 << 20
"""Bytes of weights that can stay in the CPU's caches, so that memory bandwidth does not limit the speed."""

_SHORTEST: Final = 1e-6
"""Shortest time in seconds that is measured."""

_MAPPING: Final = re.compile(r"[0-9a-f]+-[0-9a-f]+ ")

Quantity = Literal["memory", "TTFT", "TPOT"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A prediction and its measurement: bytes of memory, or seconds.

    Attributes:
        batch: requests at a time. TTFT is that of a prompt that arrives while all others decode.
    """

    precision: str
    batch: int
    quantity: Quantity
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        """Relative error of the prediction, as a share of the measured value."""
        return self.predicted / self.measured - 1

    def text(self, value: float) -> str:
        """Return a value of this quantity as text for people."""
        return bytes_text(value) if self.quantity == "memory" else f"{1e3 * value:.1f} ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measuring:
    """The comparison to run.

    Attributes:
        settings: of the engine; precision, KV type and sizes are set by the comparison.
        prompt, output: tokens of a request.
        batches: requests at a time.
        peaks: peak rates of the machine.
    """

    settings: EngineSettings
    kv_dtype: KVType
    prompt: int
    output: int
    batches: tuple[int, ...]
    peaks: Peaks


def compare(
    measuring: Measuring,
    sizes: Sequence[ModelSizes],
    on_precision: Callable[[str], None] = lambda name: None,
) -> list[Compared]:
    """Predict and measure the model at each precision, each in a separate process.

    Raises:
        ModelError, SettingsError, EngineError: it cannot be loaded, or not run as requested.
    """
    found = []
    context = multiprocessing.get_context("spawn")
    for size in sizes:
        with ProcessPoolExecutor(max_workers=1, mp_context=context) as pool:
            found += pool.submit(compare_one, measuring, size).result()
        on_precision(size.precision)
    return found


def compare_one(measuring: Measuring, sizes: ModelSizes) -> list[Compared]:
    """Run :func:`compare` at one precision in this process, which should have done nothing else."""
    folder = resolve_model(measuring.settings.model, revision=measuring.settings.revision)
    # Memory that Python needs for any model, whatever its size, counts towards the process.
    read_model(measuring.settings, folder)
    own = resident(folder)
    run = _Run(measuring, sizes)
    before, bandwidth = run.calibrate()
    found: list[Compared] = []
    for batch in sorted(measuring.batches):
        load = Load(
            prompt=measuring.prompt,
            output=measuring.output,
            concurrency=batch,
            batch_tokens=run.settings.max_batch_tokens,
        )
        ttft, tpot, rate = run.measure(load)
        # Other load on the machine changes from minute to minute, so the measurement is taken between
        # two calibrations.
        after, _ = run.calibrate()
        shares, before = before.between(after), after
        machine = planned_machine(
            measuring.peaks, bandwidth if sizes.step_weights < _CACHED_BYTES else rate
        )
        prediction = predict(sizes, machine, load, shares)
        assert prediction is not None  # float32 is always measured
        figures: tuple[tuple[Quantity, float, float], ...] = (
            ("memory", own + run.predicted_memory(load), resident(folder)),
            ("TTFT", prediction.joined, ttft),
            ("TPOT", prediction.step, tpot),
        )
        found += [
            Compared(
                precision=sizes.precision,
                batch=batch,
                quantity=quantity,
                predicted=predicted,
                measured=measured,
            )
            for quantity, predicted, measured in figures
        ]
    return found


def planned_machine(peaks: Peaks, bandwidth: float) -> Machine:
    """Return this machine as a row of the plan's table; ``bandwidth`` in bytes a second."""
    names = {"float32": "float32", "bf16": "bfloat16", "int8": "int8"}
    return Machine(
        name="this machine",
        what=peaks.cpu,
        kind="cpu",
        memory=max(1.0, available_memory() / GIB),
        bandwidth=bandwidth / 1e9,
        tflops={names[kind]: rate.median / 1e12 for kind, rate in peaks.operations.items()},
    )


def machine_for(peaks: Peaks, sizes: ModelSizes, threads: int | None) -> Machine:
    """Return this machine with the bandwidth at which it reads a model's weights now.

    Weights that fit the caches are read from there.
    """
    amount = min(max(sizes.step_weights, _LEAST_SAMPLE), _SAMPLE_BYTES)
    return planned_machine(peaks, statistics.median(read_rate(threads, amount) for _ in range(3)))


class _Run:
    """One precision on a loaded engine."""

    def __init__(self, measuring: Measuring, sizes: ModelSizes) -> None:
        self._measuring = measuring
        self._sizes = sizes
        self._random = np.random.default_rng(0)
        most = max(measuring.batches)
        batch_tokens = max(measuring.settings.max_batch_tokens, most)
        # All sequences keep decoding while the last of them and new ones are prefilled.
        beyond = _SLACK + most * measuring.prompt // batch_tokens
        self._kv_tokens = max(
            most * (measuring.prompt + measuring.output + beyond),
            _DECODED[-1] * (_SHORT + _SLACK),
            _ATTENDING * (_LONG + _SLACK),
        )
        self.settings = replace(
            measuring.settings,
            weight_dtype=cast(WeightDType, sizes.precision),
            kv_dtype=measuring.kv_dtype,
            kv_cache_tokens=self._kv_tokens,
            max_running=max(most, *_DECODED),
            max_batch_tokens=batch_tokens,
        )
        self._bench = EngineBench(self.settings)

    @property
    def info(self) -> ModelInfo:
        """The loaded model."""
        return self._bench.info

    def calibrate(self) -> tuple[Shares, float]:
        """Return the shares that short runs reach, and the bandwidth meanwhile, in bytes a second."""
        sizes, rates = self._sizes, [self._read_rate()]
        decoded = {rows: self._decode(rows, _SHORT) for rows in _DECODED}
        attending = self._decode(_ATTENDING, _LONG)
        short = self._decode(_ATTENDING, _SHORT)
        prompts = self._random_prompts(1 + _PREFILLS, _PREFILLED)
        prefills = [sum(s.seconds for s in self._bench.prefill(prompt)) for prompt in prompts][1:]
        bandwidth = statistics.median([*rates, self._read_rate()])
        machine = planned_machine(self._measuring.peaks, bandwidth)
        peak = peak_rate(sizes.precision, machine) * 1e12
        outside = statistics.median(step.seconds - step.forward_seconds for step in decoded[1])

        def share(rows: int, wanted: int, seconds: float) -> float:
            operations = rows * sizes.row_operations + wanted * sizes.logit_operations
            return operations / peak / max(_SHORTEST, seconds - outside)

        longer = max(_SHORTEST, _median(attending) - _median(short))
        further = _ATTENDING * (sizes.kv_bytes(_LONG + _STEPS) - sizes.kv_bytes(_SHORT + _STEPS))
        arithmetic = [(n, share(n, n, _median(steps))) for n, steps in decoded.items()]
        arithmetic.append((_PREFILLED, share(_PREFILLED, 1, statistics.median(prefills))))
        alone = max(_SHORTEST, _median(decoded[1]) - outside)
        return Shares(
            bandwidth=sizes.step_weights / alone / bandwidth,
            arithmetic=tuple(arithmetic),
            attention_bandwidth=further / longer / bandwidth,
            step_seconds=outside,
        ), bandwidth

    def measure(self, load: Load) -> tuple[float, float, float]:
        """Measure seconds to the first token and between tokens, and bandwidth in bytes a second."""
        before = self._read_rate()
        others = self._random_prompts(load.concurrency - 1, load.prompt)
        arrivals = self._random_prompts(_ARRIVALS, load.prompt)
        waits, steps = self._bench.join(others, arrivals, load.output - 1)
        rate = (before + self._read_rate()) / 2
        return statistics.median(waits), _median(steps), rate

    def predicted_memory(self, load: Load) -> int:
        """Return the engine's bytes after the calibration and a load, without the process itself."""
        sizes = self._sizes
        used = max(
            load.concurrency * sizes.kv_bytes(load.prompt + load.output),
            _ATTENDING * sizes.kv_bytes(_LONG + _STEPS),
            _DECODED[-1] * sizes.kv_bytes(_SHORT + _STEPS),
        )
        # Each layer's part is a separate allocation, in huge pages if it is large enough.
        layers = sizes.kv_layers
        kv = -(-used // layers)
        if self._kv_tokens * sizes.kv_per_token // layers >= _HUGE_PAGE:
            kv = -(-kv // _HUGE_PAGE) * _HUGE_PAGE
        wanted = max(load.concurrency, *_DECODED)
        buffers = sizes.row_bytes * load.batch_tokens + sizes.logit_bytes * wanted
        threads = self._measuring.settings.threads or available_cores()
        return sizes.weights + layers * kv + buffers + threads * SCRATCH_BYTES

    def _decode(self, sequences: int, context: int) -> list[Step]:
        """Return the decode steps after one warm-up step."""
        return self._bench.decode(self._random_prompts(sequences, context), _STEPS + 1)[1:]

    def _read_rate(self) -> float:
        return read_rate(self._measuring.settings.threads, _SAMPLE_BYTES)

    def _random_prompts(self, count: int, tokens: int) -> list[list[int]]:
        rows = self._random.integers(self.info.require_text().vocab_size, size=(count, tokens))
        return [[int(token) for token in row] for row in rows]


def _median(steps: Sequence[Step]) -> float:
    return statistics.median(step.seconds for step in steps)


def resident(folder: Path | None = None) -> int:
    """Return the resident bytes of this process, except mapped files of a checkpoint in ``folder``.

    The kernel drops those when it needs room: the computation uses the packed weights.

    Raises:
        SettingsError: the system does not report the memory of a process by mapping.
    """
    try:
        mappings = Path("/proc/self/smaps").read_text()
    except OSError as error:
        raise SettingsError(
            "measuring memory needs /proc/self/smaps, which only Linux has; measure on Linux"
        ) from error
    total, counted = 0, True
    for line in mappings.splitlines():
        if _MAPPING.match(line):
            path = line.split(maxsplit=5)[5:]
            counted = not (path and folder and Path(path[0]).is_relative_to(folder.resolve()))
        elif counted and line.startswith("Rss:"):
            total += int(line.split()[1]) * 1024
    return total
