"""Latency, throughput, memory and cost of a model on a machine, by roofline.

Linear layers take as long as their bytes at the memory's bandwidth or their operations at the peak rate,
whichever is longer (Williams, Waterman and Patterson 2009), each at a share that good kernels reach. So
does attention, which runs between them; a step also takes a fixed time.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, Self

from galley.plan.hardware import Machine
from galley.plan.sizes import ModelSizes
from galley.types.weight_dtypes import WEIGHT_DTYPES

GIB: Final = 1 << 30

MOST_USERS: Final = 4096
"""Most concurrent requests that a plan considers."""

Bound = Literal["bandwidth", "arithmetic", "link"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """The shares of a machine's peaks that are reached, and the fixed costs of a step.

    Attributes:
        bandwidth: of linear layers, as a share of the stated peak.
        arithmetic: (rows of a step, share of the stated peak) of linear layers, by ascending rows. Between
            two, shares are interpolated by the logarithm of the rows; beyond, they stay as they are.
        attention_bandwidth, attention_arithmetic: the shares of attention.
        step_seconds: of a step outside of kernels: scheduling, launching, sampling.
        exchange_seconds: of one exchange between accelerators that share a matrix, whatever its size.
        reserve_bytes: memory for the program itself, the driver and the framework.
    """

    bandwidth: float = 0.8
    arithmetic: tuple[tuple[int, float], ...] = ((1, 0.6),)
    attention_bandwidth: float = 0.8
    attention_arithmetic: float = 0.6
    step_seconds: float = 0.0003
    exchange_seconds: float = 1e-5
    reserve_bytes: int = 1 << 30

    def between(self, other: "Shares") -> "Shares":
        """Return the mean of two that were measured at the same numbers of rows."""
        pairs = zip(self.arithmetic, other.arithmetic, strict=True)
        return Shares(
            bandwidth=(self.bandwidth + other.bandwidth) / 2,
            arithmetic=tuple((rows, (one + two) / 2) for (rows, one), (_, two) in pairs),
            attention_bandwidth=(self.attention_bandwidth + other.attention_bandwidth) / 2,
            attention_arithmetic=(self.attention_arithmetic + other.attention_arithmetic) / 2,
            step_seconds=(self.step_seconds + other.step_seconds) / 2,
            exchange_seconds=(self.exchange_seconds + other.exchange_seconds) / 2,
            reserve_bytes=max(self.reserve_bytes, other.reserve_bytes),
        )

    def arithmetic_of(self, rows: int) -> float:
        """Return the share of a step with so many rows."""
        below = [point for point in self.arithmetic if point[0] <= rows]
        above = [point for point in self.arithmetic if point[0] > rows]
        if not below or not above:
            return (below[-1] if below else above[0])[1]
        (low, share), (high, next_share) = below[-1], above[0]
        part = math.log(rows / low) / math.log(high / low)
        return share + part * (next_share - share)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The load of the machine: a number of concurrent requests, each begun when another ends.

    Attributes:
        prompt, output: tokens of a request; no output where texts are read as a whole and none is written.
        concurrency: requests at a time.
        batch_tokens: token budget of a step.
        expert_cache_bytes: memory for experts that are on disk; None: half of the remainder.
    """

    prompt: int = 512
    output: int = 128
    concurrency: int = 8
    batch_tokens: int = 512
    expert_cache_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes needed and available; ``experts``: for those that are on disk."""

    weights: int
    experts: int
    kv: int
    activations: int
    reserve: int
    available: int

    @property
    def total(self) -> int:
        """All bytes that are needed."""
        return self.weights + self.experts + self.kv + self.activations + self.reserve

    @property
    def fits(self) -> bool:
        """Whether there is enough."""
        return self.total <= self.available


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The prediction for a load on a machine.

    Attributes:
        prefill: seconds of a prompt by itself.
        joined: seconds of the steps from a prompt's arrival to its first token, while all others decode.
        step: seconds of a decode step of all requests. No times include reads of experts from disk.
        ttft, tpot: seconds to the first token, and between tokens, with prompts of others in between.
        bound: the limit that takes most of the time, prompts included.
        tokens_per_second, requests_per_second: in all; tokens are output tokens.
        cost: US dollars for a million output tokens; None without a price.

    Where no output is requested, ``ttft`` is until a text's vector or score, and tokens are those of texts.
    """

    machine: Machine
    sizes: ModelSizes
    load: Load
    memory: Memory
    prefill: float
    joined: float
    step: float
    ttft: float
    tpot: float
    bound: Bound
    tokens_per_second: float
    requests_per_second: float
    cost: float | None

    @property
    def executor(self) -> str | None:
        """The executor of Galley that runs the model there today; None if there is none."""
        return self.machine.executor(gpu=self.sizes.gpu_kernels)


@dataclass(frozen=True, slots=True)
class Goal:
    """Limits in seconds; infinite where there is none."""

    ttft: float = float("inf")
    tpot: float = float("inf")

    def distance(self, prediction: Prediction) -> tuple[float, float]:
        """Return the distance from the goal: in memory first, then by the factor of the times."""
        memory = prediction.memory
        late = max(prediction.ttft / self.ttft, prediction.tpot / self.tpot)
        return max(0.0, memory.total / memory.available - 1), late

    def missed(self, prediction: Prediction) -> str | None:
        """Return the limit that is missed; None if the goal is met."""
        memory = prediction.memory
        if not memory.fits:
            needs, has = memory.total / GIB, memory.available / GIB
            return f"needs {needs:.1f} GiB, has {has:.1f} GiB"
        if prediction.ttft > self.ttft:
            return f"TTFT {prediction.ttft:.2f} s is above {self.ttft:g} s"
        if prediction.tpot > self.tpot:
            return f"TPOT {1e3 * prediction.tpot:.1f} ms is above {1e3 * self.tpot:g} ms"
        return None


def predict(
    sizes: ModelSizes, machine: Machine, load: Load, shares: Shares | None = None
) -> Prediction | None:
    """Predict the load on the machine; None if it does not multiply a type that the precision needs.

    Raises:
        SettingsError: the experts of a layer do not fit the memory that the load has for them.
    """
    shares = shares or Shares()
    rate = peak_rate(sizes.precision, machine)
    if not rate:
        return None
    rates = _Rates.of(sizes, machine, rate * 1e12, shares)
    if not load.output:
        return _predict_texts(rates, machine, load)
    users = load.concurrency
    alone = list(rates.prompt(load, decoding=0))
    prefill = sum(part.seconds for part in alone)
    joined = sum(part.seconds for part in rates.prompt(load, decoding=users - 1))
    decode = rates.decode(load)
    step = decode.seconds
    # In each step, one in `output` of the requests ends, and the prompt of another starts.
    tpot = step + (users - 1) * prefill / load.output
    cycle = prefill + load.output * tpot
    busy = min(0.99, (users - 1) * prefill / cycle)
    # On average a prompt arrives in the middle of a step, perhaps while other prompts are computed.
    ttft = joined + step / 2 * (users > 1) + busy * prefill / (2 * (1 - busy))
    seconds = ttft + (load.output - 1) * tpot
    tokens = users * load.output / seconds
    return Prediction(
        machine=machine,
        sizes=sizes,
        load=load,
        memory=_memory(sizes, machine, load, shares),
        prefill=prefill,
        joined=joined,
        step=step,
        ttft=ttft,
        tpot=tpot,
        # While one request generates its output, the prompt of every other request is computed once.
        bound=_bound([*((part, users) for part in alone), (decode, load.output)]),
        tokens_per_second=tokens,
        requests_per_second=tokens / load.output,
        cost=_cost(machine, tokens),
    )


def _cost(machine: Machine, tokens: float) -> float | None:
    """Return the cost of a million tokens at so many a second; None: the machine has no price."""
    return None if machine.price is None else machine.price / 3600 / tokens * 1e6


def _predict_texts(rates: "_Rates", machine: Machine, load: Load) -> Prediction:
    """Predict a load of whole texts: steps take them up to the token budget, in order of arrival."""
    sizes, shares = rates.sizes, rates.shares
    together = max(1, min(load.concurrency, load.batch_tokens // load.prompt))
    whole = rates.texts(together, load.prompt)
    step = whole.seconds
    tokens = together * load.prompt / step
    return Prediction(
        machine=machine,
        sizes=sizes,
        load=load,
        memory=_memory(sizes, machine, load, shares),
        prefill=step,
        joined=step,
        step=step,
        ttft=load.concurrency / together * step,
        tpot=0.0,
        bound=_bound([(whole, 1)]),
        tokens_per_second=tokens,
        requests_per_second=tokens / load.prompt,
        cost=_cost(machine, tokens),
    )


def most_users(
    sizes: ModelSizes, machine: Machine, load: Load, goal: Goal, shares: Shares | None = None
) -> int:
    """Return the greatest concurrency that meets the goal; 0 if not even one request does."""

    def meets(users: int) -> bool:
        prediction = predict(sizes, machine, replace(load, concurrency=users), shares)
        return prediction is not None and goal.missed(prediction) is None

    low, high = 0, MOST_USERS
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if meets(middle) else (low, middle - 1)
    return low


def cheapest(predictions: Sequence[Prediction], goal: Goal) -> Prediction | None:
    """Return the prediction that meets the goal at the least price an hour, then at the least cost."""
    meeting = [p for p in predictions if goal.missed(p) is None and p.cost is not None]
    return min(meeting, key=lambda p: (p.machine.price or 0.0, p.cost or 0.0), default=None)


def peak_rate(precision: str, machine: Machine) -> float:
    """Return the peak rate of the precision's products, in 10^12 operations a second; 0 for none."""
    types = WEIGHT_DTYPES[precision].products_on(machine.kind)
    return next((machine.tflops[t] for t in types if t in machine.tflops), 0.0)


@dataclass(frozen=True, slots=True)
class _Step:
    """Seconds of a step, by cause.

    Attributes:
        linear, attention: (by bytes moved, by operations); the longer counts.
        link: of exchanges between accelerators.
        fixed: outside of kernels.
    """

    linear: tuple[float, float]
    attention: tuple[float, float]
    link: float
    fixed: float

    @property
    def seconds(self) -> float:
        """Seconds of the whole step."""
        return max(self.linear) + max(self.attention) + self.link + self.fixed

    @property
    def causes(self) -> dict[Bound, float]:
        """Seconds that each limit of the machine costs."""
        causes: dict[Bound, float] = {"bandwidth": 0.0, "arithmetic": 0.0, "link": self.link}
        for moved, computed in (self.linear, self.attention):
            causes["bandwidth" if moved >= computed else "arithmetic"] += max(moved, computed)
        return causes


def _bound(steps: Sequence[tuple[_Step, int]]) -> Bound:
    """Return the limit that takes most seconds of steps, each taken so many times."""
    total: dict[Bound, float] = {}
    for step, times in steps:
        for cause, seconds in step.causes.items():
            total[cause] = total.get(cause, 0.0) + seconds * times
    return max(total, key=lambda cause: total[cause])


@dataclass(frozen=True, slots=True)
class _Rates:
    """The rates of a model's steps on a machine.

    Attributes:
        read, attention_read: bytes a second of linear layers, and of attention.
        peak: operations a second that the machine states.
        exchange: (seconds of each exchange, seconds of a token's bytes) between accelerators.
    """

    sizes: ModelSizes
    read: float
    attention_read: float
    peak: float
    exchange: tuple[float, float]
    shares: Shares

    @classmethod
    def of(cls, sizes: ModelSizes, machine: Machine, peak: float, shares: Shares) -> Self:
        """Compute the rates; ``peak``: operations a second that the machine states for the products."""
        bandwidth = machine.bandwidth * 1e9
        read, attention_read = bandwidth * shares.bandwidth, bandwidth * shares.attention_bandwidth
        exchange = (0.0, 0.0)
        if machine.count > 1 and machine.link is not None:
            # In a ring each accelerator sends this much of the sums (Patarasuk and Yuan 2009).
            sent = 2 * (machine.count - 1) / machine.count
            exchange = (shares.exchange_seconds, sent / (machine.link * 1e9))
        return cls(sizes, read, attention_read, peak, exchange, shares)

    def prompt(self, load: Load, *, decoding: int) -> Iterator[_Step]:
        """Yield the steps of a prompt while ``decoding`` requests decode, which reduce its token budget."""
        budget = max(load.batch_tokens // 4, load.batch_tokens - decoding)
        for first in range(0, load.prompt, budget):
            rows = min(budget, load.prompt - first)
            yield self._step(
                rows=rows + decoding,
                wanted=decoding + (first + rows == load.prompt),
                kv=self.sizes.kv_bytes(first + rows) + decoding * self._context_bytes(load),
                attention=self.sizes.attention_operations(first, rows)
                + decoding * self._context_operations(load),
            )

    def decode(self, load: Load) -> _Step:
        """Return a step in which all requests decode."""
        users = load.concurrency
        return self._step(
            rows=users,
            wanted=users,
            kv=users * self._context_bytes(load),
            attention=users * self._context_operations(load),
        )

    def texts(self, count: int, tokens: int) -> _Step:
        """Return a step of ``count`` whole texts; their keys and values are in no cache."""
        operations = count * self.sizes.text_operations(tokens)
        return self._step(rows=count * tokens, wanted=0, kv=0, attention=operations)

    def _step(self, *, rows: int, wanted: int, kv: float, attention: float) -> _Step:
        sizes, shares = self.sizes, self.shares
        operations = rows * sizes.row_operations + wanted * sizes.logit_operations
        each, byte = self.exchange
        return _Step(
            linear=(
                sizes.weights_read(rows) / self.read,
                operations / (self.peak * shares.arithmetic_of(rows)),
            ),
            attention=(
                kv / self.attention_read,
                attention / (self.peak * shares.attention_arithmetic),
            ),
            link=each * sizes.exchanges + byte * sizes.exchanged * rows,
            fixed=shares.step_seconds,
        )

    def _context_bytes(self, load: Load) -> int:
        """Return the bytes of keys and values of a request halfway through its output."""
        return self.sizes.kv_bytes(load.prompt + load.output // 2)

    def _context_operations(self, load: Load) -> float:
        return self.sizes.attention_operations(load.prompt + load.output // 2, 1)


def _memory(sizes: ModelSizes, machine: Machine, load: Load, shares: Shares) -> Memory:
    users = load.concurrency
    rows = max(users, min(load.batch_tokens, users * load.prompt))
    wanted = users
    if not load.output:  # a text's vector may depend on all of its rows
        rows = wanted = max(load.batch_tokens, load.prompt)
    activations = sizes.row_bytes * rows + sizes.logit_bytes * wanted
    available = int(machine.memory * GIB)
    left = available - sizes.weights - activations - shares.reserve_bytes - sizes.least_cache
    return Memory(
        weights=sizes.weights,
        experts=sizes.on_disk.cache_bytes(load.expert_cache_bytes, left),
        kv=users * sizes.kv_bytes(load.prompt + load.output),
        activations=activations,
        reserve=shares.reserve_bytes,
        available=available,
    )
