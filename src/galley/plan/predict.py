"""Latency, throughput, memory and cost of a model on a machine, by roofline.

A step takes as long as its bytes at the memory's bandwidth or its operations at the peak rate, whichever is
longer (Williams, Waterman and Patterson 2009), each at a share that good kernels reach, and a fixed time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from galley.plan.hardware import Machine
from galley.plan.sizes import ModelSizes

GIB: Final = 1 << 30

MOST_USERS: Final = 4096
"""Concurrent requests up to which a plan looks for the most."""

_MULTIPLIES: Final = {
    ("cpu", "int8"): ("int8",),
    ("cpu", "int4"): ("int8",),
    ("gpu", "int8"): ("int8", "bfloat16"),
    ("tpu", "int8"): ("int8", "bfloat16"),
    ("asic", "int8"): ("int8", "bfloat16"),
}
"""(kind of machine, precision) -> types that are multiplied, the first that the machine has.

Elsewhere than on CPUs int4 is widened to bfloat16 first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """What of a machine's peaks is reached, and what a step takes beside.

    Attributes:
        bandwidth, arithmetic: of the stated peaks, in (0, 1].
        step_seconds: of a step outside of kernels: scheduling, launching, sampling.
        reserve_bytes: memory for the program itself, the driver and the framework.
    """

    bandwidth: float = 0.8
    arithmetic: float = 0.6
    step_seconds: float = 0.0003
    reserve_bytes: int = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is asked of the machine: so many requests at a time, each begun when another ends.

    Attributes:
        prompt, output: tokens of a request.
        concurrency: requests at a time.
        batch_tokens: token budget of a step.
    """

    prompt: int = 512
    output: int = 128
    concurrency: int = 8
    batch_tokens: int = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes, and what there is."""

    weights: int
    kv: int
    activations: int
    reserve: int
    available: int

    @property
    def total(self) -> int:
        """All that is needed."""
        return self.weights + self.kv + self.activations + self.reserve

    @property
    def fits(self) -> bool:
        """Whether there is enough."""
        return self.total <= self.available


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Of a load on a machine.

    Attributes:
        prefill: seconds of a prompt by itself.
        step: seconds of a decode step of all requests.
        ttft, tpot: seconds to the first token, and between tokens, with prompts of others in between.
        bound: what a decode step waits for.
        tokens_per_second, requests_per_second: in all; tokens are output tokens.
        cost: US dollars for a million output tokens; None without a price.
    """

    machine: Machine
    sizes: ModelSizes
    load: Load
    memory: Memory
    prefill: float
    step: float
    ttft: float
    tpot: float
    bound: Literal["bandwidth", "arithmetic"]
    tokens_per_second: float
    requests_per_second: float
    cost: float | None


@dataclass(frozen=True, slots=True)
class Goal:
    """Limits in seconds; infinite where there is none."""

    ttft: float = float("inf")
    tpot: float = float("inf")

    def distance(self, prediction: Prediction) -> tuple[float, float]:
        """How far the prediction is from the goal: in memory first, then by the factor of its times."""
        memory = prediction.memory
        late = max(prediction.ttft / self.ttft, prediction.tpot / self.tpot)
        return max(0.0, memory.total / memory.available - 1), late

    def missed(self, prediction: Prediction) -> str | None:
        """What stands in the way; None if the goal is met."""
        memory = prediction.memory
        if not memory.fits:
            needs, has = memory.total / GIB, memory.available / GIB
            return f"needs {needs:.1f} GiB, has {has:.1f}"
        if prediction.ttft > self.ttft:
            return f"TTFT {prediction.ttft:.2f} s is above {self.ttft:g} s"
        if prediction.tpot > self.tpot:
            return f"TPOT {1e3 * prediction.tpot:.1f} ms is above {1e3 * self.tpot:g} ms"
        return None


def predict(
    sizes: ModelSizes, machine: Machine, load: Load, shares: Shares | None = None
) -> Prediction | None:
    """What the load is like on the machine; None if it multiplies no type that the precision needs."""
    shares = shares or Shares()
    rate = _rate(sizes.precision, machine)
    if rate is None:
        return None
    read = machine.bandwidth * 1e9 * shares.bandwidth
    compute = rate * 1e12 * shares.arithmetic
    prefill = _prefill(sizes, load, read, compute, shares.step_seconds)
    moved, computed = _decode(sizes, load, read, compute)
    step = max(moved, computed) + shares.step_seconds
    users = load.concurrency
    # Of each step's users one in `output` ends, and another's prompt takes its turn.
    tpot = step + (users - 1) * prefill / load.output
    cycle = prefill + load.output * tpot
    busy = min(0.99, (users - 1) * prefill / cycle)
    ttft = prefill + step * (users > 1) + busy * prefill / (2 * (1 - busy))
    seconds = ttft + (load.output - 1) * tpot
    tokens = users * load.output / seconds
    return Prediction(
        machine=machine,
        sizes=sizes,
        load=load,
        memory=_memory(sizes, machine, load, shares),
        prefill=prefill,
        step=step,
        ttft=ttft,
        tpot=tpot,
        bound="bandwidth" if moved >= computed else "arithmetic",
        tokens_per_second=tokens,
        requests_per_second=tokens / load.output,
        cost=None if machine.price is None else machine.price / 3600 / tokens * 1e6,
    )


def most_users(
    sizes: ModelSizes, machine: Machine, load: Load, goal: Goal, shares: Shares | None = None
) -> int:
    """The greatest concurrency that meets the goal; 0 if not even one request does."""

    def meets(users: int) -> bool:
        prediction = predict(sizes, machine, _with_users(load, users), shares)
        return prediction is not None and goal.missed(prediction) is None

    low, high = 0, MOST_USERS
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if meets(middle) else (low, middle - 1)
    return low


def cheapest(predictions: Sequence[Prediction], goal: Goal) -> Prediction | None:
    """The prediction that meets the goal at the least price an hour, then at the least cost."""
    meeting = [p for p in predictions if goal.missed(p) is None and p.cost is not None]
    return min(meeting, key=lambda p: (p.machine.price or 0.0, p.cost or 0.0), default=None)


def _with_users(load: Load, users: int) -> Load:
    return Load(
        prompt=load.prompt, output=load.output, concurrency=users, batch_tokens=load.batch_tokens
    )


def _rate(precision: str, machine: Machine) -> float | None:
    """10^12 operations a second."""
    widened = ("float32",) if precision == "float32" else ("bfloat16", "float32")
    types = _MULTIPLIES.get((machine.kind, precision), widened)
    return next((machine.tflops[t] for t in types if t in machine.tflops), None)


def _prefill(
    sizes: ModelSizes, load: Load, read: float, compute: float, step_seconds: float
) -> float:
    """Seconds of one prompt, in chunks of the token budget."""
    seconds = 0.0
    for first in range(0, load.prompt, load.batch_tokens):
        rows = min(load.batch_tokens, load.prompt - first)
        operations = rows * sizes.row_operations + sizes.attention_operations(first, rows)
        if first + rows == load.prompt:
            operations += sizes.logit_operations
        moved = sizes.step_weights + sizes.kv_bytes(first + rows)
        seconds += max(moved / read, operations / compute) + step_seconds
    return seconds


def _decode(sizes: ModelSizes, load: Load, read: float, compute: float) -> tuple[float, float]:
    """Seconds that a step's bytes and its operations take, halfway through the outputs."""
    context = load.prompt + load.output // 2
    users = load.concurrency
    moved = sizes.step_weights + users * sizes.kv_bytes(context)
    operations = users * (
        sizes.row_operations + sizes.logit_operations + sizes.attention_operations(context, 1)
    )
    return moved / read, operations / compute


def _memory(sizes: ModelSizes, machine: Machine, load: Load, shares: Shares) -> Memory:
    return Memory(
        weights=sizes.weights,
        kv=load.concurrency * sizes.kv_bytes(load.prompt + load.output),
        activations=sizes.row_bytes * max(load.batch_tokens, load.concurrency),
        reserve=shares.reserve_bytes,
        available=int(machine.memory * GIB),
    )
