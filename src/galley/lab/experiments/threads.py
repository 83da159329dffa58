"""Threads, and more of them than cores."""

import statistics
from typing import Final

from galley.bench.serve.chart import Line
from galley.errors import UnsupportedModel
from galley.lab.bench import Lab
from galley.lab.experiment import Claim, Curves, Experiment, Figure, Finding
from galley.machine import available_cores


def _run(lab: Lab) -> Finding:
    cores = available_cores()
    if cores == 1:
        raise UnsupportedModel("this process may use a single core: nothing to compare")
    counts = sorted({1, cores, 2 * cores, *(n for n in (2, 4, 8, 16, 32, 64) if n < cores)})
    benches = {n: lab.bench(weight_dtype="int8", threads=n, kv_cache_tokens=1024) for n in counts}
    prompt = lab.prompts([min(256, lab.context // 2)])[0]

    def prefill(threads: int) -> float:
        return len(prompt) / sum(step.seconds for step in benches[threads].prefill(prompt))

    def decode(threads: int) -> float:
        steps = benches[threads].decode([prompt[:16]], 16)
        return 1 / statistics.median(step.seconds for step in steps)

    scaling = lab.ratio(lambda: prefill(cores), lambda: prefill(1))
    oversubscribed = lab.ratio(lambda: decode(2 * cores), lambda: decode(cores))
    rates = {
        n: (
            statistics.median(prefill(n) for _ in range(lab.repeats)),
            statistics.median(decode(n) for _ in range(lab.repeats)),
        )
        for n in counts
    }
    return Finding(
        figures=[
            Figure(measured=scaling, predicted=float(cores)),
            Figure(measured=oversubscribed, predicted=1.0),
        ],
        header=["threads", "prefill, tokens/s", "decode, tokens/s"],
        rows=[[str(n), f"{rates[n][0]:.0f}", f"{rates[n][1]:.0f}"] for n in counts],
        pictures=[
            Curves(
                title=name,
                x="threads",
                y="tokens/s",
                lines=[Line("measured", counts, [rates[n][i] for n in counts], 1, dots=True)],
            )
            for i, name in enumerate(("Prefill by threads", "Decode by threads"))
        ],
        notes=[f"This process may use {cores} cores."],
    )


EXPERIMENT: Final = Experiment(
    name="threads",
    title="Threads and oversubscription",
    statement="Prefill scales with the cores; more threads than cores make a model slower.",
    source="llama.cpp, token generation performance tips; PyTorch, CPU threading and inference",
    prediction="Prefill in proportion to the cores; twice the threads on the same cores gain nothing.",
    claims=(
        Claim(figure="prefill on all cores to that on one", unit="times", low=1.5),
        Claim(figure="decode with twice the threads to one for each core", unit="times", high=1.0),
    ),
    run=_run,
)
