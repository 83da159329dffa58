"""Bytes of keys and values of a token."""

from typing import Final

from galley.bench.serve.chart import Line
from galley.lab.bench import Lab
from galley.lab.experiment import Claim, Curves, Experiment, Figure, Finding
from galley.lab.random_model import kv_growth, llama

_STEP: Final = 64
_MIB: Final = 1 << 20


def _run(lab: Lab) -> Finding:
    # Keys and values of Llama 2 7B: 32 layers, 32 heads of 128. The other sizes do not matter to them.
    program = llama(layers=32, heads=32, kv_heads=32, head_dim=128, hidden=64, inner=64, vocab=256)
    tokens = 256 if lab.quick else 1024
    grown = kv_growth(program, "bfloat16", tokens, _STEP, lab.peaks.threads)
    a_token = grown[-1] / tokens
    predicted = 2 * 32 * 32 * 128 * 2
    counts = list(range(_STEP, tokens + 1, _STEP))
    own = lab.sizes("bf16").kv_per_token
    return Finding(
        figures=[Figure.exact(a_token / _MIB, predicted / _MIB)],
        header=["model", "formula", "bytes a token", "4,096 tokens"],
        rows=[
            ["Llama 2 7B, measured", "", f"{a_token:,.0f}", f"{4096 * a_token / 2**30:.2f} GiB"],
            [
                "Llama 2 7B, predicted",
                "2 x 32 layers x 4,096 x 2 bytes",
                f"{predicted:,}",
                f"{4096 * predicted / 2**30:.2f} GiB",
            ],
            ["this model", "the same", f"{own:,}", f"{4096 * own / 2**20:.1f} MiB"],
        ],
        pictures=[
            Curves(
                title="Memory by tokens in the cache",
                x="tokens",
                y="MiB",
                lines=[
                    Line("measured", counts, [size / _MIB for size in grown], 1, dots=True),
                    Line("predicted", counts, [predicted * n / _MIB for n in counts], 0),
                ],
            )
        ],
        notes=[
            "A random model with the keys and values of Llama 2 7B, and narrow layers around them; "
            "its memory grows by huge pages."
        ],
    )


EXPERIMENT: Final = Experiment(
    name="kv-bytes",
    title="Keys and values of a token",
    statement="A token in the cache of a model of 7 billion parameters takes half a megabyte in 16 bits.",
    source="PagedAttention, arXiv:2309.06180 (which gives 800 KB for 13 billion)",
    prediction="2 (key and value) x layers x heads x head width x 2 bytes.",
    claims=(Claim(figure="bytes a token", unit="MiB", low=0.45, high=0.55),),
    run=_run,
)
