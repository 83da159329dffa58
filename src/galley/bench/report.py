"""From samples to figures: medians, rates, and shares of what the machine can do."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Self

from galley.types import StepCosts

PEAK_KIND: Final[Mapping[str, str]] = {
    "int8": "int8",
    "bfloat16": "bf16",
    "float32": "float32",
}
"""What the inputs of linear layers are rounded to -> kind of the products that are made of them."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Repeated samples of one figure."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> Self:
        """At least one sample."""
        return cls(statistics.median(samples), min(samples), max(samples))


@dataclass(frozen=True, slots=True)
class Cache:
    """One of a core's caches. ``bytes`` is the whole of it where cores share it."""

    level: int
    type: str
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What this process may use of the machine, and the most it can do with it.

    Attributes:
        cpu: the model's name.
        isa: of the kernels.
        cores: by affinity and cgroup quota.
        threads: that the rates were measured with.
        caches: of the first core.
        read_huge, read_small: bytes a second streamed from memory, on huge pages (where the system
            grants them) and on small ones.
        operations: kind -> operations a second; a product and its addition are two.
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
        seconds: all of it.
        forward_seconds: of these in the executor's own code.
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
        """Of weights, keys and values that had to be read."""
        return costs.weight_bytes + self.context * costs.kv_bytes_per_token

    def operations(self, costs: StepCosts) -> int:
        """Of linear layers."""
        return self.rows * costs.row_operations + self.wanted * costs.logit_operations


@dataclass(frozen=True, slots=True)
class Run:
    """One repeat of some work.

    Attributes:
        steps: of the engine.
        read_rate: bytes a second that the machine streamed from memory just before and just after.
            On a shared machine it moves, by a factor of two within minutes.
    """

    steps: Sequence[Step]
    read_rate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The figures of one kind of work at one batch size. Rates are over whole repeats.

    Attributes:
        work: "prefill" or "decode".
        tokens: of each sequence: in the prompt, or decoded.
        step_ms, python_ms: of single steps; Python's part is what is not the executor's.
        read_share: of the read rate beside each repeat; operation_share: of the machine's peak for
            this kind.
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
    """The figures of all repeats; ``activations``: what the inputs of linear layers are rounded to."""
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
