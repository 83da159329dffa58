"""Instruction sets of the CPU."""

import os
from typing import Final

from galley import _native
from galley.bench.serve.bars import Series
from galley.errors import UnsupportedModel
from galley.lab.bench import Lab
from galley.lab.experiment import Bars, Claim, Experiment, Figure, Finding
from galley.ops.isa import ISA_VARIABLE, cpus_to_pin


def _run(lab: Lab) -> Finding:
    names = list(_native.supported_isas())
    if len(names) < 2:
        raise UnsupportedModel(f"this CPU has kernels for {names[0]} alone: nothing to compare")
    benches = {}
    for name in names:
        os.environ[ISA_VARIABLE] = name  # this process runs the experiment alone
        benches[name] = lab.bench(weight_dtype="int8", kv_cache_tokens=1024, weight_cache=False)
    prompt = lab.prompts([min(256, lab.context // 2)])[0]

    def rate(name: str) -> float:
        return len(prompt) / sum(step.seconds for step in benches[name].prefill(prompt))

    threads = lab.settings.threads or lab.peaks.threads
    cpus = cpus_to_pin(threads)
    peaks = {
        name: max(_native.multiply_rates(name, threads, cpus, "int8", 0.1, 3)) for name in names
    }
    best, least = names[0], names[-1]
    gain = lab.ratio(lambda: rate(best), lambda: rate(least))
    rates = {name: max(rate(name) for _ in range(lab.repeats)) for name in names}
    return Finding(
        figures=[Figure(measured=gain, predicted=peaks[best] / peaks[least])],
        header=["instruction set", "peak, GOPS of int8", "prefill, tokens/s"],
        rows=[[name, f"{peaks[name] / 1e9:.0f}", f"{rates[name]:.0f}"] for name in names],
        pictures=[
            Bars(
                title="Prefill by instruction set",
                unit="tokens/s",
                names=names,
                series=[Series("measured", [rates[name] for name in names])],
            )
        ],
        notes=[
            f"The same model with int8 weights, on {', '.join(names)}: all that this CPU has kernels for."
        ],
    )


EXPERIMENT: Final = Experiment(
    name="isa",
    title="Instruction sets of the CPU",
    statement="Instructions for dot products of 8 bits (VNNI, AMX) make int8 models more than twice as "
    "fast as AVX2.",
    source="Intel, Introduction to Deep Learning Boost, 2019 (one VNNI instruction replaces three)",
    prediction="The ratio of the measured peaks of int8 products.",
    claims=(Claim(figure="prefill on the best set to that on the least", unit="times", low=2),),
    run=_run,
)
