"""Weights of fewer bits: speed and loss."""

import statistics
from typing import Final

from galley.bench.serve.bars import Series
from galley.lab.bench import Lab
from galley.lab.experiment import Bars, Claim, Experiment, Figure, Finding, loss_bars
from galley.quality.compare import unrounded
from galley.quality.losses import losses

KINDS: Final = ("float32", "bf16", "int8", "int4")


def _run(lab: Lab) -> Finding:
    windows = lab.windows(256, 1024 if lab.quick else 4096)
    models = [lab.with_(weight_dtype=kind, kv_dtype="bfloat16") for kind in KINDS]
    found = dict(zip(KINDS, losses(unrounded(lab.with_()), models, windows), strict=True))
    benches = {kind: lab.bench(weight_dtype=kind, kv_cache_tokens=1024) for kind in KINDS}
    prompt = lab.prompts([min(256, lab.context // 2)])[0]

    def decode(kind: str) -> float:
        steps = benches[kind].decode([prompt[:16]], 16 if lab.quick else 64)
        return 1 / statistics.median(step.seconds for step in steps)

    def prefill(kind: str) -> float:
        return len(prompt) / sum(step.seconds for step in benches[kind].prefill(prompt))

    gain = lab.ratio(lambda: decode("int4"), lambda: decode("bf16"))
    steps = {
        kind: lab.predict(lab.sizes(kind), prompt=16, output=16, concurrency=1).step
        for kind in KINDS
    }
    rates = {kind: (prefill(kind), decode(kind)) for kind in KINDS}
    return Finding(
        figures=[
            Figure(measured=gain, predicted=steps["bf16"] / steps["int4"]),
            Figure.exact(100 * found["int8"].top1),
            Figure.exact(100 * found["int4"].top1),
        ],
        header=["weights", "prefill, tokens/s", "decode, tokens/s", "mean KL, nats", "same token"],
        rows=[
            [
                kind,
                f"{rates[kind][0]:.0f}",
                f"{rates[kind][1]:.0f}",
                f"{found[kind].kl:.2g}",
                f"{found[kind].top1:.2%}",
            ]
            for kind in KINDS
        ],
        pictures=[
            Bars(
                title="Decoding a single sequence",
                unit="tokens/s",
                names=[*KINDS],
                series=[
                    Series("predicted", [1 / steps[kind] for kind in KINDS]),
                    Series("measured", [rates[kind][1] for kind in KINDS]),
                ],
            ),
            loss_bars(found),
        ],
        notes=[
            "Integers are rounded to nearest, and so are the inputs of their layers, to 8 bits."
        ],
    )


EXPERIMENT: Final = Experiment(
    name="weight-types",
    title="Weights of fewer bits: speed and loss",
    statement="Weights of 4 bits decode up to about 3 times as fast as those of 16 bits; 8 bits lose "
    "hardly anything, and 4 bits little.",
    source="GPTQ, arXiv:2210.17323 (3.25 times on an A100, with 3 bits); LLM.int8(), arXiv:2208.07339",
    prediction="A roofline of the decode step.",
    claims=(
        Claim(figure="decoding with int4 to 16 bits", unit="times", low=2, high=4),
        Claim(figure="same likeliest token with int8", unit="%", low=97),
        Claim(figure="same likeliest token with int4", unit="%", low=90),
    ),
    run=_run,
)
