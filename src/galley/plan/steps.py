"""The time of one step of an engine, by roofline.

Linear layers take as long as their bytes at the memory's bandwidth or their operations at the peak rate,
whichever is longer (Williams, Waterman and Patterson 2009), each at a share that good kernels reach. So
does attention, which runs between them; a step also takes a fixed time.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Self

from galley.plan.hardware import Machine
from galley.plan.sizes import ModelSizes
from galley.types.weight_dtypes import WEIGHT_DTYPES

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
        """Return the share of a step with this many rows."""
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


def peak_rate(precision: str, machine: Machine) -> float:
    """Return the peak rate of the precision's products, in 10^12 operations a second; 0 for none."""
    types = WEIGHT_DTYPES[precision].products_on(machine.kind)
    return next((machine.tflops[t] for t in types if t in machine.tflops), 0.0)


@dataclass(frozen=True, slots=True)
class Step:
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


@dataclass(frozen=True, slots=True)
class Rates:
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
        if sizes.ranks > 1:
            # Each rank copies a row into and out of the shared memory: its part in, and all parts out.
            exchange = (shares.exchange_seconds, 2 * (1 + sizes.ranks) / read)
        if machine.count > 1 and machine.link is not None:
            # In a ring each accelerator sends this much of the sums (Patarasuk and Yuan 2009).
            sent = 2 * (machine.count - 1) / machine.count
            exchange = (shares.exchange_seconds, sent / (machine.link * 1e9))
        return cls(sizes, read, attention_read, peak, exchange, shares)

    def prompt(self, load: Load, *, decoding: int) -> Iterator[Step]:
        """Yield the steps of a prompt while ``decoding`` requests decode, which reduce its token budget."""
        budget = max(load.batch_tokens // 4, load.batch_tokens - decoding)
        for first in range(0, load.prompt, budget):
            rows = min(budget, load.prompt - first)
            yield self.step(
                rows=rows + decoding,
                wanted=decoding + (first + rows == load.prompt),
                kv=self.sizes.kv_bytes(first + rows) + decoding * self._context_bytes(load),
                attention=self.sizes.attention_operations(first, rows)
                + decoding * self._context_operations(load),
            )

    def decode(self, load: Load) -> Step:
        """Return a step in which all requests decode."""
        users = load.concurrency
        return self.step(
            rows=users,
            wanted=users,
            kv=users * self._context_bytes(load),
            attention=users * self._context_operations(load),
        )

    def texts(self, count: int, tokens: int) -> Step:
        """Return a step of ``count`` whole texts; their keys and values are in no cache."""
        operations = count * self.sizes.text_operations(tokens)
        return self.step(rows=count * tokens, wanted=0, kv=0, attention=operations)

    def step(self, *, rows: int, wanted: int, kv: float, attention: float) -> Step:
        """Return one step.

        Args:
            rows: tokens that are computed.
            wanted: those of them whose logits are wanted.
            kv: bytes of keys and values that attention reads.
            attention: operations of attention.
        """
        sizes, shares = self.sizes, self.shares
        operations = rows * sizes.row_operations + wanted * sizes.logit_operations
        each, byte = self.exchange
        return Step(
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
