"""Keys and values of 8 and 4 bits: memory and loss."""

from collections.abc import Mapping
from typing import Final

from galley.bench.serve.bars import Series
from galley.lab.bench import Lab
from galley.lab.experiment import Bars, Claim, Experiment, Figure, Finding, loss_bars
from galley.lab.random_model import kv_growth, llama
from galley.plan.sizes import ModelSizes
from galley.quality.compare import unrounded
from galley.quality.losses import losses

_TOKENS: Final = 1024
KINDS: Final = ("bfloat16", "int8", "int4")


def _run(lab: Lab) -> Finding:
    windows = lab.windows(256, 1024 if lab.quick else 4096)
    base = unrounded(lab.with_())
    models = [lab.with_(activations="float32", kv_dtype=kind) for kind in KINDS]
    found = dict(zip(KINDS, losses(base, models, windows), strict=True))
    program = llama(layers=16, heads=16, kv_heads=16, head_dim=128, hidden=64, inner=64, vocab=256)
    predicted = {
        kind: ModelSizes.of(program, "bf16", kind, lab.peaks.isa).kv_per_token for kind in KINDS
    }
    held = {
        kind: kv_growth(program, kind, _TOKENS, _TOKENS // 8, lab.peaks.threads)[-1] / _TOKENS
        for kind in KINDS
    }

    def smaller(bytes_of: Mapping[str, float], kind: str) -> float:
        return bytes_of["bfloat16"] / bytes_of[kind]

    return Finding(
        figures=[
            Figure.exact(smaller(held, "int8"), smaller(predicted, "int8")),
            Figure.exact(100 * found["int8"].top1),
            Figure.exact(smaller(held, "int4"), smaller(predicted, "int4")),
            Figure.exact(100 * found["int4"].top1),
        ],
        header=["keys and values", "bytes a token", "perplexity", "mean KL, nats", "same token"],
        rows=[
            [
                kind,
                f"{held[kind]:,.0f}",
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
                series=[
                    Series("predicted", [float(predicted[kind]) for kind in KINDS]),
                    Series("measured", [held[kind] for kind in KINDS]),
                ],
            ),
            loss_bars(found),
        ],
        notes=[
            "Memory: by how much the process grew with a prompt of a random model with 16 layers of 16 "
            "heads. Scales take part of what fewer bits save. Loss: of this model, on its own texts, with "
            "weights and activations that are not rounded. Small models lose more than large ones."
        ],
    )


EXPERIMENT: Final = Experiment(
    name="kv-types",
    title="Keys and values of 8 and 4 bits",
    statement="Keys and values of 8 bits take half the memory, with hardly any loss; of 4 bits a quarter, "
    "with a small one.",
    source="KIVI, arXiv:2402.02750; KVQuant, arXiv:2401.18079",
    prediction="Memory: the bytes of a token with its scales (galley plan). Loss: none.",
    claims=(
        Claim(figure="memory of 16 bits to that of 8", unit="times", low=1.8, high=2.2),
        Claim(figure="same likeliest token with 8 bits", unit="%", low=99),
        Claim(figure="memory of 16 bits to that of 4", unit="times", low=3.2, high=4.4),
        Claim(figure="same likeliest token with 4 bits", unit="%", low=95),
    ),
    run=_run,
)
