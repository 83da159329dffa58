"""Figures of measurements: medians, rates, and shares of the machine's peak rates."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Self

from galley.types.model_info import StepCosts

PEAK_KIND: Final[Mapping[str, str]] = {
    "int8": "int8",
    "bfloat16": "bf16",
    "float16": "bf16",
    "float32": "float32",
}
"""Input type of linear layers -> kind of their products (see ``Machine.operations``)."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, least and greatest of the repeated measurements of one figure."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> Self:
        """Return the spread of at least one measurement."""
        return cls(statistics.median(samples), min(samples), max(samples))

    def scaled(self, factor: float) -> Self:
        """Return the spread of the same measurements, each times a factor above 0."""
        return type(self)(factor * self.median, factor * self.low, factor * self.high)


@dataclass(frozen=True, slots=True)
class Cache:
    """One of a core's caches. ``bytes`` is its whole size, even if cores share it."""

    level: int
    type: str
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The part of the machine that this process may use, and its measured peak rates.

    Attributes:
        cpu: the CPU model's name.
        isa: instruction set that the kernels use.
        cores: usable by affinity and cgroup quota.
        threads: used for measuring the rates.
        caches: of the first core.
        read_huge, read_small: bytes a second read from memory, in huge pages (where the system grants them)
            and in small ones.
        operations: kind of product -> operations a second; a multiply-add is two operations.
    """

    cpu: str
    isa: str
    cores: int
    threads: int
    caches: tuple[Cache, ...]
    read_huge: Spread
    read_small: Spread
    operations: Mapping[str, Spread]


@dataclass(frozen=True, slots=True)
class Step:
    """One engine step.

    Attributes:
        seconds: duration of the whole step.
        forward_seconds: the part of it in the executor's own code.
        rows: tokens computed.
        wanted: rows whose logits were wanted.
        context: tokens whose keys and values were read, over all sequences.
    """

    seconds: float
    forward_seconds: float
    rows: int
    wanted: int
    context: int

    def bytes(self, costs: StepCosts) -> int:
        """Return the bytes of weights, keys and values that the step must read."""
        return costs.weights_read(self.rows) + self.context * costs.kv_bytes_per_token

    def operations(self, costs: StepCosts) -> int:
        """Return the operations of the step's linear layers."""
        return self.rows * costs.row_operations + self.wanted * costs.logit_operations


@dataclass(frozen=True, slots=True)
class Run:
    """One measurement of one phase.

    Attributes:
        steps: the engine's steps.
        read_rate: memory bandwidth, bytes a second, measured just before and after the steps: on a shared
            machine it changes by a factor of two within minutes.
    """

    steps: Sequence[Step]
    read_rate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The figures of one phase at one batch size. Rates are over whole measurements.

    Attributes:
        work: "prefill" or "decode".
        tokens: of each sequence: in the prompt, or decoded.
        step_ms: milliseconds of a step.
        python_ms: milliseconds of a step outside the executor.
        read_share: share of each measurement's own ``read_rate``.
        operation_share: share of the machine's peak for the kind of product.
    """

    work: str
    batch: int
    tokens: int
    tokens_per_s: Spread
    step_ms: Spread
    python_ms: Spread
    bytes_per_s: Spread
    read_share: Spread
    operations_per_s: Spread
    operation_share: float


def make_point(
    work: str,
    batch: int,
    runs: Sequence[Run],
    costs: StepCosts,
    machine: Machine,
    activations: str,
) -> Point:
    """Compute the figures of all measurements; ``activations`` is the input type of linear layers."""
    steps = [step for run in runs for step in run.steps]
    byte_rates = [_rate(run, lambda step: step.bytes(costs)) for run in runs]
    operations = Spread.of([_rate(run, lambda step: step.operations(costs)) for run in runs])
    return Point(
        work=work,
        batch=batch,
        tokens=sum(step.rows for step in runs[0].steps) // batch,
        tokens_per_s=Spread.of([_rate(run, lambda step: step.rows) for run in runs]),
        step_ms=Spread.of([1e3 * s.seconds for s in steps]),
        python_ms=Spread.of([1e3 * (s.seconds - s.forward_seconds) for s in steps]),
        bytes_per_s=Spread.of(byte_rates),
        read_share=Spread.of(
            [rate / run.read_rate for rate, run in zip(byte_rates, runs, strict=True)]
        ),
        operations_per_s=operations,
        operation_share=operations.median / machine.operations[PEAK_KIND[activations]].median,
    )


def _rate(run: Run, amount: Callable[[Step], int]) -> float:
    return sum(map(amount, run.steps)) / sum(step.seconds for step in run.steps)
