"""Memory of the weights by type."""

from typing import Final

from galley.bench.serve.bars import Series
from galley.lab.bench import Lab
from galley.lab.experiment import Bars, Claim, Experiment, Figure, Finding
from galley.lab.random_model import RandomExecutor, llama
from galley.plan.sizes import ModelSizes
from galley.types.weight_dtypes import WEIGHT_DTYPES

KINDS: Final = ("float32", "bf16", "int8", "int4")


def _run(lab: Lab) -> Finding:
    program = llama(
        layers=4, heads=8, kv_heads=8, head_dim=128, hidden=1024, inner=4096, vocab=1024
    )
    sizes = {kind: ModelSizes.of(program, kind, "bfloat16") for kind in KINDS}
    RandomExecutor(program, "bf16", lab.peaks.threads)  # what is allocated once is not the weights'
    measured = {kind: RandomExecutor(program, kind, lab.peaks.threads).bytes for kind in KINDS}
    parameters = sizes["bf16"].parameters
    rows = [
        [
            kind,
            f"{WEIGHT_DTYPES[kind].bits}",
            f"{sizes[kind].weights / 1e6:.1f}",
            f"{measured[kind] / 1e6:.1f}",
            f"{8 * measured[kind] / parameters:.2f}",
        ]
        for kind in KINDS
    ]
    figure = Figure.exact(
        measured["bf16"] / measured["int4"], sizes["bf16"].weights / sizes["int4"].weights
    )
    series = [
        Series("predicted", [sizes[kind].weights / 1e6 for kind in KINDS]),
        Series("measured", [measured[kind] / 1e6 for kind in KINDS]),
    ]
    return Finding(
        figures=[figure],
        header=["weights", "bits", "predicted, MB", "measured, MB", "bits a parameter"],
        rows=rows,
        pictures=[Bars(title="Memory of the weights", unit="MB", names=[*KINDS], series=series)],
        notes=[
            f"Measured: by how much the process grew with a random model of {parameters / 1e6:.0f} million "
            "parameters. int4 has a scale for each group of weights, and norms stay floats."
        ],
    )


EXPERIMENT: Final = Experiment(
    name="weights-memory",
    title="Memory of the weights by type",
    statement="Weights of 4 bits need a quarter of the memory of 16-bit weights, so a model of 7 billion "
    "parameters fits 4 GB instead of 14 GB.",
    source="GPTQ, arXiv:2210.17323",
    prediction="The bytes of each matrix in its type, scales included (galley plan).",
    claims=(Claim(figure="16-bit weights to int4", unit="times", low=3.2, high=4.0),),
    run=_run,
)
