"""Static, dynamic and continuous batching."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from galley.bench.report import Spread
from galley.bench.serve.bars import Series
from galley.lab.bench import Lab
from galley.lab.drive import Driven, drive, greedy
from galley.lab.experiment import Bars, Claim, Experiment, Figure, Finding
from galley.settings.engine import Batching

POLICIES: Final[tuple[Batching, ...]] = ("static", "dynamic", "continuous")
_SEATS: Final = 8
_PROMPT: Final = 32


def _run(lab: Lab) -> Finding:
    count = 48 if lab.quick else 128
    random = np.random.default_rng(0)
    outputs = [int(n) for n in np.clip(random.lognormal(4.0, 1.0, count), 2, 500)]
    uniform = [int(n) for n in random.integers(20, 500, 10_000)]
    prompts = lab.prompts([_PROMPT] * count)
    engines = {
        policy: lab.engine(
            weight_dtype="int8",
            batching=policy,
            batching_delay=0.0,
            max_running=_SEATS,
            kv_cache_tokens=_SEATS * 640,
        )
        for policy in POLICIES
    }

    def run(policy: Batching) -> Driven:
        return drive(engines[policy], greedy(engines[policy], prompts, outputs))

    # In turns, because the speed of a shared machine changes from minute to minute.
    rounds = [{policy: run(policy) for policy in POLICIES} for _ in range(2 if lab.quick else 4)]
    gain = Spread.of([one["continuous"].rate / one["static"].rate for one in rounds])
    steps = {policy: _steps(policy, outputs) for policy in POLICIES}
    rates = {policy: max(one[policy].rate for one in rounds) for policy in POLICIES}
    last = rounds[-1]
    return Finding(
        figures=[Figure(measured=gain, predicted=steps["static"] / steps["continuous"])],
        header=["batching", "steps", "tokens/s", "times static", "mean latency, s"],
        rows=[
            [
                policy,
                str(steps[policy]),
                f"{rates[policy]:.0f}",
                f"{rates[policy] / rates['static']:.2f}",
                f"{np.mean([one.latency for one in last[policy].requests]):.2f}",
            ]
            for policy in POLICIES
        ],
        pictures=[
            Bars(
                title="Throughput by batching",
                unit="tokens/s",
                names=list(POLICIES),
                series=[Series("measured", [rates[policy] for policy in POLICIES])],
            )
        ],
        notes=[
            f"{count} requests that all wait from the beginning, {_SEATS} at a time, answers of "
            f"{min(outputs)} to {max(outputs)} tokens, lognormal as in chats. With uniform lengths, the "
            f"ratio of the steps would be {_steps('static', uniform) / _steps('continuous', uniform):.2f}. "
            "A step with few sequences is faster than a full one, so the gain is less than the "
            "ratio of the steps.",
            "Since all requests wait already, dynamic batches are as large as static ones.",
        ],
    )


def _steps(policy: Batching, outputs: Sequence[int]) -> int:
    """Return the decode steps of a policy in which each waits for a seat in the order of arrival."""
    if policy == "continuous":
        seats = [0] * _SEATS
        for tokens in outputs:
            seats[seats.index(min(seats))] += tokens
        return max(seats)
    return sum(max(outputs[i : i + _SEATS]) for i in range(0, len(outputs), _SEATS))


EXPERIMENT: Final = Experiment(
    name="batching",
    title="Static, dynamic and continuous batching",
    statement="A batch whose finished sequences are replaced at once has 2 to 5 times the throughput of "
    "one that runs until its longest sequence ends.",
    source="a rule of thumb; Orca, OSDI 2022, and Anyscale, How continuous batching enables 23x "
    "throughput, 2023, have 8 times and more on GPUs",
    prediction="The number of steps: static batches take as many as their longest answer.",
    claims=(Claim(figure="continuous to static", unit="times", low=2, high=5),),
    run=_run,
)
