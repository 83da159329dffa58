"""Mixtures of experts: active and total parameters."""

import functools
from collections.abc import Mapping
from typing import Final

from galley.bench.serve.bars import Series
from galley.graph.program import Program
from galley.lab.bench import Lab
from galley.lab.experiment import Bars, Claim, Experiment, Figure, Finding
from galley.lab.random_model import RandomExecutor, llama
from galley.plan.sizes import ModelSizes

_EXPERTS, _ACTIVE = 8, 2
_INNER: Final = 1024


def _run(lab: Lab) -> Finding:
    programs = _programs()
    names = [*programs]
    sizes = {name: ModelSizes.of(program, "int8", "bfloat16") for name, program in programs.items()}
    RandomExecutor(
        programs[names[0]], "int8", lab.peaks.threads
    )  # allocates what all of them share
    made = {
        name: RandomExecutor(program, "int8", lab.peaks.threads)
        for name, program in programs.items()
    }
    steps = 8 if lab.quick else 32

    def decode(name: str, sequences: int) -> float:
        return made[name].decode_seconds(sequences, steps)

    mixture, active, total = names
    to_active = lab.ratio(lambda: decode(mixture, 1), lambda: decode(active, 1))
    to_total = lab.ratio(lambda: decode(mixture, 1), lambda: decode(total, 1))
    times = {name: (decode(name, 1), decode(name, 16)) for name in names}

    def predicted(other: str) -> float:
        return sizes[mixture].step_weights / sizes[other].step_weights

    return Finding(
        figures=[
            Figure(measured=to_active, predicted=predicted(active)),
            Figure(measured=to_total, predicted=predicted(total)),
            Figure.exact(
                made[mixture].bytes / made[total].bytes,
                sizes[mixture].weights / sizes[total].weights,
            ),
        ],
        header=[
            "model",
            "weights, MB",
            "measured, MB",
            "read by a token, MB",
            "ms, one",
            "ms, 16 at once",
        ],
        rows=[
            [
                name,
                f"{sizes[name].weights / 1e6:.1f}",
                f"{made[name].bytes / 1e6:.1f}",
                f"{sizes[name].step_weights / 1e6:.1f}",
                f"{1e3 * times[name][0]:.3f}",
                f"{1e3 * times[name][1]:.3f}",
            ]
            for name in names
        ],
        pictures=[_picture(times)],
        notes=[
            "Random models of the same layers. 16 sequences choose nearly all experts among them, so "
            "together they read as much as the dense model."
        ],
    )


def _programs() -> dict[str, Program]:
    """Return a mixture and, of the same layers, dense models of its active and of its total size."""
    shape = functools.partial(
        llama, layers=4, heads=8, kv_heads=2, head_dim=64, hidden=512, vocab=1024
    )
    return {
        "experts, 2 of 8": shape(inner=_INNER, experts=(_EXPERTS, _ACTIVE)),
        "dense, as many active": shape(inner=_ACTIVE * _INNER),
        "dense, as many in all": shape(inner=_EXPERTS * _INNER),
    }


def _picture(times: Mapping[str, tuple[float, float]]) -> Bars:
    return Bars(
        title="A decode step",
        unit="ms",
        names=[*times],
        series=[
            Series("one sequence", [1e3 * one for one, _ in times.values()]),
            Series("16 sequences", [1e3 * many for _, many in times.values()]),
        ],
    )


EXPERIMENT: Final = Experiment(
    name="moe",
    title="Mixtures of experts: active and total parameters",
    statement="A mixture of experts takes the memory of all its parameters, but the time of those that a "
    "token uses.",
    source="Mixtral of Experts, arXiv:2401.04088",
    prediction="Time: the bytes of weights that a token reads. Memory: the bytes of all weights.",
    claims=(
        Claim(figure="time to a dense model of the active size", unit="times", low=0.7, high=1.5),
        Claim(figure="time to a dense model of the total size", unit="times", high=0.7),
        Claim(figure="memory to a dense model of the total size", unit="times", low=0.9, high=1.1),
    ),
    run=_run,
)
