"""Fits the times of a simulated replica to those of a measured one."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from galley.errors import SettingsError
from galley.plan.cluster.engine import Engine
from galley.plan.cluster.simulate import simulate
from galley.plan.cluster.traffic import Traffic
from galley.traffic.trace import TraceLine, Turn

_ROUNDS: Final = 30
_CLOSE: Final = 0.001
_DIFFERENT: Final = 1.5
"""Ratio of two prompts' times from which they tell the overhead of a request."""

_LEAST: Final = 0.05
"""Share of a TTFT that the prompt takes at least."""

_MOST_REQUESTS: Final = 400
"""Most requests of a run that are simulated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A measured run: this many requests, ``concurrency`` at a time, each sent when another has ended.

    Attributes:
        concurrency, requests: of the run.
        prompt, output: mean tokens of a request.
        ttft, tpot: means, in seconds.
    """

    concurrency: int
    requests: int
    prompt: int
    output: int
    ttft: float
    tpot: float


def calibrate(engine: Engine, runs: Sequence[Measured]) -> Engine:
    """Return the engine whose simulated runs have the measured means of TTFT and TPOT, on average.

    Factors are fitted by repeated simulation: that of decoding to TPOT, that of prompts to TTFT. With runs
    of different prompts, one at a time, so is the time of a request that does not depend on its prompt;
    else it is in the factor of prompts.

    Raises:
        SettingsError: a run does not fit the engine, or no factors make it so.
    """
    for run in runs:
        if run.prompt + run.output > engine.longest:
            raise SettingsError(
                f"measured requests of {run.prompt} and {run.output} tokens exceed the {engine.longest} "
                "tokens that a request may have here"
            )
    for _ in range(_ROUNDS):
        found = [simulate(engine, 1, "round-robin", closed_loop(run)) for run in runs]
        decode = _ratio([(r.tpot, o.tpot_s["mean"]) for r, o in zip(runs, found, strict=True)])
        ttft = [(r.ttft, o.ttft_s["mean"]) for r, o in zip(runs, found, strict=True)]
        overhead = _overhead(engine, runs, [simulated for _, simulated in ttft])
        prompt = _ratio(
            [(max(r - overhead, _LEAST * r), max(s - engine.overhead, _LEAST * s)) for r, s in ttft]
        )
        change = abs(overhead - engine.overhead) / max(r for r, _ in ttft)
        if max(abs(decode - 1), abs(prompt - 1), change) < _CLOSE:
            return engine
        engine = replace(
            engine,
            # Each also has a part in the other's time, so half of the way is taken at once.
            decode_factor=engine.decode_factor * math.sqrt(decode),
            prompt_factor=engine.prompt_factor * math.sqrt(prompt),
            overhead=(engine.overhead + overhead) / 2,
        )
    off = max(abs(decode - 1), abs(prompt - 1))
    if off > 0.05:
        raise SettingsError(
            f"no times of decoding and prompts give the measured TTFT and TPOT: they are off by {off:.0%}; "
            "measure with the same --max-running and --max-batch-tokens as here"
        )
    return engine


def _overhead(engine: Engine, runs: Sequence[Measured], simulated: Sequence[float]) -> float:
    """Return the seconds of a request that do not depend on its prompt, as far as the runs tell.

    The shortest and the longest prompt that were read one at a time differ in the time of the tokens
    between them; what is left of the shorter is the overhead.
    """
    alone = [
        (time - engine.overhead, run.ttft)
        for run, time in zip(runs, simulated, strict=True)
        if run.concurrency == 1
    ]
    if len(alone) < 2:
        return 0.0
    (short, short_ttft), (long, long_ttft) = min(alone), max(alone)
    if long < _DIFFERENT * short:
        return 0.0
    slope = max(0.0, (long_ttft - short_ttft) / (long - short))
    return min(max(0.0, short_ttft - slope * short), short_ttft * (1 - _LEAST))


def closed_loop(run: Measured) -> Traffic:
    """Return the requests of a run, of which this many are sent at a time."""
    requests = max(run.concurrency, min(run.requests, _MOST_REQUESTS))
    line = TraceLine(timestamp=0.0, input_length=run.prompt, output_length=run.output)
    return Traffic(
        [
            Turn(0.0, n - run.concurrency if n >= run.concurrency else None, 0.0, line)
            for n in range(requests)
        ]
    )


def _ratio(pairs: Sequence[tuple[float, float]]) -> float:
    """Return the geometric mean of measured over simulated."""
    return math.exp(
        sum(math.log(measured / simulated) for measured, simulated in pairs) / len(pairs)
    )
