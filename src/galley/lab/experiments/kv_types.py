"""Keys and values of 8 and 4 bits: memory and loss."""

from typing import Final

from galley.bench.serve.bars import Series
from galley.lab.bench import Lab
from galley.lab.experiment import Bars, Claim, Experiment, Figure, Finding
from galley.quality.compare import unrounded
from galley.quality.losses import losses

KINDS: Final = ("bfloat16", "int8", "int4")


def _run(lab: Lab) -> Finding:
    windows = lab.windows(256, 1024 if lab.quick else 4096)
    base = unrounded(lab.with_())
    models = [lab.with_(activations="float32", kv_dtype=kind) for kind in KINDS]
    found = dict(zip(KINDS, losses(base, models, windows), strict=True))
    held = {kind: lab.sizes("bf16", kind).kv_per_token for kind in KINDS}
    return Finding(
        figures=[
            Figure.exact(held["bfloat16"] / held["int8"], 2.0),
            Figure.exact(100 * found["int8"].top1),
            Figure.exact(held["bfloat16"] / held["int4"], 4.0),
            Figure.exact(100 * found["int4"].top1),
        ],
        header=["keys and values", "bytes a token", "perplexity", "mean KL, nats", "same token"],
        rows=[
            [
                kind,
                str(held[kind]),
                f"{loss.perplexity:.4f}",
                f"{loss.kl:.2g}",
                f"{loss.top1:.2%}",
            ]
            for kind, loss in found.items()
        ],
        pictures=[
            Bars(
                title="Memory of a token",
                unit="bytes",
                names=[*KINDS],
                series=[Series("measured", [float(held[kind]) for kind in KINDS])],
            ),
            Bars(
                title="Loss",
                unit="mean KL, thousandths of a nat",
                names=[*KINDS],
                series=[Series("measured", [1e3 * found[kind].kl for kind in KINDS])],
            ),
        ],
        notes=[
            "Weights and activations are not rounded; the texts are the model's own. Scales take part of "
            "the memory that fewer bits save. Small models lose more than large ones."
        ],
    )


EXPERIMENT: Final = Experiment(
    name="kv-types",
    title="Keys and values of 8 and 4 bits",
    statement="Keys and values of 8 bits take half the memory, with hardly any loss; of 4 bits a quarter, "
    "with a small one.",
    source="KIVI, arXiv:2402.02750; KVQuant, arXiv:2401.18079",
    prediction="The ratio of the bits, without scales.",
    claims=(
        Claim(figure="memory of 16 bits to that of 8", unit="times", low=1.8, high=2.0),
        Claim(figure="same likeliest token with 8 bits", unit="%", low=99),
        Claim(figure="memory of 16 bits to that of 4", unit="times", low=3.2, high=4.0),
        Claim(figure="same likeliest token with 4 bits", unit="%", low=95),
    ),
    run=_run,
)
