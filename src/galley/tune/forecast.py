"""The plan's predictions for candidates on recorded traffic, before anything is measured."""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from galley.bench.predicted import machine_for
from galley.bench.report import Machine as Peaks
from galley.engine.read_model import Model
from galley.plan.hardware import Machine
from galley.plan.predict import Prediction, predict
from galley.plan.sizes import ModelSizes
from galley.plan.steps import Load
from galley.traffic.trace import Turn
from galley.tune.space import Candidate
from galley.types.weight_dtypes import WEIGHT_DTYPES

_ROUNDS: Final = 20
"""Iterations of Little's law, which converge in a few unless the load is above the capacity."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """The mean of a trace.

    Attributes:
        rate: requests a second.
        prompt, output: tokens of a request.
    """

    rate: float
    prompt: int
    output: int

    @classmethod
    def of(cls, turns: Sequence[Turn], speed: float) -> "Traffic":
        """Return the mean of turns that are sent ``speed`` times as fast as recorded."""
        seconds = max(turns[-1].due / speed, 1e-3)
        lines = [turn.line for turn in turns]
        return cls(
            (len(turns) - 1) / seconds,  # the first is due at 0
            max(1, round(sum(line.input_length for line in lines) / len(turns))),
            max(1, round(sum(line.output_length for line in lines) / len(turns))),
        )


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """The prediction for a candidate; times are means.

    Attributes:
        ttft, tpot: seconds.
        cost: CPU seconds of the server for a thousand output tokens.
        at_once: requests that run at a time in each replica.
        fits: whether there is memory for them.
        load: the share that the traffic takes of what the replicas can serve; from 1 on, requests arrive
            faster than they are served.
    """

    ttft: float
    tpot: float
    cost: float
    at_once: int
    fits: bool
    load: float

    @property
    def keeps_up(self) -> bool:
        """Whether the replicas can serve requests as fast as they arrive."""
        return self.load < 1

    def seconds(self, metric: str) -> float | None:
        """Return "ttft" or "tpot" in seconds; None: the metric is not predicted."""
        return {"ttft": self.ttft, "tpot": self.tpot}.get(metric)


class Forecaster:
    """Predicts candidates of one model on this machine by roofline."""

    def __init__(self, model: Model, peaks: Peaks, machine: Machine | None = None) -> None:
        """Prepare predictions.

        Args:
            model: its program.
            peaks: measured rates of this machine.
            machine: another machine, on which all candidates are one replica with all of its cores.
        """
        self._model = model
        self._peaks = peaks
        self._other = machine
        self._sizes: dict[tuple[str, str], ModelSizes] = {}
        self._machines: dict[tuple[str, int, int], Machine] = {}

    def forecast(self, candidate: Candidate, traffic: Traffic) -> Forecast | None:
        """Predict a candidate; None: the machine does not multiply its types."""
        sizes = self._sizes_of(candidate)
        replicas = candidate.replicas if self._other is None else 1
        machine = self._other or self._of_replica(sizes, candidate.threads, replicas)
        rate = traffic.rate / replicas
        # Little's law: as many requests are in the server as arrive in the time that one takes.
        at_once, wanted = 1, 1.0
        prediction: Prediction | None = None
        for _ in range(_ROUNDS):
            load = Load(
                prompt=traffic.prompt,
                output=traffic.output,
                concurrency=at_once,
                batch_tokens=candidate.max_batch_tokens,
            )
            prediction = predict(sizes, machine, load)
            if prediction is None:
                return None
            wanted = rate * (prediction.ttft + traffic.output * prediction.tpot)
            following = min(candidate.max_running, max(1, math.ceil(wanted)))
            if following == at_once:
                break
            at_once = following
        assert prediction is not None
        used = min(rate / prediction.requests_per_second, wanted / candidate.max_running)
        threads = candidate.threads if self._other is None else 1
        memory = prediction.memory
        return Forecast(
            ttft=prediction.ttft,
            tpot=prediction.tpot,
            cost=1000 * threads / prediction.tokens_per_second,
            at_once=at_once,
            fits=replicas * (memory.total - memory.reserve) + memory.reserve <= memory.available,
            load=used,
        )

    def _sizes_of(self, candidate: Candidate) -> ModelSizes:
        own = self._model.options.weight_dtype
        weights = candidate.weight_dtype if candidate.weight_dtype != "auto" else own
        weights = weights if weights in WEIGHT_DTYPES else "int8"
        kv = candidate.kv_dtype if candidate.kv_dtype != "auto" else "bfloat16"
        if (weights, kv) not in self._sizes:
            self._sizes[weights, kv] = ModelSizes.of(
                self._model.program, weights, kv, self._peaks.isa
            )
        return self._sizes[weights, kv]

    def _of_replica(self, sizes: ModelSizes, threads: int, replicas: int) -> Machine:
        """Return this machine with the cores of one replica, and its share of the bandwidth."""
        key = sizes.precision, threads, replicas
        if key not in self._machines:
            machine = machine_for(self._peaks, sizes, threads)
            share = min(1.0, threads / self._peaks.threads)
            tflops = {kind: rate * share for kind, rate in machine.tflops.items()}
            bandwidth = machine.bandwidth
            if replicas > 1:
                # Alone, a replica may read faster than one of several that read at the same time.
                together = machine_for(self._peaks, sizes, replicas * threads).bandwidth
                bandwidth = min(bandwidth, together / replicas)
            self._machines[key] = msgspec.structs.replace(
                machine, tflops=tflops, bandwidth=bandwidth
            )
        return self._machines[key]


def slower(traffic: Traffic, servers: int) -> Traffic:
    """Return the traffic of one of this many servers that share it."""
    return dataclasses.replace(traffic, rate=traffic.rate / servers)
