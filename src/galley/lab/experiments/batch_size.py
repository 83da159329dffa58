"""Latency and throughput by batch size."""

import functools
import statistics
from typing import Final

from galley.bench.serve.chart import Line
from galley.lab.bench import Lab
from galley.lab.experiment import Claim, Curves, Experiment, Figure, Finding

BATCHES: Final = (1, 2, 4, 8, 16, 32)
_CONTEXT: Final = 32


def _run(lab: Lab) -> Finding:
    bench = lab.bench(weight_dtype="int8", kv_cache_tokens=BATCHES[-1] * 256)
    sizes = lab.sizes("int8")
    steps = 16 if lab.quick else 48

    def step(batch: int) -> float:
        found = bench.decode(lab.prompts([_CONTEXT] * batch), steps)
        return statistics.median(one.seconds for one in found)

    times = {batch: lab.spread(functools.partial(step, batch)).median for batch in BATCHES}
    gain = lab.ratio(lambda: BATCHES[-1] / step(BATCHES[-1]), lambda: 1 / step(1))
    predicted = {
        batch: lab.predict(sizes, prompt=_CONTEXT, output=steps, concurrency=batch).step
        for batch in BATCHES
    }
    last = BATCHES[-1]
    return Finding(
        figures=[Figure(measured=gain, predicted=last * predicted[1] / predicted[last])],
        header=["at once", "ms a step", "predicted ms", "tokens/s", "times one"],
        rows=[
            [
                str(batch),
                f"{1e3 * seconds:.3f}",
                f"{1e3 * predicted[batch]:.3f}",
                f"{batch / seconds:.0f}",
                f"{batch * times[1] / seconds:.2f}",
            ]
            for batch, seconds in times.items()
        ],
        pictures=[
            Curves(
                title="Throughput by batch size",
                x="sequences at once",
                y="tokens/s",
                lines=[
                    Line("measured", list(BATCHES), [b / times[b] for b in BATCHES], 1, dots=True),
                    Line("predicted", list(BATCHES), [b / predicted[b] for b in BATCHES], 0),
                ],
            ),
            Curves(
                title="Latency by batch size",
                x="sequences at once",
                y="ms a token",
                lines=[
                    Line(
                        "measured", list(BATCHES), [1e3 * times[b] for b in BATCHES], 1, dots=True
                    ),
                    Line("predicted", list(BATCHES), [1e3 * predicted[b] for b in BATCHES], 0),
                ],
            ),
        ],
    )


EXPERIMENT: Final = Experiment(
    name="batch-size",
    title="Latency and throughput by batch size",
    statement="Sequences that decode together share each read of the weights, so 32 of them give several "
    "times the throughput of one.",
    source="Orca, OSDI 2022; PagedAttention, arXiv:2309.06180",
    prediction="A roofline of the step: the weights are read once, arithmetic grows with the sequences.",
    claims=(Claim(figure="throughput of 32 sequences to that of one", unit="times", low=4),),
    run=_run,
)
