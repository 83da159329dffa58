"""Latency, throughput, memory and cost of a model on a machine, from the time of its steps."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from galley.plan.hardware import Machine
from galley.plan.sizes import ModelSizes
from galley.plan.steps import Bound, Load, Rates, Shares, Step, peak_rate

GIB: Final = 1 << 30

MOST_USERS: Final = 4096
"""Most concurrent requests that a plan considers."""


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
        tokens_per_second, requests_per_second: totals; tokens are output tokens.
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

    @property
    def is_reached(self) -> bool:
        """Whether an executor of Galley comes near these figures; the reference executor is far slower."""
        return self.executor not in (None, "reference")


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
    rates = Rates.of(sizes, machine, rate * 1e12, shares)
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
        memory=memory_of(sizes, machine, load, shares),
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
    """Return the cost of a million tokens at this many a second; None: the machine has no price."""
    return None if machine.price is None else machine.price / 3600 / tokens * 1e6


def _predict_texts(rates: Rates, machine: Machine, load: Load) -> Prediction:
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
        memory=memory_of(sizes, machine, load, shares),
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


def _bound(steps: Sequence[tuple[Step, int]]) -> Bound:
    """Return the limit that takes most seconds of steps, each taken the given number of times."""
    total: dict[Bound, float] = {}
    for step, times in steps:
        for cause, seconds in step.causes.items():
            total[cause] = total.get(cause, 0.0) + seconds * times
    return max(total, key=lambda cause: total[cause])


def memory_of(sizes: ModelSizes, machine: Machine, load: Load, shares: Shares) -> Memory:
    """Return the memory that a load needs on a machine, and what there is."""
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
